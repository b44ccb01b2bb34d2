"""A transaction on one of SQLite's connections: executes the statements of `sql/` by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import apsw

from ...domain.events import EventType
from ...domain.flushes import FlushRules
from ...domain.messages import NewMessage
from ...domain.quotas import UNLIMITED, Quotas
from ...domain.resets import ResetPolicies
from ...errors import BadInput
from ..queries import load
from ..rows import Row, to_json
from ..transaction import NO_RESETS, Q, Transaction

STATEMENTS = load(__package__)
_INSERT_EVENT = STATEMENTS["insert_event"]
_INSERT_MESSAGE = STATEMENTS["insert_message"]
_PARAMETER = re.compile(r":(\w+)")


Bindings = Callable[[dict[str, Any]], Any]


@cache
def bindings_of(text: str) -> Bindings:
    """The function that puts values by name in the order in which SQLite numbers the parameters: to bind by
    position takes half the time. Several statements in one text are bound by name: each has its own
    numbers."""
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    if ";" in text.rstrip(";"):
        return dict
    return itemgetter(*names) if len(names) > 1 else lambda values: [values[name] for name in names]


class SQLiteTransaction(Transaction):
    __slots__ = ("_cursor", "connection")

    def __init__(
        self,
        connection: apsw.Connection,
        now: int,
        policies: ResetPolicies = NO_RESETS,
        told: list[str] | None = None,
        flushing: FlushRules | None = None,
        quotas: Quotas = UNLIMITED,
    ) -> None:
        super().__init__(now, policies, told, flushing, quotas)
        self.connection = connection
        self._cursor = connection.cursor()

    def one(self, statement: str, **values: Any) -> Row | None:
        # Read to the end, so that the statement finishes: an open one would block a COMMIT.
        rows: list[Any] = self._execute(statement, values).fetchall()
        return rows[0] if rows else None

    def all(self, statement: str, **values: Any) -> list[Row]:
        rows: list[Any] = self._execute(statement, values).fetchall()
        return rows

    def run(self, statement: str, **values: Any) -> int:
        self._execute(statement, values)
        return self.connection.changes()

    def _execute(self, statement: str, values: dict[str, Any]) -> apsw.Cursor:
        text = STATEMENTS[statement]
        try:
            return self._cursor.execute(text, bindings_of(text)(values))
        except UnicodeEncodeError:
            raise BadInput(
                "a name or text holds a lone surrogate, which cannot be stored or looked up"
            ) from None
        except OverflowError:
            raise BadInput("a number is larger than any that can be stored or looked up") from None

    def joined_bodies(self, conversation: str, first: int, last: int, most: int) -> bytes | None:
        # SQLite itself enforces the limit, so that the usual case costs no extra statement.
        connection = self.connection
        before = connection.limit(apsw.SQLITE_LIMIT_LENGTH, most)
        try:
            row = self.one(Q.bodies, conversation=conversation, first=first, last=last)
        except apsw.TooBigError:
            return None
        finally:
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, before)
        return (row[0] if row else None) or b""

    def event(
        self,
        type_: EventType,
        owner: str | None = None,
        conversation: str | None = None,
        session: str | None = None,
        turn: str | None = None,
        **data: Any,
    ) -> None:
        self._cursor.execute(
            _INSERT_EVENT, (self.now, type_, owner, conversation, session, turn, to_json(data))
        )

    def insert_messages(
        self, messages: Sequence[NewMessage], conversation: str, last_seq: int, session: str, turn: str | None
    ) -> None:
        seq = last_seq - len(messages)
        for message in messages:
            seq += 1
            self._cursor.execute(
                _INSERT_MESSAGE,
                (
                    conversation,
                    seq,
                    session,
                    turn,
                    message.role,
                    message.status,
                    to_json(message.calls) if message.calls else None,
                    message.answers,
                    self.now,
                    message.body,
                    message.inner,
                    to_json(message.own_calls) if message.own_calls else None,
                    message.extra,
                ),
            )
