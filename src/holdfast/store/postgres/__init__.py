"""The PostgreSQL engine. Starts at `engine.py`.

Only what is specific to PostgreSQL: writer, pipeline, locks, search, schema. A statement that must differ
here is in `overrides.sql`.
"""
