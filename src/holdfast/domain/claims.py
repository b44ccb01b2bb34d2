"""A node's right to compact a conversation, and what becomes of it.

Compacting takes as long as a summary does, and nobody must wait for that: so it is not done under the
conversation's lease. The claim keeps two nodes from doing the same work, its token fences a late one, and
only the swap at the end asks whether the conversation is still the one that was summarised. A turn whose own
context does not fit takes the claim over: it cannot wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .budgets import Measured
from .compaction import Entry, Failure, Trigger
from .leases import Lease
from .sessions import Session


@dataclass(frozen=True, slots=True)
class Claim:
    conversation_id: str
    session_id: str
    owner: str
    node_id: str
    token: int
    failures: int = 0
    """In a row, before this one."""
    retry_at: datetime | None = None
    """Before which, after those, no summary is asked for again."""
    cooling: bool = False
    """Is that still to come?"""


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """Not now. Nothing was written."""

    reason: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a model last reported of a conversation's context: which session's, and which model."""

    measured: Measured
    session_id: str
    model: str | None


@dataclass(frozen=True, slots=True)
class Outline:
    """A session's context, message by message, as it was at one moment."""

    session: Session
    revision: int
    entries: Sequence[Entry]
    report: Report | None = None

    @property
    def open_part(self) -> int:
        """The place of the view's open-ended part."""
        return len(self.session.view.parts) - 1


@dataclass(frozen=True, slots=True)
class Facts:
    """What is told of a compaction: numbers, never text."""

    why: Trigger
    tokens_before: int
    tokens_after: int
    messages: int
    """How many have left the context."""
    failure: Failure | None = None
    """Why they were only left out: there was no summary, and without that it would not have fitted."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The conversation goes on in this session; the turn's lease, if there is one, with it."""

    session: Session
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class CompactionWaits:
    """A turn holds the conversation; nothing was written. Try again when it has ended."""

    conversation_id: str
    holder: str
    turn_id: str | None


@dataclass(frozen=True, slots=True)
class CompactionOutdated:
    """The conversation is not what was summarised any more, or others compact it; nothing was written."""

    reason: str


CompactionOutcome = Compacted | CompactionWaits | CompactionOutdated
