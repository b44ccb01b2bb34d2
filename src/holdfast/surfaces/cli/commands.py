"""Every command. Importing a command's file hangs it on the tree.

`--help` must be quick, so such a file may import only typer and the standard library at its top; the rest of
holdfast, asyncio and rich are imported when a command runs.
"""

from __future__ import annotations

from . import (
    about,
    care,
    chat,
    demo,
    env,
    exporting,
    importing,
    keys,
    liveness,
    memories,
    migrate,
    processes,
    run,
    serve,
    sessions_acting,
    sessions_listing,
    sessions_reading,
    why,
)
from .tree import app, imports, sessions
from .tree import keys as keys_group
from .tree import memories as memories_group
from .tree import settings as settings_group

FILES = (
    serve,
    demo,
    chat,
    run,
    sessions_listing,
    sessions_reading,
    sessions_acting,
    exporting,
    env,
    keys,
    why,
    processes,
    memories,
    liveness,
    care,
    importing,
    migrate,
    about,
)

__all__ = ["app"]

app.add_typer(sessions, name="sessions")
app.add_typer(imports, name="import")
app.add_typer(keys_group, name="keys")
app.add_typer(memories_group, name="memories")
app.add_typer(settings_group, name="config")
