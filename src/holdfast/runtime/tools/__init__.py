"""Tools that the server runs for a model, within a turn. One file a tool; `toolbox` holds them."""
