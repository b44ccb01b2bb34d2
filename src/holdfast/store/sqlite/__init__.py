"""The embedded engine: one SQLite file, shared safely by several processes. Starts at `engine.py`.

Only what is specific to SQLite: writer, readers, locks, search, backup, schema. A statement that must differ
here is in `overrides.sql`.
"""
