"""The polite signals, for a command that has something to bring to rest.

The first SIGINT, SIGTERM or SIGHUP cancels the command's task, which leaves its blocks in good order; the
second one kills at once. A signal that was ignored when we started (`nohup`) stays ignored.
"""

from __future__ import annotations

import asyncio
import signal
from types import FrameType, TracebackType
from typing import Any

POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Around a command's work, in its task: `with Interrupts() as interrupts: …`."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that came, if one did."""
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or 0)

    def stop(self) -> None:
        """Cancel the command, as a signal would."""
        self._task.cancel()

    def _came(self, number: int, _frame: FrameType | None) -> None:
        # A handler of Python's own, not of the loop's: it runs even while a write to a full pipe blocks us.
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
