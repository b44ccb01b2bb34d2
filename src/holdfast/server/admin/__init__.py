"""`/api/…`, `/healthz`, `/metrics`: operations on sessions, turns, processes, memories and nodes."""
