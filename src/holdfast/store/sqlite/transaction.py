"""A transaction as the writing functions see it: queries by name, the time, and events.

A writing function checks first and writes afterwards: as long as it has changed nothing it may
refuse by raising one of our errors, and the group it runs in goes on without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from ...domain.events import EventType
from ...domain.messages import NewMessage
from ...domain.resets import ResetPolicies
from ...errors import BadInput
from .queries import load
from .rows import Row, to_json

Q = load()
NO_RESETS = ResetPolicies()


class Transaction:
    __slots__ = ("_cursor", "connection", "now", "policies", "told")

    def __init__(
        self,
        connection: apsw.Connection,
        now: int,
        policies: ResetPolicies = NO_RESETS,
        told: list[str] | None = None,
    ) -> None:
        self.connection = connection
        self.now = now
        self.policies = policies
        self.told = [] if told is None else told
        """Lines for the log, once this is committed."""
        self._cursor = connection.cursor()

    def one(self, statement: str, **values: Any) -> Row | None:
        """The first row, or None."""
        # Read to the end, so that the statement is over: one left open would hold up a COMMIT.
        rows: list[Any] = self._execute(statement, values).fetchall()
        return rows[0] if rows else None

    def all(self, statement: str, **values: Any) -> list[Row]:
        rows: list[Any] = self._execute(statement, values).fetchall()
        return rows

    def run(self, statement: str, **values: Any) -> int:
        """How many rows it changed."""
        self._execute(statement, values)
        return self.connection.changes()

    def _execute(self, statement: str, values: dict[str, Any]) -> apsw.Cursor:
        try:
            return self._cursor.execute(statement, values)
        except UnicodeEncodeError:
            raise BadInput(
                "a name or text holds a lone surrogate, which cannot be stored or looked up"
            ) from None
        except OverflowError:
            raise BadInput("a number is larger than any that can be stored or looked up") from None

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
            Q.insert_event, (self.now, type_.value, owner, conversation, session, turn, to_json(data))
        )

    def insert_messages(
        self, messages: Sequence[NewMessage], conversation: str, last_seq: int, session: str, turn: str | None
    ) -> None:
        """Store messages whose numbers, up to `last_seq`, have been taken in this transaction."""
        seq = last_seq - len(messages)
        for message in messages:
            seq += 1
            self._cursor.execute(
                Q.insert_message,
                (
                    conversation,
                    seq,
                    session,
                    turn,
                    message.role,
                    message.status.value,
                    to_json(message.calls) if message.calls else None,
                    message.answers,
                    self.now,
                    message.body,
                    message.inner,
                    to_json(message.own_calls) if message.own_calls else None,
                ),
            )
