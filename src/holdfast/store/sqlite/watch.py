"""Notices commits, of this process and of others, without querying tables.

SQLite keeps a data version that changes with every commit of another connection; one connection here writes
nothing and only reads that number. Commits of this process wake waiters at once, those of others within a
tenth of a second.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import apsw

from ...errors import StoreFailed
from .db_errors import translate

POLL_SECONDS = 0.1


class FileChangeWatch:
    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        location: str,
        on_failure: Callable[[StoreFailed], None],
    ) -> None:
        self._connect = connect
        self._location = location
        self._on_failure = on_failure
        self._connection: apsw.Connection | None = None
        self._connecting = threading.Lock()
        self._guard = threading.Lock()
        """Guards only `_waiters`, which event loops and the writer thread share. Held briefly: the writer
        must never wait for a read."""
        self._waiters: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def version(self) -> int:
        """A number that differs after a commit."""
        with self._connecting:
            if self._connection is None:
                self._connection = self._connect()
            try:
                found = self._connection.execute("PRAGMA data_version").get
            except apsw.Error as error:
                trouble = translate(error, self._location, self._connection.system_errno)
                if isinstance(trouble, StoreFailed):
                    self._on_failure(trouble)
                raise trouble from error
        assert isinstance(found, int)
        return found

    def notice(self) -> None:
        """Record a commit of this process. Called by the writer thread."""
        with self._guard:
            waiters = list(self._waiters.items())
        for event, loop in waiters:
            with suppress(RuntimeError):  # its event loop is closed: it has no waiters
                loop.call_soon_threadsafe(event.set)

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait until the version is no longer `since`, or until the timeout."""
        event = asyncio.Event()
        deadline = time.monotonic() + timeout
        loop = asyncio.get_running_loop()
        with self._guard:
            self._waiters[event] = loop
        try:
            while self.version() == since:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                event.clear()
                try:
                    async with asyncio.timeout(min(left, POLL_SECONDS)):
                        await event.wait()
                except TimeoutError:
                    continue
            return True
        finally:
            with self._guard:
                del self._waiters[event]

    def close(self) -> None:
        with self._connecting:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
