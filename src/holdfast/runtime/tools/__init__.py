"""Tools that the server runs for a model within a turn. One file for each tool; `toolbox` holds them."""
