"""Client-side deadlines: detect a PostgreSQL that stops answering without an error.

A network that drops packets, a stalled proxy, a frozen server: none of them gives an error, and a query
would wait forever. Within `answering_within` a connection must answer before the deadline; after that its
socket is shut down, and the waiting thread gets the error of a lost connection. The server may still execute
what was sent: as after any lost connection, the outcome of a commit is unknown.

One thread watches all connections, ten times a second: a deadline costs two dictionary operations.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import psycopg

from ...os_support import LazyThread

LOOK_SECONDS = 0.1
IDLE_LOOKS = 100


class Deadlines:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._numbers = count()
        self._until: dict[int, tuple[float, socket.socket]] = {}
        """Deadline and our own handle of the socket, by wait number."""
        self._watching: LazyThread | None = None

    @contextmanager
    def answering_within(self, connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
        """Cut the connection if the block takes longer than this."""
        number, handle = next(self._numbers), handle_of(connection)
        with self._guard:
            self._until[number] = (time.monotonic() + seconds, handle)
            if self._watching is None:
                self._watching = LazyThread(self._watch, "holdfast-deadlines")
            self._watching.start()  # if it cannot be started, the next wait tries again
        try:
            yield
        finally:
            with self._guard:
                self._until.pop(number, None)
                handle.close()

    def _watch(self) -> None:
        idle = 0
        while True:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            with self._guard:  # a finished wait closes its handle under this lock
                for until, handle in self._until.values():
                    if until < now:
                        cut(handle)
                idle = 0 if self._until else idle + 1
                if idle > IDLE_LOOKS:
                    self._watching = None
                    return

    def forget(self) -> None:
        """In a forked child: it has neither the thread nor a use for its parent's waits, and a handle left
        open would keep its parent's connection up."""
        for _, handle in self._until.values():
            handle.close()
        self.__init__()  # type: ignore[misc]


def handle_of(connection: psycopg.Connection[Any]) -> socket.socket:
    """Our own handle of a connection's socket. libpq may close its own at any time, and its number may then
    be reused for another socket; ours stays valid until we close it."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def cut(handle: socket.socket) -> None:
    """Shut a socket down, so that the thread waiting for it gets an error."""
    with suppress(OSError):  # already down
        handle.shutdown(socket.SHUT_RDWR)


_deadlines = Deadlines()
answering_within = _deadlines.answering_within
os.register_at_fork(after_in_child=_deadlines.forget)
