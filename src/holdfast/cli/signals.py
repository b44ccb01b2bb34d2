"""Signal handling and progress output, for a command that needs an orderly shutdown.

The first SIGINT, SIGTERM or SIGHUP cancels the command's task, so its context managers exit normally. The
second one kills at once. A signal that was ignored at startup (`nohup`) stays ignored.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Wraps a command's work, in its task: `with Interrupts() as interrupts: …`."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that came, if any."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or 0)

    def stop(self) -> None:
        """Cancel the command, as a signal does."""
        self._task.cancel()

    def _came(self, number: int, _frame: FrameType | None) -> None:
        # A Python signal handler, not the loop's: it runs even while a write to a full pipe blocks.
        self.number = number
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        self._loop.call_soon_threadsafe(self.stop)

    def __enter__(self) -> Interrupts:
        for number in POLITE:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.number is None:
            for number, handler in self._before.items():
                signal.signal(number, handler)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a spinner on stderr while the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    from .format import console

    with console(stderr=True).status(f"{what} …"):
        yield


Shows = Callable[[str, int, int], None]
TELL_SECONDS = 10.0


class _Told:
    """Progress as lines, for a log: one every TELL_SECONDS."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def tell(self, what: str, done: int, whole: int) -> None:
        if whole and time.monotonic() - self._at >= TELL_SECONDS:
            from .format import note

            self._at = time.monotonic()
            note(f"{what}: {100 * done // whole} %")


class Stopped(Exception):
    """Raised in the work whose progress is shown, after a signal."""


@contextmanager
def bar(stopped: str = "", *, at_once: bool = False) -> Iterator[Shows]:
    """A progress bar on stderr; called with the step, how much of it is done, and the total. Without a
    terminal a line with the percentage, every TELL_SECONDS.

    With `stopped`, Ctrl-C ends the command in order, and this sentence says what is left of its work.
    `at_once`: without waiting for the step under way, for work that leaves nothing to clean up.
    """
    if not stopped:
        with _bar() as shows:
            yield shows
        return
    import typer

    from .format import remark

    reached = ""
    if at_once:

        def note_reached(what: str, done: int, whole: int) -> None:
            nonlocal reached
            reached = f" at {100 * done // whole} %" if whole else ""
            shows(what, done, whole)

        with _dying(lambda: remark(f"Interrupted{reached}", stopped)), _bar() as shows:
            yield note_reached
        return
    with Interrupts() as interrupts:

        def show(what: str, done: int, whole: int) -> None:
            nonlocal reached
            if interrupts.number is not None:
                raise Stopped
            reached = f" at {100 * done // whole} %" if whole else ""
            shows(what, done, whole)

        try:
            with _bar() as shows:
                yield show
        except (asyncio.CancelledError, Stopped):
            if interrupts.number is None:
                raise
            remark(f"Interrupted{reached}", stopped)
            raise typer.Exit(interrupts.exit_code) from None


@contextmanager
def _dying(say: Callable[[], None]) -> Iterator[None]:
    """On Ctrl-C, call `say` and end the process by the signal."""

    def came(number: int, _frame: FrameType | None) -> None:
        if sys.stderr.isatty():
            from .format import console

            console(stderr=True).show_cursor(True)
        say()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, came)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar() -> Iterator[Shows]:
    if not sys.stderr.isatty():
        yield _Told().tell
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from .format import console

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=None)
        yield lambda what, done, whole: progress.update(task, description=what, completed=done, total=whole)
