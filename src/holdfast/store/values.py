"""Values of the store's interface that are neither domain nor SQL. Results that surfaces show are domain
values (`pages`, `figures`, `maintenance`), named here too because they belong to the store's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..domain.figures import Figures, FlushFigures, OwnerUsage, Statistics
from ..domain.flushes import FlushPolicy
from ..domain.maintenance import Finding, Pruned
from ..domain.notices import Notice
from ..domain.pages import Found, FoundPage, Page, Resolved, SearchFilter, SessionFilter
from ..errors import BadInput

__all__ = [
    "Claimed",
    "Figures",
    "Finding",
    "FlushFigures",
    "Found",
    "FoundPage",
    "Held",
    "HitRange",
    "Orphans",
    "OwnerUsage",
    "Page",
    "Pruned",
    "Resolved",
    "Retention",
    "SearchFilter",
    "SessionFilter",
    "Statistics",
    "StorePolicy",
]

LARGEST_PAGE = 1000
LARGEST_LIST = 1_000_000


def check_limit(limit: int, largest: int = LARGEST_PAGE) -> None:
    """Raises BadInput unless a page may have this many items."""
    if not 1 <= limit <= largest:
        raise BadInput(f"limit must be between 1 and {largest}, not {limit}")


@dataclass(frozen=True, slots=True)
class HitRange:
    """Which hits of a search are read: without the first `skip`, at most `limit`. `count`: up to how many
    are counted."""

    skip: int
    limit: int
    count: int

    @property
    def needed(self) -> int:
        """How many hits must be found: one more than the page ends with, and than are counted."""
        return max(self.skip + self.limit, self.count) + 1


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
    """Since their last activity; None: forever."""


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """Policies of the whole store, independent of the acting node's settings. None: no node has recorded that
    part, and a node's own settings apply."""

    flush: FlushPolicy | None = None
    retention: Retention | None = None
    resets: str | None = None
    """Stamp of the last server's reset policies. Programs with other policies do not reschedule its
    sessions."""
