"""Connectors: where people write. One file for each messaging platform; `worker.py` runs one on a node.

To add one: a class with the methods of `base.Connector`, its settings in `CONNECTOR_KINDS` of
`settings/sections.py`, a line in `_connector_of` of `app.py`, a test file and a page in docs/how-to.
"""
