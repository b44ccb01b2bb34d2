"""The verbs of the SQLite engine, part by part; `engine.SQLiteStore` is all of them."""
