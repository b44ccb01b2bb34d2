"""What a store gives and takes that is neither domain nor SQL: places, pages, filters, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from ..domain.conversations import Conversation
from ..domain.flushes import FlushPolicy
from ..domain.messages import Message
from ..domain.notices import Notice
from ..domain.sessions import Session
from ..domain.turns import TurnStatus


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where a name leads: the conversation, its newest session, and the session that was named."""

    conversation: Conversation
    tip: Session
    addressed: str | None
    """The id of the session that was named, if one was; other than the tip's when it has gone on."""


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
    """A part of the title or key."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a node holds according to the store: leases, by conversation, with their turns."""

    leases: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Notices that are to be sent now, each with how often that has been tried, this time included."""

    notices: Sequence[tuple[Notice, int]]
    given_up: int
    """How many are too old now, though they have been tried."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """What nodes that are gone have left behind."""

    nodes: Sequence[str]
    conversations: Sequence[str]
    sessions: Sequence[str]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is only kept for a while is kept. Nodes that are gone go with their events."""

    drafts: timedelta
    events: timedelta
    requests: timedelta
    conversations: timedelta | None = None
    """Since somebody last spoke in them; None: for ever."""


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """What the whole store goes by, whatever the settings of the node that happens to act. None: no node has
    recorded that part, and a node's own settings count."""

    flush: FlushPolicy | None = None
    retention: Retention | None = None
    resets: str | None = None
    """The stamp of the last server's reset policies. Programs with others do not date its sessions anew."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many of each were dropped."""

    drafts: int = 0
    events: int = 0
    requests: int = 0
    nodes: int = 0
    conversations: int = 0
    spared: int = 0
    """Conversations old enough, kept because something still goes on in them."""
    more: bool = False
    """True: the pass was full for one kind at least, so there may be more to drop."""

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
    """A broken invariant: which, how often, and where (a few examples)."""

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
    """Of the bodies of its messages."""


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
    """How many turns ended in each of several equal spans of time, oldest first, by their status."""

    since: datetime
    step: timedelta
    ended: Sequence[Mapping[TurnStatus, int]]


@dataclass(frozen=True, slots=True)
class FlushFigures:
    """How much there is to flush."""

    pending: int
    running: int
    dead: int
    """Given up: only a person takes them up again."""
    coming: int
    """Sessions that are due to be reset: most of them will be flushed then."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a store can say about itself at any time, because it costs next to nothing."""

    open_sessions: int
    running_turns: int
    messages: int
    """Ever written, also those deleted since."""
    events: int
    undelivered_notices: int
    log_bytes: int
    """Written, but not yet moved to its final place."""
    unindexed: int | None
    """Messages that the search index does not hold yet; None: it cannot tell."""
