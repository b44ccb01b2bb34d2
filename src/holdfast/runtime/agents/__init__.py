"""Background agents. Each has a public `…_once()`; a loop calls it."""
