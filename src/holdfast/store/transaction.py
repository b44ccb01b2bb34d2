"""The transaction interface for store functions: statements by name, the time, and events.

A writing function checks first and writes afterwards: while it has changed nothing it may refuse by raising
one of our errors, and the group it runs in continues without it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..domain.events import EventType
from ..domain.flushes import FlushRules
from ..domain.messages import NewMessage
from ..domain.quotas import UNLIMITED, Quotas
from ..domain.resets import ResetPolicies
from .rows import Row

NO_RESETS = ResetPolicies()


class Names:
    """The names of statements, as attributes: `Q.take_lease`. A test verifies that every engine has each of
    them."""

    def __getattr__(self, name: str) -> str:
        self.__dict__[name] = name = sys.intern(name)
        return name


Q = Names()


class Transaction(ABC):
    """One snapshot to read from, or one atomic set of changes."""

    __slots__ = ("erased", "flushing", "now", "policies", "quotas", "told")

    def __init__(
        self,
        now: int,
        policies: ResetPolicies = NO_RESETS,
        told: list[str] | None = None,
        flushing: FlushRules | None = None,
        quotas: Quotas = UNLIMITED,
    ) -> None:
        self.quotas = quotas
        self.now = now
        self.policies = policies
        self.flushing = flushing
        """Rules for flushing sessions that end; None: none is flushed."""
        self.told = [] if told is None else told
        """Log lines to write after the commit."""
        self.erased = False
        """True: text was deleted here. An engine must then remove other copies of it, such as in its log."""

    @abstractmethod
    def one(self, statement: str, **values: Any) -> Row | None:
        """The first row, or None."""

    @abstractmethod
    def all(self, statement: str, **values: Any) -> list[Row]: ...

    @abstractmethod
    def run(self, statement: str, **values: Any) -> int:
        """Run a statement; returns how many rows it changed."""

    def run_many(self, statement: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """The same statement once per row. An engine may override it with a faster way."""
        for values in rows:
            self.run(statement, **values)

    @abstractmethod
    def joined_bodies(self, conversation: str, first: int, last: int, most: int) -> bytes | None:
        """The bodies of a span of messages, joined by commas in one value; None if that would be more than
        `most` bytes. One statement, which reads nothing twice."""

    @abstractmethod
    def event(
        self,
        type_: EventType,
        owner: str | None = None,
        conversation: str | None = None,
        session: str | None = None,
        turn: str | None = None,
        **data: Any,
    ) -> None: ...

    @abstractmethod
    def insert_messages(
        self, messages: Sequence[NewMessage], conversation: str, last_seq: int, session: str, turn: str | None
    ) -> None:
        """Store messages whose seqs, up to `last_seq`, were allocated in this transaction."""
