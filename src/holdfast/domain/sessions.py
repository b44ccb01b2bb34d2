"""Sessions: one stretch of context within a conversation.

A session is opened, then ended with one reason, and never reopened:

    (new) ──open──► open ──end(reason)──► ended

What a reader sees of an open one depends on whether somebody living stands behind it: `active` (a
turn is running and its node lives), `idle`, or `orphaned` (its node is dead, not yet reaped).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ..errors import BadInput, IllegalTransition
from .nodes import Liveness
from .views import View


class Edge(StrEnum):
    """How a session came from an earlier one. `fork` and `subagent` open a new conversation."""

    COMPACTION = "compaction"
    RESET = "reset"
    RESUME = "resume"
    FORK = "fork"
    SUBAGENT = "subagent"


class EndReason(StrEnum):
    CLOSED = "closed"
    COMPLETED = "completed"
    NEW = "new"
    IDLE = "idle"
    DAILY = "daily"
    COMPACTION = "compaction"
    REAPED = "reaped"


IMPORTED_PREFIX = "hermes:"
FRESH_AFTER = {EndReason.IDLE, EndReason.DAILY, EndReason.NEW}


class SessionState(StrEnum):
    ACTIVE = "active"
    IDLE = "idle"
    ORPHANED = "orphaned"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Session:
    """A session with what its conversation says about it."""

    id: str
    conversation_id: str
    owner: str
    key: str | None
    title: str | None
    source: str
    attached: bool
    node_id: str | None
    """The node an attached session lives and dies with."""
    edge: Edge | None
    parent_id: str | None
    tip_id: str
    ordinal: int
    """Its place in the conversation's line, from 1."""
    opened_at: datetime
    last_activity_at: datetime
    next_due_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    model: str | None
    view: View
    first_seq: int
    last_seq: int
    """Its messages are those numbered first_seq to last_seq; none yet if last_seq is the smaller."""
    running_turn: str | None
    running_node: str | None
    """The turn that holds the conversation's lease, and its node, if this session is the tip."""
    host: str | None = None
    last_heartbeat_at: datetime | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    fresh_by: str | None = None
    """`idle` or `daily`, if such a reset made it fresh."""
    fresh_since: datetime | None = None
    """When its context began or was taken up on purpose: before it was opened, if it only goes on."""

    @property
    def since(self) -> datetime:
        """From when on its policy counts."""
        return self.fresh_since or self.opened_at

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def message_count(self) -> int:
        return max(0, self.last_seq - self.first_seq + 1)

    @property
    def answering_node(self) -> str | None:
        """The node whose life this session hangs on right now: its turn's, else the one it is attached to."""
        return self.running_node or (self.node_id if self.attached else None)


def state_of(session: Session, liveness: Liveness) -> SessionState:
    """What a reader is told, given whether the session's answering node lives."""
    if session.ended:
        return SessionState.ENDED
    if session.answering_node is not None and liveness is Liveness.DEAD:
        return SessionState.ORPHANED
    return SessionState.ACTIVE if session.running_turn else SessionState.IDLE


def check_end(session: Session, reason: str) -> None:
    """The one place that says when a session may end, and with what words."""
    if session.ended:
        raise IllegalTransition(f"session {session.id} has already ended ({session.end_reason})")
    if reason not in set(EndReason) and not reason.startswith(IMPORTED_PREFIX):
        raise BadInput(f"{reason!r} is no end reason; use one of {', '.join(EndReason)}")


@dataclass(frozen=True, slots=True)
class Opening:
    """A session to be opened: its edge from the tip, and what it sees."""

    edge: Edge | None
    parent_id: str | None
    view: View


def opening_after(tip: Session, last_seq: int, *, due: bool = False) -> Opening | None:
    """Which session does the next message go to? None: the tip itself, since it is open.

    Ended by its process's end, or imported: the reset policy is asked (`due`); a fresh session if it is due,
    else one that continues it. Ended by a reset or by a person: a fresh one. Fresh: it shows nothing up to
    message `last_seq`.
    """
    if not tip.ended:
        return None
    if due or tip.end_reason in FRESH_AFTER:
        return Opening(Edge.RESET, tip.id, View.fresh(last_seq))
    return Opening(Edge.RESUME, tip.id, tip.view)


def opening_from(session: Session, last_seq: int) -> Opening:
    """Resume this very session: what it saw when it ended, then whatever is said next."""
    return Opening(Edge.RESUME, session.id, session.view.closed_at(session.last_seq).continued_at(last_seq))


def continued_by(line: Sequence[Session], session_id: str) -> Session:
    """The newest session of the line that goes on with what this one showed: itself, if the conversation has
    begun afresh since. `line` is the whole of it, oldest first."""
    found = next(session for session in line if session.id == session_id)
    goes_on = {found.id}
    for later in line:
        if later.parent_id in goes_on and later.edge in (Edge.RESUME, Edge.COMPACTION):
            goes_on.add(later.id)
            found = later
    return found
