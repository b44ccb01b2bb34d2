"""Reader connections: a few threads, each with its own, so that reads never wait for the writer.

Every read is short: one snapshot, all rows fetched, then the log can be checkpointed again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import apsw

from ...errors import StoreClosed, StoreFailed
from .db_errors import translate

T = TypeVar("T")


class SQLiteReaders:
    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        location: str,
        on_failure: Callable[[StoreFailed], None],
        threads: int = 4,
    ) -> None:
        self._connect = connect
        self._location = location
        self._on_failure = on_failure
        self._local = threading.local()
        self._opened: list[apsw.Connection] = []
        self._guard = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-reader")
        self._closed = False

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on one of the connections, inside one snapshot."""
        if self._closed:
            raise StoreClosed("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.run_here, work)

    def run_here(self, work: Callable[[apsw.Connection], T]) -> T:
        """The same on the calling thread, blocking; each thread has its own connection."""
        connection = self._connection()
        try:
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")
        except apsw.Error as error:
            # An error of one statement concerns only this caller; only an untrustworthy file stops the store.
            trouble = translate(error, self._location, connection.system_errno)
            if isinstance(trouble, StoreFailed):
                self._on_failure(trouble)
            raise trouble from error

    def _connection(self) -> apsw.Connection:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            with self._guard:
                self._opened.append(connection)
        return connection

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=True)
        for connection in self._opened:
            connection.close()
        self._opened.clear()
