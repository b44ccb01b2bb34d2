"""Virtual time, and event loops that run in it.

There is one clock for the whole world. It moves only when no loop has anything to do, and then straight to
the next timer; so a simulated day takes as long as what happens in it. `monotonic` does not advance while the
machine sleeps; the wall clock does, and may be set to anything.

Every simulated program has its own event loop. The world lets one of them take one step at a time, and so it
can stop a program (its loop is not stepped) or kill it (its loop is discarded).
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)


class Clock:
    def __init__(self, start: datetime = EPOCH) -> None:
        self.monotonic = 1000.0
        self._wall_at_zero = start - timedelta(seconds=self.monotonic)

    def wall(self) -> datetime:
        return self._wall_at_zero + timedelta(seconds=self.monotonic)

    def move_to(self, monotonic: float) -> None:
        self.monotonic = max(self.monotonic, monotonic)

    def set_wall_forward(self, seconds: float) -> None:
        """Back, if negative. Also what a machine's sleep looks like: only the wall clock has gone on."""
        self._wall_at_zero += timedelta(seconds=seconds)


class _NoSockets:
    """A selector that has nothing to wait for: there are no sockets in this world."""

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def close(self) -> None: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, but its time is the world's, it never waits, and threads are done without.

    What a program gives to a thread is done at once, and it hears of it after `latency()`: by then what it
    was told may no longer be so, as with real threads.
    """

    _ready: Any
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _run_once: Callable[[], None]
    _asyncgen_firstiter_hook: Any
    _asyncgen_finalizer_hook: Any

    def __init__(self, clock: Clock, latency: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._latency = latency
        self._selector = _NoSockets()
        self._clock_resolution = 1e-6  # a float that counts a year's seconds has no finer one

    def time(self) -> float:
        return self._clock.monotonic

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        try:
            result, error = func(*args), None
        except Exception as raised:
            result, error = None, raised

        def tell() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._latency(), tell)
        return future

    # --- for the world ------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """When it next has something to do; None: never, unless somebody else gives it something."""
        if self._ready:
            return 0.0
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        return timers[0]._when if timers else None

    def step(self) -> None:
        """Everything that is ready now, once: the inside of `run_forever`."""
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._asyncgen_firstiter_hook, self._asyncgen_finalizer_hook)
        asyncio._set_running_loop(self)
        try:
            self._run_once()
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
