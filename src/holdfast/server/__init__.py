"""HTTP: the OpenAI-compatible API, the operations API and the server process.

To add a route: a handler and its `Route` in the file's `ROUTES`, which `server.py` lists. Its types make
`/openapi.json`; public objects are the Structs of `schemas.py`.
"""
