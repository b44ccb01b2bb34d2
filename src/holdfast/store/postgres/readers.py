"""Reader connections: a few threads, each with its own, so that reads never wait for the writer.

Every read is short: one snapshot (REPEATABLE READ, READ ONLY), all rows fetched. A read changes nothing, so
after a lost connection it is retried on a new one until its deadline.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg

from ...errors import StoreClosed, StoreFailed
from .db_errors import cannot_connect, translate
from .pipeline import ConnectionLost, Pipeline
from .statements import BEGIN_READING, COMMIT
from .transaction import Changes

T = TypeVar("T")

PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
STOP_SECONDS = 2.0
"""How long closing waits for running reads."""


class PostgresReaders:
    def __init__(
        self,
        connect: Callable[[], Pipeline],
        location: str,
        patience: float,
        on_failure: Callable[[StoreFailed], None],
        threads: int = 4,
    ) -> None:
        self._connect = connect
        self._location = location
        self._patience = patience
        self._on_failure = on_failure
        self._local = threading.local()
        self._opened: list[Pipeline] = []
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-reader")
        self._closed = False
        self._busy = 0

    async def run(self, work: Callable[[Changes], T]) -> T:
        """Run `work` on one of the connections, inside one snapshot."""
        if self._closed:
            raise StoreClosed("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.run_here, work)

    def run_here(self, work: Callable[[Changes], T]) -> T:
        """The same on the calling thread, blocking; each thread has its own connection."""
        with self._guard:
            self._busy += 1
        try:
            return self._patiently(work)
        finally:
            with self._guard:
                self._busy -= 1

    def _patiently(self, work: Callable[[Changes], T]) -> T:
        until = time.monotonic() + self._patience
        pause = PAUSE_SECONDS
        while True:
            try:
                return self._once(work)
            except psycopg.Error as error:
                lost = isinstance(error, ConnectionLost) or cannot_connect(error)
                if lost and not self._closed and time.monotonic() < until:
                    time.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                    continue
                trouble = translate(error, self._location)
                if isinstance(trouble, StoreFailed):
                    self._on_failure(trouble)
                raise trouble from error

    def _once(self, work: Callable[[Changes], T]) -> T:
        wire = self._wire()
        changes = Changes(wire)
        changes.waiting.append((BEGIN_READING, []))  # sent with the first query
        try:
            done = work(changes)
            if not changes.waiting:
                wire.exchange([(COMMIT, [])])
            return done
        except BaseException:
            if not wire.lost:
                wire.roll_back()
            raise

    def _wire(self) -> Pipeline:
        wire: Pipeline | None = getattr(self._local, "wire", None)
        if wire is None or wire.lost:
            wire = self._local.wire = self._connect()
            with self._guard:
                self._opened = [known for known in self._opened if not known.lost]
                self._opened.append(wire)
        return wire

    def close(self) -> None:
        """Close. Reads are short; those waiting for a silent server are cut."""
        self._closed = True
        self._pool.shutdown(wait=False)
        until = time.monotonic() + STOP_SECONDS
        while self._busy and time.monotonic() < until:
            time.sleep(0.005)
        for wire in self._opened:
            wire.cut()
        self._pool.shutdown(wait=True)
        for wire in self._opened:
            wire.close()
        self._opened.clear()
