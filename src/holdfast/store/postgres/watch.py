"""Notices commits, of this process and of other nodes, without querying tables.

Every group of writes ends with a notification that all nodes receive on their listen connection
(`listen_connection.py`) as soon as it is committed. The version counts the commits noticed here: those of
this process at once, those of others when their notification arrives, some milliseconds later. While the
connection is down no notification arrives: then waiters are woken a few times a second, to check for
themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...domain.ids import new_id
from ..queries import load
from ..watch import ChangeWatch
from .listen_connection import Connection, ListenConnection

STATEMENTS = load(__package__)

POLL_SECONDS = 0.25


class NotifyChangeWatch(ChangeWatch):
    def __init__(self, line: ListenConnection) -> None:
        super().__init__()
        self.tag = new_id("tag")
        """Payload of our own notifications, which were already counted before they arrive."""
        self._line = line
        self._version = 0
        self._listening = False
        line.add_client(self)

    def version(self) -> int:
        """A number that differs after a commit."""
        if not self._listening:
            self._line.look_now()
        return self._version

    def notice(self) -> None:
        """Record a commit, by this process or by another that notified us."""
        with self._guard:
            self._version += 1
        super().notice()

    def _known_version(self) -> int:
        return self._version

    def _poll_seconds(self) -> float | None:
        return None if self._listening else POLL_SECONDS

    def _is_blind(self) -> bool:
        return not self._listening

    # --- on the listen connection's thread --------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        connection.execute(STATEMENTS["listen"])
        self._listening = True
        self.notice()  # commits may have been missed while disconnected

    def look(self, connection: Connection) -> None:
        """Nothing to do: notifications are pushed."""

    def notified(self, payloads: Sequence[str]) -> None:
        if any(payload != self.tag for payload in payloads):
            self.notice()

    def lost(self) -> None:
        self._listening = False
        self.notice()
