"""Values of the store's interface that are neither domain nor SQL: resolved names, pages, filters,
figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeAlias, TypeVar

from ..domain.conversations import Conversation
from ..domain.flushes import FlushPolicy
from ..domain.messages import Message
from ..domain.notices import Notice
from ..domain.sessions import Session
from ..domain.turns import TurnStatus


@dataclass(frozen=True, slots=True)
class Resolved:
    """Result of resolving a name: the conversation, its newest session, and the session that was named."""

    conversation: Conversation
    tip: Session
    addressed: str | None
    """Id of the session that was named, if any; differs from the tip's when the conversation moved on."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: Sequence[T]
    has_more: bool


@dataclass(frozen=True, slots=True)
class SessionFilter:
    owner: str | None
    ended: bool | None = None
    source: str | None = None
    key: str | None = None
    title: str | None = None
    """A substring of the title or key."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a node holds according to the store: leases, by conversation, with their turns."""

    leases: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Notices to send now, each with its number of tries, this one included."""

    notices: Sequence[tuple[Notice, int]]
    given_up: int
    """How many were given up as too old although they had been tried."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """Leases and attached sessions of nodes that are gone."""

    nodes: Sequence[str]
    conversations: Sequence[str]
    sessions: Sequence[str]


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention times of temporary data. Rows of nodes that are gone are deleted with their events."""

    drafts: timedelta
    events: timedelta
    requests: timedelta
    conversations: timedelta | None = None
    """Since their last activity; None: for ever."""


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """Policies of the whole store, independent of the acting node's settings. None: no node has recorded that
    part, and a node's own settings apply."""

    flush: FlushPolicy | None = None
    retention: Retention | None = None
    resets: str | None = None
    """Stamp of the last server's reset policies. Programs with other policies do not reschedule its
    sessions."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many of each kind were deleted."""

    drafts: int = 0
    events: int = 0
    requests: int = 0
    nodes: int = 0
    conversations: int = 0
    spared: int = 0
    """Conversations past their retention, kept because they are still in use."""
    more: bool = False
    """True: the limit was reached for at least one kind, so there may be more to delete."""

    @property
    def anything(self) -> bool:
        return bool(self.drafts or self.events or self.requests or self.nodes or self.conversations)


@dataclass(frozen=True, slots=True)
class Found:
    """A search hit."""

    message: Message
    snippet: str
    key: str | None
    title: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated invariant: which, how often, and where (a few examples)."""

    invariant: str
    count: int
    examples: Sequence[str] = ()
    repairable: bool = False


@dataclass(frozen=True, slots=True)
class OwnerUsage:
    """How much an owner has stored."""

    owner: str
    conversations: int
    bytes: int
    """Bytes of its message bodies."""


Progress: TypeAlias = Callable[[int, int], None]
"""Called with how much is done, and the total."""


def no_progress(done: int, whole: int) -> None:
    """Shows nothing."""


@dataclass(frozen=True, slots=True)
class Statistics:
    sessions: int
    open: int
    messages: int
    conversations: int
    end_reasons: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pulse:
    """How many turns ended in each of several equal time spans, oldest first, by status."""

    since: datetime
    step: timedelta
    ended: Sequence[Mapping[TurnStatus, int]]


@dataclass(frozen=True, slots=True)
class FlushFigures:
    """Size of the flush backlog."""

    pending: int
    running: int
    dead: int
    """Dead letters: only a person retries them."""
    coming: int
    """Sessions due for a reset: most of them will then be flushed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a store that are cheap to read at any time."""

    open_sessions: int
    running_turns: int
    messages: int
    """Ever written, including deleted ones."""
    events: int
    undelivered_notices: int
    log_bytes: int
    """Size of the write-ahead log: written, not yet checkpointed."""
    unindexed: int | None
    """Messages that are not indexed for search yet; None: unknown."""
