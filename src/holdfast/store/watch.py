"""Waiting for commits, of this process and of others, without querying tables.

Commits of this process wake waiters at once. How those of others are noticed is the engine's part.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress


class ChangeWatch(ABC):
    """The store's version, and the waiters for its change."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        """Guards only what event loops and the writer thread share. Held briefly: the writer must never wait
        for a read."""
        self._waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @abstractmethod
    def version(self) -> int:
        """A number that differs after a commit."""

    def notice(self) -> None:
        """Wake the waiters: something was committed. Called by the writer thread."""
        with self._guard:
            waiters = list(self._waiters.items())
        for event, loop in waiters:
            with suppress(RuntimeError):  # its event loop is closed: it has no waiters
                loop.call_soon_threadsafe(event.set)

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait until the version is no longer `since`, or until the timeout."""
        event = asyncio.Event()
        deadline = time.monotonic() + timeout
        with self._guard:
            self._waiters[event] = asyncio.get_running_loop()
        try:
            while self._known_version() == since:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                poll = self._poll_seconds()
                event.clear()
                try:
                    async with asyncio.timeout(left if poll is None else min(left, poll)):
                        await event.wait()
                except TimeoutError:
                    if poll is not None and self._is_blind():
                        return True  # no commit of others can be noticed: the caller has to look
            return True
        finally:
            with self._guard:
                del self._waiters[event]

    def _known_version(self) -> int:
        return self.version()

    @abstractmethod
    def _poll_seconds(self) -> float | None:
        """How long to wait before the version is read again; None: every commit wakes the waiters."""

    def _is_blind(self) -> bool:
        """True: commits of others cannot be noticed now, not even by reading the version."""
        return False
