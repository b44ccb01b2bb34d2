"""`holdfast demo`: shows the five promises on real processes, in a temporary home.

A step is a method of `Tour`.
"""
