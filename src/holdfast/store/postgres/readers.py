"""Reader connections to the server.

A snapshot is REPEATABLE READ, READ ONLY. A read changes nothing, so after a lost connection it is retried
on a new one until its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg

from ...errors import StoreFailed
from ..readers import Readers
from ..transaction import Transaction
from .db_errors import cannot_connect, translate
from .pipeline import ConnectionLost, Pipeline
from .statements import BEGIN_READING, COMMIT
from .transaction import Changes

T = TypeVar("T")

PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
STOP_SECONDS = 2.0
"""How long closing waits for running reads."""


class PostgresReaders(Readers[Pipeline]):
    def __init__(
        self,
        connect: Callable[[], Pipeline],
        begin: Callable[[Changes], Transaction],
        location: str,
        patience: float,
        on_failure: Callable[[StoreFailed], None],
    ) -> None:
        super().__init__(connect, location, on_failure)
        self._begin = begin
        self._patience = patience
        self._busy = 0

    def run_here(self, work: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
        with self._guard:
            self._busy += 1
        until = time.monotonic() + self._patience
        pause = PAUSE_SECONDS
        try:
            while True:
                try:
                    return self._once(work, args, kwargs)
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
        finally:
            with self._guard:
                self._busy -= 1

    def _once(self, work: Callable[..., T], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> T:
        wire = self._wire()
        changes = Changes(wire)
        changes.waiting.append((BEGIN_READING, {}))  # sent with the first query
        try:
            done = work(self._begin(changes), *args, **kwargs)
            if not changes.waiting:
                wire.exchange([(COMMIT, {})])
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
