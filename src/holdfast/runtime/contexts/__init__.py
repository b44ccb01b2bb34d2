"""What the model is called with: instructions added to a turn, and a context that fits its window.

`preamble.py` adds memories and ended processes. `context_fitter.py` compares one turn's context with the
window of its model; `compactor.py` replaces its older messages by a summary.
"""
