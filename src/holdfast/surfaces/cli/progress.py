"""Shows on a terminal that long work goes on; anywhere else it shows nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on stderr while the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    from .output import console

    with console(stderr=True).status(f"{what} …"):
        yield


Shows = Callable[[str, int, int], None]


@contextmanager
def bar() -> Iterator[Shows]:
    """A bar on stderr that is told what is done, how much of it, of how much."""
    if not sys.stderr.isatty():
        yield lambda what, done, whole: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from .output import console

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=None)
        yield lambda what, done, whole: progress.update(task, description=what, completed=done, total=whole)
