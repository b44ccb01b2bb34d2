"""`holdfast migrate`: from SQLite to PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BadInput
from ..settings import database_path, is_postgres
from .context import CommandContext, command
from .format import console, note, say
from .groups import app
from .signals import bar

if TYPE_CHECKING:
    from ..transfer.migrate import MoveStep


@command(app, "migrate")
async def migrate(
    invocation: CommandContext,
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="An empty database: postgresql://user@host/database.")
    ],
) -> None:
    """Copy this SQLite store to PostgreSQL, verified.

    The original is only read and stays as it is. Stop what runs on it first: messages added meanwhile
    are not copied. If it is interrupted, run it again: it continues where it stopped.

    \b
    Example:
      holdfast migrate --to postgresql://holdfast@db.example.com/holdfast
    """
    from ..app import check_postgres

    if not is_postgres(to):
        invocation.wrong_usage("--to names a PostgreSQL database: postgresql://user@host/database")
    if is_postgres(invocation.settings.store.url):
        raise BadInput("the settings' store is in PostgreSQL already; name a SQLite one with --store")
    check_postgres()
    from ..transfer.migrate import Mover

    invocation.start_logging()
    if not invocation.exists:
        raise invocation.nothing_yet()
    stopped = "What was copied is kept; run it again to continue."
    with bar(stopped, at_once=True), _steps() as on_step:
        mover = Mover(database_path(invocation.settings.store.url).absolute(), to, on_step)
        if running := mover.still_running():
            nodes = "a node is" if running == 1 else f"{running} nodes are"
            note(f"{nodes} still running on this store: messages added from now on are not copied")
        arrived = await mover.move_once()
    for table in arrived.tables:
        say(f"  {table.table:<20} {table.rows:>10,} rows   {table.checksum[:16]}")
    say(
        f"{invocation.location} was moved to {arrived.location}: {arrived.rows:,} rows, all of them verified."
    )
    say(f'Set store.url = "{arrived.location}" (with its password, if it has one) on every node.')


@contextmanager
def _steps() -> Iterator[Callable[[MoveStep], None]]:
    """A progress bar per table on a terminal's stderr; otherwise a line per table."""

    if not sys.stderr.isatty():
        told: set[tuple[str, bool]] = set()

        def tell(step: MoveStep) -> None:
            if (step.table, step.verifying) not in told and step.total:
                told.add((step.table, step.verifying))
                note(f"{'verifying' if step.verifying else 'copying'} {step.table}: {step.total:,} rows")

        yield tell
        return
    from rich.progress import Progress, TaskID

    with Progress(console=console(stderr=True), transient=True) as progress:
        bars: dict[tuple[str, bool], TaskID] = {}

        def show(step: MoveStep) -> None:
            key = (step.table, step.verifying)
            if key not in bars:
                what = f"{'verifying' if step.verifying else 'copying'} {step.table}"
                bars[key] = progress.add_task(what, total=step.total)
            progress.update(bars[key], completed=step.done)

        yield show
