"""The PostgreSQL engine. Starts at `engine.py`."""
