"""Notices commits, of this process and of others, without querying tables.

SQLite keeps a data version that changes with every commit of another connection; one connection here writes
nothing and only reads that number. Commits of this process wake waiters at once, those of others within a
tenth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

from ...errors import StoreFailed
from ..watch import ChangeWatch
from .db_errors import translate

POLL_SECONDS = 0.1


class FileChangeWatch(ChangeWatch):
    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        location: str,
        on_failure: Callable[[StoreFailed], None],
    ) -> None:
        super().__init__()
        self._connect = connect
        self._location = location
        self._on_failure = on_failure
        self._connection: apsw.Connection | None = None
        self._connecting = threading.Lock()

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

    def _poll_seconds(self) -> float:
        return POLL_SECONDS

    def close(self) -> None:
        with self._connecting:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
