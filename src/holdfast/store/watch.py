"""Waiting for commits, of this process and of others, without querying tables.

Commits of this process wake waiters at once. How those of others are noticed is the engine's part.

A commit of one client must not cost more the more others wait: an event loop is woken once for all its
waiters, one timer of it polls for all of them, and the waiters of one group are paced (`pause_of`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress

from ..errors import StoreError

UNPACED = 5
"""A group of so many waiters is not paced."""
PACE = 100
"""How often the waiters of one group return in a second, all together: each of them then reads or writes."""
LONGEST_PAUSE_SECONDS = 2.0


def pause_of(waiting: int) -> float:
    """Seconds that each of a group's waiters pauses after a commit, so that the group keeps to PACE."""
    return min(max(0, waiting - UNPACED) / PACE, LONGEST_PAUSE_SECONDS)


class _LoopWaiters:
    """The waiters of one event loop; changed only on that loop, under the watch's guard."""

    def __init__(self) -> None:
        self.events: dict[asyncio.Event, None] = {}
        """In the order in which they began to wait, and are woken."""
        self.timer: asyncio.TimerHandle | None = None


class ChangeWatch(ABC):
    """The store's version, and the waiters for its change."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        """Guards only what event loops and the writer thread share. Held briefly: the writer must never wait
        for a read."""
        self._waiters: dict[asyncio.AbstractEventLoop, _LoopWaiters] = {}
        self._groups: Counter[str] = Counter()
        """How many wait in each group, also while they pause."""

    @abstractmethod
    def version(self) -> int:
        """A number that differs after a commit."""

    def notice(self) -> None:
        """Wake the waiters: something was committed. Called by the writer thread."""
        with self._guard:
            loops = list(self._waiters)
        for loop in loops:
            with suppress(RuntimeError):  # it is closed: it has no waiters
                loop.call_soon_threadsafe(self._wake, loop)

    async def changed(self, since: int, timeout: float, group: str = "") -> bool:
        """Wait until the version is no longer `since`, or until the timeout.

        `group`: on whose behalf. The more waiters a group has, the longer each pauses before it returns; ""
        is never paced.
        """
        if not group:
            return await self._changed(since, timeout)
        with self._guard:
            self._groups[group] += 1
        try:
            changed = await self._changed(since, timeout)
            # Also after the timeout: hundreds that look every second cost others as much.
            if pause := pause_of(self._groups[group]):
                await asyncio.sleep(pause)
            return changed
        finally:
            with self._guard:
                self._groups[group] -= 1
                if not self._groups[group]:
                    del self._groups[group]

    async def _changed(self, since: int, timeout: float) -> bool:
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        deadline = time.monotonic() + timeout
        with self._guard:
            waiters = self._waiters.setdefault(loop, _LoopWaiters())
            waiters.events[event] = None
        try:
            while self._known_version() == since:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._set_timer(loop, waiters, since)
                event.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await event.wait()
                if event.is_set() and self._is_blind():
                    return True  # no commit of others can be noticed: the caller has to look
            return True
        finally:
            with self._guard:
                del waiters.events[event]
                if not waiters.events:
                    if waiters.timer is not None:
                        waiters.timer.cancel()
                    del self._waiters[loop]

    def _set_timer(self, loop: asyncio.AbstractEventLoop, waiters: _LoopWaiters, seen: int) -> None:
        """Have the version polled for all waiters of this loop, if commits of others do not wake them."""
        poll = self._poll_seconds()
        if poll is not None and waiters.timer is None:
            waiters.timer = loop.call_later(poll, self._poll, loop, waiters, seen)

    def _poll(self, loop: asyncio.AbstractEventLoop, waiters: _LoopWaiters, seen: int) -> None:
        waiters.timer = None
        try:
            now = self._known_version()
        except StoreError:
            self._wake(loop)  # each waiter reads the version, and raises
            return
        if now != seen or self._is_blind():
            self._wake(loop)
        if waiters.events:
            self._set_timer(loop, waiters, now)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            waiters = self._waiters.get(loop)
            events = list(waiters.events) if waiters is not None else ()
        for event in events:
            event.set()

    def _known_version(self) -> int:
        return self.version()

    @abstractmethod
    def _poll_seconds(self) -> float | None:
        """How long to wait before the version is read again; None: every commit wakes the waiters."""

    def _is_blind(self) -> bool:
        """True: commits of others cannot be noticed now, not even by reading the version."""
        return False
