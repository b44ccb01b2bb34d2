"""Reader connections to the file. After each read the log can be checkpointed again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw

from ...errors import StoreClosed, StoreFailed
from ..readers import THREADS, Readers
from ..transaction import Transaction
from .db_errors import translate

P = ParamSpec("P")
T = TypeVar("T")


class SQLiteReaders(Readers[apsw.Connection]):
    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        begin: Callable[[apsw.Connection], Transaction],
        location: str,
        on_failure: Callable[[StoreFailed], None],
    ) -> None:
        super().__init__(connect, location, on_failure)
        self._begin = begin
        self._blocking = threading.Semaphore(THREADS)
        self._idle: list[apsw.Connection] = []
        """Connections for `run_blocking` that are not in use."""

    def run_blocking(
        self, work: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """On the calling thread, with a connection that no other thread is using: changing threads would take
        longer than most reads."""
        with self._blocking:
            if self._closed:
                raise StoreClosed("the store is closed")
            with self._guard:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self._connect()
                with self._guard:
                    self._opened.append(connection)
            try:
                return self._run_on(connection, work, args, kwargs)
            finally:
                with self._guard:
                    self._idle.append(connection)

    def run_here(self, work: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
        return self._run_on(self._connection(), work, args, kwargs)

    def _run_on(
        self,
        connection: apsw.Connection,
        work: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> T:
        try:
            connection.execute("BEGIN")
            try:
                return work(self._begin(connection), *args, **kwargs)
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
        for _ in range(THREADS):  # wait for reads that run on threads of the program
            self._blocking.acquire()
        for _ in range(THREADS):
            self._blocking.release()
        for connection in self._opened:
            connection.close()
        self._opened.clear()
