"""Every command, in the order `holdfast --help` lists them.

`--help` must be quick, so a command's file may import only typer and the standard library at its top; the
rest of holdfast, asyncio and rich are imported when a command runs.
"""

from __future__ import annotations

from . import run as run  # isort: skip
from .tree import app, sessions

app.add_typer(sessions, name="sessions")

from . import sessions_reading as sessions_reading  # noqa: E402
from . import sessions_acting as sessions_acting  # noqa: E402
from . import care as care  # noqa: E402
from . import about as about  # noqa: E402

__all__ = ["app"]
