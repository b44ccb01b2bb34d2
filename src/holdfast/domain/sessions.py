"""Sessions: one stretch of context within a conversation.

A session is opened, then ended with one reason, and never reopened:

    (new) ──open──► open ──end(reason)──► ended

The state shown for an open session depends on its node's liveness: `active` (a turn is running and
its node is alive), `idle`, or `orphaned` (its node is dead, not yet reaped).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from ..errors import BadInput, IllegalTransition
from .nodes import Liveness
from .value import Value
from .views import View


class Edge(StrEnum):
    """How a session derives from an earlier one. `fork` and `subagent` open a new conversation."""

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
RESETS = frozenset({EndReason.IDLE, EndReason.DAILY})
FRESH_AFTER = RESETS | {EndReason.NEW}
"""After an end for such a reason, the next session begins with an empty context."""


class SessionState(StrEnum):
    ACTIVE = "active"
    IDLE = "idle"
    ORPHANED = "orphaned"
    ENDED = "ended"


class Session(Value, frozen=True):
    """A session, with its conversation's data about it."""

    id: str
    conversation_id: str
    owner: str
    key: str | None
    title: str | None
    source: str
    attached: bool
    node_id: str | None
    """The node that an attached session ends with."""
    edge: Edge | None
    parent_id: str | None
    tip_id: str
    ordinal: int
    """Its position in the conversation's line of sessions, from 1."""
    opened_at: datetime
    last_activity_at: datetime
    next_due_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    model: str | None
    view: View
    first_seq: int
    last_seq: int
    """Its messages have seqs first_seq to last_seq; none yet if last_seq is the smaller."""
    running_turn: str | None
    running_node: str | None
    """The turn that holds the conversation's lease, and its node, if this session is the tip."""
    host: str | None = None
    last_heartbeat_at: datetime | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    fresh_by: str | None = None
    """`idle` or `daily`, if it is fresh after such a reset."""
    fresh_since: datetime | None = None
    """When its context began or was resumed on purpose: before it was opened, if it continues another."""

    @property
    def since(self) -> datetime:
        """The time from which its reset policy counts."""
        return self.fresh_since or self.opened_at

    @property
    def ended(self) -> bool:
        return self.ended_at is not None

    @property
    def message_count(self) -> int:
        return max(0, self.last_seq - self.first_seq + 1)

    @property
    def answering_node(self) -> str | None:
        """The node that this session depends on now: its running turn's, else the one it is attached to."""
        return self.running_node or (self.node_id if self.attached else None)


def state_of(session: Session, liveness: Liveness) -> SessionState:
    """The state shown to readers, given whether the session's answering node is alive."""
    if session.ended:
        return SessionState.ENDED
    if session.answering_node is not None and liveness is Liveness.DEAD:
        return SessionState.ORPHANED
    return SessionState.ACTIVE if session.running_turn else SessionState.IDLE


def check_end(session: Session, reason: str) -> None:
    """Raise unless the session may end with this reason. The only check of session ends."""
    if session.ended:
        raise IllegalTransition(f"session {session.id} has already ended ({session.end_reason})")
    if reason not in set(EndReason) and not reason.startswith(IMPORTED_PREFIX):
        raise BadInput(f"{reason!r} is not an end reason; use one of {', '.join(EndReason)}")


class Opening(Value, frozen=True):
    """A session to open: its edge from the tip, and its view."""

    edge: Edge | None
    parent_id: str | None
    view: View


def opening_after(tip: Session, last_seq: int, *, due: bool = False) -> Opening | None:
    """The session to open for the next message; None: the tip is open and takes it.

    If the tip ended with its process, or was imported, the reset policy decides (`due`): fresh if due, else
    one that continues it. If a reset or a person ended it: fresh. A fresh session shows nothing up to message
    `last_seq`.
    """
    if not tip.ended:
        return None
    if due or tip.end_reason in FRESH_AFTER:
        return Opening(Edge.RESET, tip.id, View.fresh(last_seq))
    return Opening(Edge.RESUME, tip.id, tip.view)


def opening_from(session: Session, last_seq: int) -> Opening:
    """Resume this exact session: its view when it ended, plus new messages."""
    return Opening(Edge.RESUME, session.id, session.view.closed_at(session.last_seq).continued_at(last_seq))


def continued_by(line: Sequence[Session], session_id: str) -> Session:
    """The newest session of the line that continues this one's context; itself, if a fresh one followed.
    `line` is complete, oldest first."""
    found = next(session for session in line if session.id == session_id)
    goes_on = {found.id}
    for later in line:
        if later.parent_id in goes_on and later.edge in (Edge.RESUME, Edge.COMPACTION):
            goes_on.add(later.id)
            found = later
    return found
