"""Turns signals into an orderly exit or stop, only where the program has no handler of its own.

SIGTERM and SIGHUP raise SystemExit in the main thread, so every `with` block is left and the node ends or
releases what it holds. Python already does that for SIGINT. A second signal ends the process immediately.
SIGTSTP (Ctrl-Z) stops a program of ours between two transactions. SIGSTOP cannot be handled.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Any, TypeVar

CAUGHT = (signal.SIGTERM, signal.SIGHUP)


class ExitSignals:
    def __init__(self) -> None:
        self._caught: list[signal.Signals] = []

    def catch(self) -> None:
        """Install the handlers; does nothing outside the main thread or for a signal that has a handler."""
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
        """Restore the default handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._caught:
            if signal.getsignal(number) == self._exit:
                signal.signal(number, signal.SIG_DFL)
        self._caught.clear()


class SuspendSignal:
    """Ctrl-Z while `paused` holds back writes: a stopped process that is inside a transaction would keep
    every other process from writing until it continues."""

    def __init__(self, paused: Callable[[], AbstractContextManager[None]]) -> None:
        self._paused = paused

    def catch(self) -> None:
        """Install the handler; does nothing outside the main thread or if there is one."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspend)

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        with self._paused():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)  # returns when the process continues
            signal.signal(number, self._suspend)

    def release(self) -> None:
        """Restore the default handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTSTP) == self._suspend:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)


T = TypeVar("T")


async def ended(task: asyncio.Future[Any]) -> None:
    """Wait until the task is done; cancelling the caller does not cancel it. `asyncio.shield` does the same,
    at several times the cost."""
    waiter = asyncio.get_running_loop().create_future()
    task.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
    await waiter


async def through(work: Coroutine[Any, Any, T]) -> T:
    """Await this to its end; a cancellation meanwhile is ignored."""
    task = asyncio.get_running_loop().create_task(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await ended(task)
    return task.result()


async def finished(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Await this to its end, even if the task is cancelled meanwhile; the cancellation is raised
    afterwards."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise
