"""The dashboard: web pages at `/`, built on the handlers of `/api`.

Rendered on the server. Pages work without JavaScript; with it, they update live.
"""
