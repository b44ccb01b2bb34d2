"""Client-side deadlines: a PostgreSQL that stands still is noticed by us, for it says nothing by itself.

A network that swallows packets, a stalled proxy, a frozen server: none of them gives an error, and a query
would wait for ever. Within `answering_within` a connection has so long to answer; after that its socket is
shut down, and whoever waits for it gets the error of a lost connection. What was sent may still be carried
out by the server: as after any loss of a connection, the outcome of a commit is unknown.

One thread watches all of them, ten times a second: a deadline costs two steps in a dictionary.
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

LOOK_SECONDS = 0.1
IDLE_LOOKS = 100


class Deadlines:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._numbers = count()
        self._until: dict[int, tuple[float, socket.socket]] = {}
        """Until when, and a handle of our own on which socket, by the number of the wait."""
        self._watching = False

    @contextmanager
    def answering_within(self, connection: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
        """The connection is cut if what happens inside takes longer than this."""
        number, handle = next(self._numbers), handle_of(connection)
        with self._guard:
            self._until[number] = (time.monotonic() + seconds, handle)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="holdfast-deadlines", daemon=True).start()
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
            with self._guard:  # whoever is done closes its handle under this lock
                for until, handle in self._until.values():
                    if until < now:
                        cut(handle)
                idle = 0 if self._until else idle + 1
                if idle > IDLE_LOOKS:
                    self._watching = False
                    return

    def forget(self) -> None:
        """In a forked child: it has neither the thread nor any use for its parent's waits, and a handle that
        stayed open would keep its parent's connection up."""
        for _, handle in self._until.values():
            handle.close()
        self.__init__()  # type: ignore[misc]


def handle_of(connection: psycopg.Connection[Any]) -> socket.socket:
    """A handle of our own on a connection's socket. libpq closes its own whenever it likes, and its number
    may then be another socket's; this one stays what it is until we close it."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def cut(handle: socket.socket) -> None:
    """Shut a socket down under whoever waits for it."""
    with suppress(OSError):  # it is down already
        handle.shutdown(socket.SHUT_RDWR)


_deadlines = Deadlines()
answering_within = _deadlines.answering_within
os.register_at_fork(after_in_child=_deadlines.forget)
