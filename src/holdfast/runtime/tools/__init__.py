"""Tools that the server runs for a model within a turn. One file for each tool; `toolbox` holds them.

To add one: a class with the methods of `toolbox.Tool`, a line in `wiring.toolbox_of`, and its name
in `domain.api_keys.TOOLS`, by which API keys and settings allow it.
"""
