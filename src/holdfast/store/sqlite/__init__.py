"""The embedded engine: one SQLite file, shared safely by several processes."""
