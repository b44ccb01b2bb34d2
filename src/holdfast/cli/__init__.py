"""The `holdfast` command. `commands.py` lists every command; each group has a file of its own."""
