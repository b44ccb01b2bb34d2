"""Notices commits, of this process and of other nodes, without querying tables.

Every group of writes ends with a notification that all nodes receive on their listen connection
(`listen_connection.py`) as soon as it is committed. The version counts the commits noticed here: those of
this process at once, those of others when their notification arrives, some milliseconds later. While the
connection is down no notification arrives: then waiters are woken a few times a second, to check for
themselves.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from ...domain.ids import new_id
from ..queries import load
from .listen_connection import Connection, ListenConnection

STATEMENTS = load(__package__)

POLL_SECONDS = 0.25


class NotifyChangeWatch:
    def __init__(self, line: ListenConnection) -> None:
        self.tag = new_id("tag")
        """Payload of our own notifications, which were already counted before they arrive."""
        self._line = line
        self._version = 0
        self._listening = False
        self._guard = threading.Lock()
        self._waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        line.carry(self)

    def version(self) -> int:
        """A number that differs after a commit."""
        if not self._listening:
            self._line.look_now()
        return self._version

    def notice(self) -> None:
        """Record a commit, by this process or by another that notified us."""
        with self._guard:
            self._version += 1
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
            while self._version == since:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                deaf = not self._listening
                event.clear()
                try:
                    async with asyncio.timeout(min(left, POLL_SECONDS) if deaf else left):
                        await event.wait()
                except TimeoutError:
                    if deaf and not self._listening:
                        return True  # no notification can arrive: check
            return True
        finally:
            with self._guard:
                del self._waiters[event]

    # --- on the listen connection's thread --------------------------------------------------------------

    def dialled(self, connection: Connection) -> None:
        connection.execute(STATEMENTS["listen"])
        self._listening = True
        self.notice()  # commits may have been missed while disconnected

    def look(self, connection: Connection) -> None:
        """Nothing to do: notifications are pushed."""

    def heard(self, payloads: Sequence[str]) -> None:
        if any(payload != self.tag for payload in payloads):
            self.notice()

    def lost(self) -> None:
        self._listening = False
        self.notice()
