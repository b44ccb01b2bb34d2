"""`holdfast demo`: the five promises acted out, on real processes, in a home of its own."""
