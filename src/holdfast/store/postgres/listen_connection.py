"""The listen connection: one direct connection that a node keeps open, and reopens after every loss.

It carries what depends on a connection's life: the node's advisory locks (`locks.py`) and the notifications
of other nodes' commits (`watch.py`). It has its own thread, so a busy event loop does not stop it. It checks
the locks four times a second, which is also how a loss is noticed: by an error, or by a timeout. After a loss
it reconnects at once, then with backoff, never more than half a second apart, because a lock that stays free
for three seconds proves its node dead.

It must reach PostgreSQL itself. Through a transaction pooler neither locks nor notifications would stay ours.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import psycopg

from ...errors import StoreError
from ...os_support import LazyThread
from .deadlines import answering_within

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
ANSWER_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5

Connection = psycopg.Connection[Any]


class ListenClient(Protocol):
    """A user of the listen connection. Called only by its thread; psycopg errors it raises end the
    connection."""

    def connected(self, connection: Connection) -> None:
        """The connection is up, for the first time or again."""

    def look(self, connection: Connection) -> None:
        """Do periodic work on the connection: four times a second, and on request."""

    def notified(self, payloads: Sequence[str]) -> None:
        """Notifications received."""

    def lost(self) -> None:
        """The connection is down."""


class ListenConnection:
    def __init__(self, connect: Callable[[], Connection], location: str) -> None:
        """`connect` returns a direct connection in autocommit mode, or raises within a few seconds."""
        self._connect = connect
        self._location = location
        self._clients: list[ListenClient] = []
        self._guard = threading.Lock()
        self._thread = LazyThread(self._keep_up, "holdfast-line")
        self._connection: Connection | None = None
        self._pipe: tuple[int, int] | None = None
        """Socket pair: callers of `look_now` write, the thread reads."""
        self._closed = False

    def add_client(self, client: ListenClient) -> None:
        self._clients.append(client)

    def look_now(self) -> None:
        """Have every client do its periodic work now; connects if this is the first use."""
        with self._guard:
            if self._closed:
                return
            if self._pipe is None:
                self._pipe = os.pipe()
                os.set_blocking(self._pipe[1], False)
            self._thread.start()
            self._ask()

    def close(self) -> None:
        """Close the connection; its locks end with it."""
        with self._guard:
            self._closed = True
            self._ask()
        self._thread.join()
        if self._pipe is not None:
            for handle in self._pipe:
                os.close(handle)
            self._pipe = None

    def close_in_child(self) -> None:
        """After a fork: the child must not keep its parent's locks alive, nor close the connection in its
        name."""
        self._closed = True
        if self._connection is not None and not self._connection.closed:
            with suppress(OSError):
                os.close(self._connection.fileno())

    def _ask(self) -> None:
        if self._pipe is not None:
            with suppress(BlockingIOError):  # enough wake-ups are already pending
                os.write(self._pipe[1], b"!")

    # --- the thread -------------------------------------------------------------------------------------

    def _keep_up(self) -> None:
        pause, quiet = 0.0, False
        while not self._closed:
            try:
                self._connection = self._connect()
            except (psycopg.Error, StoreError) as error:
                if not quiet:
                    log.warning("no LISTEN connection to %s; it will be retried: %s", self._location, error)
                quiet = True
                pause = min(LONGEST_PAUSE_SECONDS, pause * 2 or FIRST_PAUSE_SECONDS)
                self._wait([], pause)
                continue
            if quiet:
                log.info("the LISTEN connection to %s is up again", self._location)
            quiet, pause = False, 0.0
            try:
                self._listen(self._connection)
            except psycopg.Error as error:
                if not self._closed:
                    log.info("the LISTEN connection to %s was lost, reconnecting: %s", self._location, error)
            except Exception:  # no failure may end the thread: locks and notifications would stop
                log.exception("the LISTEN connection to %s failed, reconnecting", self._location)
                self._wait([], FIRST_PAUSE_SECONDS)
            finally:
                for client in self._clients:
                    client.lost()
                self._connection.close()

    def _listen(self, connection: Connection) -> None:
        with answering_within(connection, ANSWER_SECONDS):
            for client in self._clients:
                client.connected(connection)
        looked_at, asked = 0.0, True
        while not self._closed:
            with answering_within(connection, ANSWER_SECONDS):
                if asked or time.monotonic() - looked_at >= LOOK_SECONDS:
                    looked_at = time.monotonic()
                    for client in self._clients:
                        client.look(connection)
                payloads = [notify.payload for notify in connection.notifies(timeout=0)]
            if payloads:
                for client in self._clients:
                    client.notified(payloads)
            asked = self._wait([connection.fileno()], max(0.0, looked_at + LOOK_SECONDS - time.monotonic()))

    def _wait(self, sockets: Sequence[int], seconds: float) -> bool:
        """Wait for the timeout, a notification or a wake-up request; True if it was a request."""
        assert self._pipe is not None
        asked = self._pipe[0]
        poll = select.poll()  # unlike select(), it supports descriptors above 1,024
        for handle in (asked, *sockets):
            poll.register(handle, select.POLLIN)
        if any(handle == asked for handle, _ in poll.poll(seconds * 1000)):
            os.read(asked, 4096)
            return True
        return False
