"""Reader connections to the file. After each read the log can be checkpointed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import apsw

from ...errors import StoreFailed
from ..readers import Readers
from ..transaction import Transaction
from .db_errors import translate

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

    def run_here(self, work: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
        connection = self._connection()
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
        for connection in self._opened:
            connection.close()
        self._opened.clear()
