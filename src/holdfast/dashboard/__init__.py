"""The dashboard: pages at `/` for people, over the same handlers that answer `/api`.

Rendered on the server, readable and operable without JavaScript; with it, they are live.
"""
