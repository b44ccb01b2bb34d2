"""Turns the polite signals into an orderly exit, and only where the program has no handler of its own.

SIGTERM and SIGHUP raise SystemExit in the main thread, so every `with` block is left and the node ends or
releases what it holds. SIGINT already does that in Python. A second signal is immediate.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

CAUGHT = (signal.SIGTERM, signal.SIGHUP)


class ExitSignals:
    def __init__(self) -> None:
        self._caught: list[signal.Signals] = []

    def catch(self) -> None:
        """From now on, unless this is not the main thread or somebody else already cares."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in CAUGHT:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._exit)
                self._caught.append(number)

    def _exit(self, number: int, _frame: FrameType | None) -> None:
        self.release()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise SystemExit(128 + number)

    def release(self) -> None:
        """Back to how it was."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._caught:
            if signal.getsignal(number) == self._exit:
                signal.signal(number, signal.SIG_DFL)
        self._caught.clear()
