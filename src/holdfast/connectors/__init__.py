"""Connectors: where people write. One file for each messaging platform; `app.py` has the registry."""
