"""All durable state, and the only SQL. `store.py` is the contract: one line per method, for both engines.

To add a method: a function in the file of its noun, its statement in `sql/<noun>.sql`, a line in `store.py`,
and a test in `tests/contract`, which runs on SQLite and PostgreSQL.
"""
