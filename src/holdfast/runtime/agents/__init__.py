"""Background agents. Each has a public `…_once()`; a loop of `periodic` calls it.

To add one: a class here, its loop in `periodic.LOOPS`, its construction in `app.py`. Tests call `…_once()`.
"""
