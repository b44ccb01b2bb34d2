"""`holdfast serve --workers N`: several processes on one port, each a node, supervised by the first.

`supervisor.py` forks and replaces workers, `worker.py` is a worker's side of it, `board.py` the memory that
they share.
"""
