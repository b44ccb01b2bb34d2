"""Moving in from Hermes: reads an existing home, tells its owner what it looks like, takes it over.

Nothing here writes to a home. What is known of Hermes' files stands in `home`, `copies` and `reading`; how
its sessions hang together is decided in `lineage`; `doctor` only looks; `importer` acts on a store. A `visit`
is what both begin with.
"""
