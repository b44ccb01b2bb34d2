"""What the store's verbs do inside a transaction, written once for every engine.

A function here is given a `Transaction` and asks it for statements by name. Each engine brings its own SQL
under these names, its own way to run a transaction, and its own verbs where it works differently (search,
node locks, care).
"""
