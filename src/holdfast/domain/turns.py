"""Turns and their leases: a lease is a node's right to act on a conversation, for one turn.

The lease's token is a fencing token: it rises with each holder and is never reused. Every write of a turn
checks it, so a late write of a node that was reaped while alive is rejected and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, IllegalTransition
from .contexts import Context
from .conversations import Address
from .messages import NewMessage
from .notices import Notice
from .recovery import NO_RECOVERY, NOT_STORED, Cause, Recovery, RequestToStore, waiting_sentence
from .sessions import Session
from .value import Value

if TYPE_CHECKING:
    from .request_keys import RequestKey


class Lease(Value, frozen=True):
    conversation_id: str
    session_id: str
    turn_id: str
    node_id: str
    token: int
    api_key: str | None = None
    """The id of the API key for whose limits the turn's tokens count; None: none."""
    notifies: str | None = None
    """The Responses API's id of the turn, if a webhook may have to be notified of its end."""
    carries_notices: bool = True
    """False: the turn was given no notices when it began, so its commit marks none as told."""


class TurnStatus(StrEnum):
    QUEUED = "queued"
    """Accepted, not begun: its conversation is busy."""
    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Delivery(IntEnum):
    """How much of a turn's answer was written to a client's open connection, as far as known."""

    NONE = 0
    SENDING = 1
    """A client was connected when the answer was committed; unknown yet whether it received all of it."""
    PART = 2
    """Some of the answer, or the ids of its conversation, was sent; or that cannot be ruled out."""
    WHOLE = 3


TRANSITIONS: Mapping[TurnStatus, frozenset[TurnStatus]] = {
    # Completed: its messages joined another turn.
    TurnStatus.QUEUED: frozenset(
        {TurnStatus.RUNNING, TurnStatus.COMPLETED, TurnStatus.FAILED, TurnStatus.CANCELLED}
    ),
    TurnStatus.RUNNING: frozenset(
        {TurnStatus.COMPLETED, TurnStatus.INTERRUPTED, TurnStatus.FAILED, TurnStatus.CANCELLED}
    ),
    # Other than by running again: only a waiting turn, which is given up, withdrawn or cancelled.
    TurnStatus.INTERRUPTED: frozenset({TurnStatus.RUNNING, TurnStatus.FAILED, TurnStatus.CANCELLED}),
    TurnStatus.FAILED: frozenset({TurnStatus.RUNNING, TurnStatus.INTERRUPTED, TurnStatus.CANCELLED}),
    TurnStatus.COMPLETED: frozenset(),
    TurnStatus.CANCELLED: frozenset(),
}


def check_step(turn_id: str, old: TurnStatus, new: TurnStatus) -> None:
    """Raise IllegalTransition unless TRANSITIONS allows this change. The only check of turn states."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"turn {turn_id} is {old.value}; it cannot become {new.value}")


def check_unanswered(status: TurnStatus) -> None:
    """Raise BadInput unless a turn may end in this status without an answer; `completed` needs
    `commit_reply`."""
    if status not in (TurnStatus.INTERRUPTED, TurnStatus.FAILED, TurnStatus.CANCELLED):
        raise BadInput(f"a turn without an answer ends as interrupted, failed or cancelled, not {status}")


class Turn(Value, frozen=True):
    id: str
    conversation_id: str
    session_id: str
    owner: str
    status: TurnStatus
    node_id: str
    attempt: int
    first_seq: int
    started_at: datetime
    ended_at: datetime | None = None
    error: str | None = None
    model: str | None = None
    usage: Mapping[str, Any] | None = None
    response_id: str | None = None
    delivery: Delivery = Delivery.NONE
    why: str | None = None
    """Why it has no answer, or none yet, for people."""
    recovery: Recovery = NO_RECOVERY
    joined: str | None = None
    """The turn that its messages joined while it was queued."""

    @property
    def waits(self) -> bool:
        """True: a server will retry it. Readers see it as running."""
        return self.recovery.due_at is not None

    def reason(self, most_attempts: int | None = None) -> str | None:
        """Why it has no answer, or none yet, as a sentence. `most_attempts`: `[turns] max_attempts`."""
        if self.waits:
            return waiting_sentence(self.recovery, self.ended_at, self.why, most_attempts)
        return self.why

    @property
    def is_final(self) -> bool:
        """True: nothing will be added to it by itself."""
        return not self.waits and self.status not in (TurnStatus.QUEUED, TurnStatus.RUNNING)

    @property
    def shown_status(self) -> TurnStatus:
        """The status that readers see."""
        return TurnStatus.RUNNING if self.waits else self.status


def is_due(turn: Turn, now: datetime) -> bool:
    """True: a server may take this turn up now. One that ended after now is due: the clock was set back."""
    due_at = turn.recovery.due_at
    if due_at is None or turn.status is TurnStatus.RUNNING:
        return False
    return due_at <= now or (turn.ended_at is not None and turn.ended_at > now)


class ConversationVersion(Value, frozen=True):
    """Optimistic lock: the conversation's id, last seq and revision at decision time. If they have changed,
    the decision must be made again."""

    conversation_id: str
    last_seq: int
    revision: int


class ForkPoint(Value, frozen=True):
    """Fork first, then begin the turn in the fork: after message `seq` of this session."""

    session_id: str
    seq: int


class NewResponse(Value, frozen=True):
    """A turn's Responses API id, and the request's parameters."""

    id: str
    request: bytes
    previous_id: str | None = None
    background: bool = False
    webhook: str | None = None
    """The connector that is notified when the response ends; None: none."""


class TurnRequest(Value, frozen=True):
    """Input of `begin_turn`. The caller chooses the turn's id, so that it can recognise the turn as its own
    before the store has answered."""

    turn_id: str
    owner: str
    node_id: str
    address: Address
    messages: tuple[NewMessage, ...]
    source: str = ""
    """Empty: derived from the session key."""
    alias: str | None = None
    """A further name for its conversation, unless another one of this owner has it."""
    attached: bool = False
    """True: a session that this turn opens ends with the node."""
    request_key: RequestKey | None = None
    model: str | None = None
    seen: ConversationVersion | None = None
    branch: ForkPoint | None = None
    regenerates: tuple[int, ...] = ()
    """Replies to exclude from the context because their question is answered again. Such a turn, and one that
    answers an existing unanswered message (`answer_existing`), may bring no messages."""
    answer_existing: bool = False
    starts_queued: bool = False
    """True: begin the queued turn `turn_id`, with its stored messages."""
    collects: bool = False
    """True: the messages of turns queued after it join it."""
    overtakes: bool = False
    """True: begin before turns that are queued."""
    resumes_turn: str | None = None
    """Id of a turn to resume instead of beginning one; it brings no messages."""
    by_recovery: bool = False
    """True: a server retries it automatically, so it must be waiting and due."""
    anonymous: bool = False
    """True: a conversation that this turn begins is continued by any request with its whole history."""
    response: NewResponse | None = None
    matches: tuple[str, ...] = ()
    """For a request that names none: the conversations whose whole history it carries."""
    parent: str | None = None
    """The name of the conversation that a new one works for, as a sub-agent."""
    streams: bool = False
    """True: the answer is streamed, so after a crash it is unknown what the client received."""
    stored: RequestToStore = NOT_STORED
    """What is kept of the request besides its messages, to ask the model again."""
    api_key: str | None = None
    """The id of the API key for whose limits its tokens count; None: none."""

    @property
    def delivery(self) -> Delivery:
        """Delivery to assume if this process crashes. Only openers need it."""
        is_opener = self.request_key is not None and self.request_key.implied and self.request_key.opener
        return Delivery.PART if is_opener and self.streams else Delivery.NONE


def reset_before(session: Session, turn: Turn) -> str | None:
    """`idle` or `daily` if this is the first turn after such a reset, else None. Idempotent, and independent
    of which node did the reset."""
    return session.fresh_by if turn.first_seq <= session.first_seq else None


class TurnBegun(Value, frozen=True):
    """The lease is held and the messages are committed: the model may be called."""

    turn: Turn
    lease: Lease
    session: Session
    addressed: str | None = None
    """The session that the caller named, if any; differs from `session` if the conversation moved on."""
    taken_up: bool = False
    """True: a retry that resumes an unfinished turn."""
    next_event: int = 0
    """Number of the draft's next event: above all that earlier attempts used or reserved."""
    history: bytes | None = None
    """Fingerprint chain of all messages visible before this turn; None if unknown."""
    notices: tuple[Notice, ...] = ()
    """Notices for the person that no reply has carried yet."""
    revision: int | None = None
    """The conversation's revision, if this turn only appended."""
    may_have_memories: bool = True
    """False: the conversation has no memory."""
    context: Context | None = None
    """Context for the model, if the store has it at hand; None: query it."""
    request: bytes | None = None
    """Of a resumed turn: its request as first stored, a StoredRequest; None if that is no longer kept."""

    @property
    def reset(self) -> str | None:
        return reset_before(self.session, self.turn)


class TurnRepeated(Value, frozen=True):
    """The request is a known one: completed, cancelled, or still running on some node."""

    turn: Turn
    session: Session


class TurnWaits(Value, frozen=True):
    """Another turn holds the conversation, or waits in it to be retried (`holder` is empty); nothing was
    written."""

    conversation_id: str
    holder: str
    turn_id: str | None


class TurnOutdated(Value, frozen=True):
    """The conversation differs from the version that the caller saw; nothing was written."""


TurnOutcome = TurnBegun | TurnRepeated | TurnWaits | TurnOutdated


@dataclass(frozen=True, slots=True)
class TurnFailure:
    """How a turn ends without an answer: its status, last messages, error and usage."""

    status: TurnStatus
    messages: tuple[NewMessage, ...] = ()
    error: str | None = None
    """Error text for people. May quote anything, so it is stored only with the turn."""
    code: str | None = None
    """Error code, such as the name of an exception; published in events."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    delivery: Delivery | None = None
    """None: unchanged."""
    cause: Cause | None = None
    """Not None: the turn waits to be retried, if the policy covers it; for `model` in any case."""
    delay: timedelta = timedelta(0)
    """For `model`: how long it waits."""

    def __post_init__(self) -> None:
        check_unanswered(self.status)
