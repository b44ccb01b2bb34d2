"""Imports every command. Importing a command's file registers it.

`--help` must be fast, so such a file may import only typer and the standard library at its top. The rest of
holdfast, asyncio and rich are imported when a command runs.
"""

from __future__ import annotations

from . import (
    chat,
    config,
    demo,
    doctor,
    env,
    importing,
    keys,
    memories,
    migrate,
    models,
    nodes,
    notices,
    processes,
    run,
    serve,
    session_actions,
    why,
)
from . import sessions as sessions_listing
from . import sessions as sessions_reading
from .groups import app, imports, sessions
from .groups import keys as keys_group
from .groups import memories as memories_group
from .groups import notices as notices_group
from .groups import settings as settings_group

FILES = (
    serve,
    demo,
    chat,
    run,
    sessions_listing,
    sessions_reading,
    session_actions,
    session_actions,
    env,
    keys,
    why,
    processes,
    memories,
    nodes,
    doctor,
    importing,
    migrate,
    models,
    notices,
    config,
)

__all__ = ["app"]

app.add_typer(sessions, name="sessions")
app.add_typer(imports, name="import")
app.add_typer(keys_group, name="keys")
app.add_typer(memories_group, name="memories")
app.add_typer(notices_group, name="notices")
app.add_typer(settings_group, name="config")
