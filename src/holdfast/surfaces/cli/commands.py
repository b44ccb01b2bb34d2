"""Every command. Importing a command's file hangs it on the tree.

`--help` must be quick, so such a file may import only typer and the standard library at its top; the rest of
holdfast, asyncio and rich are imported when a command runs.
"""

from __future__ import annotations

from . import about, care, liveness, run, sessions_acting, sessions_listing, sessions_reading
from .tree import app, sessions

FILES = (run, sessions_listing, sessions_reading, sessions_acting, liveness, care, about)

__all__ = ["app"]

app.add_typer(sessions, name="sessions")
