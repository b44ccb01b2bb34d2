"""Imports from Hermes: reads an existing home, reports its state, and imports its conversations.

Nothing here writes to a home. `home`, `database_copy` and `reading` know Hermes' file formats; `lineage`
decides how its sessions are related; `doctor` only reads; `importer` writes to a store. Both begin with
`snapshot.read_home`.
"""
