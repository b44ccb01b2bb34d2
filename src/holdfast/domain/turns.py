"""Leases: a node's right to act on a conversation, for one turn.

The token rises with each holder and is never handed out twice. Every write of a turn names it, so a
writer that was taken for dead and comes back finds its token outdated and has written nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

from ..errors import BadInput, BadMessage, IllegalTransition
from .contexts import Context
from .conversations import Address
from .ids import check_name, storable
from .messages import MAX_BODY_BYTES, MessageStatus, NewMessage, new_message
from .notices import Notice
from .sessions import Session


@dataclass(frozen=True, slots=True)
class Lease:
    conversation_id: str
    session_id: str
    turn_id: str
    node_id: str
    token: int


RESERVED_EVENTS = 10_000

_NOT_TEXT = frozenset({"role", "tool_calls", "tool_call_id"})
_ALWAYS_FITS = MAX_BODY_BYTES // 8  # a character takes at most six bytes in JSON


@dataclass(frozen=True, slots=True)
class Draft:
    """One checkpoint of a running reply."""

    first_event: int
    last_event: int
    events: bytes = b""
    adds: dict[str, str] = field(default_factory=dict)
    """Text to be appended to fields of the reply, such as `content`."""
    restarts: bool = False
    """Does the reply begin anew here? What earlier rows added no longer counts."""
    after_seq: int = field(default=0, compare=False)
    """The number of the message that the reply follows, as the store has noted it: a turn may hold several
    replies, and each has its own checkpoints."""

    @property
    def reserved_to(self) -> int:
        return self.last_event + RESERVED_EVENTS

    def __post_init__(self) -> None:
        if not 0 <= self.first_event <= self.last_event:
            raise BadMessage(
                f"a draft's events must be numbered upwards: {self.first_event}..{self.last_event}"
            )
        for name, text in self.adds.items():
            if name in _NOT_TEXT or not isinstance(text, str):
                raise BadMessage(f"a draft adds to text such as content, not to {name}")


def first_event_of(attempt: int, reserved_to: int) -> int:
    """The number of the first event of an attempt that takes a turn up again: above all that was ever told.

    Checkpoints of earlier attempts have used or reserved numbers up to `reserved_to` (-1: there are none).
    The one behind is the end's, by which whoever listened meanwhile heard that they had broken off. And each
    attempt may have told something before its first checkpoint.
    """
    return reserved_to + 2 + (attempt - 1) * RESERVED_EVENTS


def said(drafts: Iterable[Draft]) -> dict[str, str]:
    """What a reply had said according to its checkpoints, field by field."""
    texts: dict[str, list[str]] = {}
    for draft in drafts:
        if draft.restarts:
            texts.clear()
        for name, text in draft.adds.items():
            texts.setdefault(name, []).append(storable(text))
    return {name: "".join(pieces) for name, pieces in texts.items()}


def interrupted_reply(drafts: Iterable[Draft]) -> NewMessage | None:
    """The reply that a crash left unfinished, as a message; None if nothing had been said.

    A checkpoint that was taken can always be kept: of more than a message can hold, its beginning.
    """
    texts = {name: text for name, text in said(drafts).items() if text}
    if not texts:
        return None
    content = texts.pop("content", "")
    try:
        whole = new_message({"role": "assistant", "content": content, **texts})
    except BadMessage:
        whole = new_message({"role": "assistant", "content": content[:_ALWAYS_FITS]})
    return NewMessage(whole.role, whole.body, status=MessageStatus.INTERRUPTED)


MOST_TOKENS = 10**12
"""More than any model reports: a figure above it is a mistake, and sums must stay in 64 bits."""


def usable_usage(usage: object) -> tuple[dict[str, int], list[str]]:
    """What can be stored of the figures that a model or a program reports, and the names of what cannot.

    Takes a mapping, or an SDK's object (anything with `model_dump`, or with attributes). Whole numbers from 0
    to MOST_TOKENS are kept; None and nested details are left out without a word. Figures are never worth an
    error: the answer that they belong to has been given.
    """
    figures, dropped = {}, []
    for name, value in _reported(usage).items():
        if value is None or isinstance(value, Mapping | list | tuple) or hasattr(value, "model_dump"):
            continue
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MOST_TOKENS:
            dropped.append(str(name))
        else:
            figures[str(name)] = number
    return figures, dropped


_SAME = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}


def added_usage(before: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """The figures of several calls added up. Calls that use different names for the same (Chat Completions,
    Responses) are added under the name that came first."""
    total = dict(before)
    other_names = {**_SAME, **{ours: theirs for theirs, ours in _SAME.items()}}
    for name, figure in more.items():
        other = other_names.get(name)
        if other is not None and other in total and name not in total:
            name = other
        total[name] = total.get(name, 0) + figure
    return total


def _reported(usage: object) -> Mapping[Any, Any]:
    if usage is None or isinstance(usage, Mapping):
        return usage or {}
    try:
        dump = getattr(usage, "model_dump", None)
        found = dump() if callable(dump) else vars(usage)
    except Exception:  # an object of the program's own, which may do anything
        found = None
    return found if isinstance(found, Mapping) else {"usage": type(usage).__name__}


class TurnStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Delivery(IntEnum):
    """How much of a turn's answer was written to an open connection of a client, as far as is known."""

    NONE = 0
    SENDING = 1
    """A client was connected when the answer was committed; whether it got all of it is not known yet."""
    PART = 2
    """Some of it, or the ids of its conversation; or that cannot be ruled out."""
    WHOLE = 3


TRANSITIONS: Mapping[TurnStatus, frozenset[TurnStatus]] = {
    TurnStatus.RUNNING: frozenset(
        {TurnStatus.COMPLETED, TurnStatus.INTERRUPTED, TurnStatus.FAILED, TurnStatus.CANCELLED}
    ),
    TurnStatus.INTERRUPTED: frozenset({TurnStatus.RUNNING}),
    TurnStatus.FAILED: frozenset({TurnStatus.RUNNING}),
    TurnStatus.COMPLETED: frozenset(),
    TurnStatus.CANCELLED: frozenset(),
}


def check_step(turn_id: str, old: TurnStatus, new: TurnStatus) -> None:
    """The one place that says how a turn may change."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"turn {turn_id} is {old.value}; it cannot become {new.value}")


def check_unanswered(status: TurnStatus) -> None:
    """Only these end a turn without an answer; `completed` needs one, by `commit_reply`."""
    if status not in (TurnStatus.INTERRUPTED, TurnStatus.FAILED, TurnStatus.CANCELLED):
        raise BadInput(f"a turn without an answer ends interrupted, failed or cancelled, not {status}")


@dataclass(frozen=True, slots=True)
class Turn:
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


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What makes a request the same request when it comes again: owner, route and key; the hash
    tells whether its body is the same too."""

    route: str
    key: str
    body_hash: bytes
    implied: bool = False
    """No key was given: `is_sent_again` decides whether the same body is the same request."""
    retries: int = 0
    """How many times its client has sent it before, by its own count."""
    opener: bool = False
    """Without a name and without an answer in its history: nothing but the body tells it from another's."""
    shared: bool = False
    """Have two conversations sent this body, so that it identifies neither?"""
    named: bytes = b""
    """A hash of how the request names its conversation; empty: it names none."""

    def __post_init__(self) -> None:
        check_name("a request key", self.key)
        if not 0 < len(self.route) <= MAX_ROUTE or not (self.route.isascii() and self.route.isprintable()):
            raise BadInput(f"a route has 1 to {MAX_ROUTE} ASCII characters, not {self.route!r:.200}")

    @property
    def fingerprint(self) -> bytes:
        """What is kept of a request to recognise it by."""
        if not self.implied:
            return self.body_hash + self.named
        return self.body_hash + bytes((min(self.retries, 255),)) + (SHARED if self.shared else b"")

    @property
    def may_repeat(self) -> bool:
        """False: it is a new request, whatever is stored."""
        return not self.implied or not self.opener or self.retries > 0

    def as_new(self) -> RequestKey:
        """The same request, known to repeat none."""
        return replace(self, opener=True, retries=0)

    def is_same_body(self, fingerprint: bytes) -> bool:
        return fingerprint[: len(self.body_hash)] == self.body_hash

    def names_the_same(self, fingerprint: bytes) -> bool:
        """Does it name its conversation as that request did, or not at all?"""
        return not self.named or fingerprint[len(self.body_hash) :] == self.named


MAX_ROUTE = 100
OPENER_FOR = timedelta(hours=1)
"""How long an opener may be sent again: longer than the official SDK's three tries of ten minutes."""
SHARED = b"shared"


def is_sent_again(key: RequestKey, fingerprint: bytes, turn: Turn) -> bool:
    """Whether a request without an Idempotency-Key is this turn, whose request had the same body.

    An answer that a client has received whole ends the matter: the same body is then a new request. An opener
    carries no evidence of whose it is, so it must be a later try by its own count, and no client may have
    received anything: then nobody else can be in that conversation.
    """
    if not key.is_same_body(fingerprint) or fingerprint.endswith(SHARED):
        return False
    if turn.status is TurnStatus.CANCELLED:
        return False
    if key.opener:
        return key.retries > fingerprint[len(key.body_hash)] and turn.delivery is Delivery.NONE
    if turn.status is TurnStatus.FAILED:  # its client was told so; only one that counts its tries repeats it
        return key.retries > 0
    return turn.status is not TurnStatus.COMPLETED or turn.delivery is not Delivery.WHOLE


@dataclass(frozen=True, slots=True)
class ConversationVersion:
    """What a conversation looked like to whoever decided about a turn. If it has changed since, the decision
    is to be made again."""

    conversation_id: str
    last_seq: int
    revision: int


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Fork first, and begin the turn in the fork: behind message `seq` of this session."""

    session_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class NewResponse:
    """The Responses API's name for a turn, and what its request asked for."""

    id: str
    request: bytes
    previous_id: str | None = None
    background: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """A turn under the Responses API's name, with what its request asked for."""

    id: str
    turn: Turn
    request: bytes
    previous_id: str | None
    background: bool
    brought: int
    """How many of the turn's messages, its first, came with the request."""
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Everything `begin_turn` needs. The caller chooses the turn's id, so that it can know the turn
    as its own before the store has answered."""

    turn_id: str
    owner: str
    node_id: str
    address: Address
    messages: tuple[NewMessage, ...]
    source: str = ""
    """Empty: read off the key."""
    attached: bool = False
    """Should a session that this turn opens live and die with the node?"""
    request_key: RequestKey | None = None
    model: str | None = None
    seen: ConversationVersion | None = None
    branch: ForkPoint | None = None
    replaces: tuple[int, ...] = ()
    """Replies that leave the context, because what they answered is answered again. Such a turn, and one that
    answers a message nobody has answered (`again`), may bring no message of its own."""
    again: bool = False
    retries: str | None = None
    """Take this turn up again, by its id, instead of beginning one: it brings no messages."""
    anonymous: bool = False
    """Does a conversation that this turn begins go on with whoever brings its whole history?"""
    response: NewResponse | None = None
    matches: tuple[str, ...] = ()
    """Without a name: the conversations whose whole history the request brings."""
    streams: bool = False
    """Is its answer sent while it is being made, so that a crash leaves open what was received?"""

    @property
    def delivery(self) -> Delivery:
        """What has to be assumed of its answer if this process dies. Only an opener needs to know."""
        is_opener = self.request_key is not None and self.request_key.implied and self.request_key.opener
        return Delivery.PART if is_opener and self.streams else Delivery.NONE


def reset_before(session: Session, turn: Turn) -> str | None:
    """`idle` or `daily`, if this is the first turn of a session that such a reset made fresh: however often
    it is asked for, and whoever carried the reset out."""
    return session.fresh_by if turn.first_seq <= session.first_seq else None


@dataclass(frozen=True, slots=True)
class TurnBegun:
    """The lease is held, the messages are on disk: the model may be asked."""

    turn: Turn
    lease: Lease
    session: Session
    addressed: str | None = None
    """The session the caller named, if it named one: other than `session` when that has gone on."""
    taken_up: bool = False
    """Is this a retry that takes an unfinished turn up again?"""
    next_event: int = 0
    """The number for its draft's next event: above all that earlier attempts used or reserved."""
    history: bytes | None = None
    """The chain of prints of all that was shown before this turn; None if it is not known."""
    notices: tuple[Notice, ...] = ()
    """What the person should be told and no reply has said yet."""
    revision: int | None = None
    """The conversation's revision, if this turn has changed nothing but by appending."""
    context: Context | None = None
    """What the model gets, if the store has it at hand; else it is to be asked."""

    @property
    def reset(self) -> str | None:
        return reset_before(self.session, self.turn)


@dataclass(frozen=True, slots=True)
class TurnRepeated:
    """The request is already known: completed, cancelled, or still running somewhere."""

    turn: Turn
    session: Session


@dataclass(frozen=True, slots=True)
class TurnWaits:
    """Another turn holds the conversation; nothing was written."""

    conversation_id: str
    holder: str
    turn_id: str | None


@dataclass(frozen=True, slots=True)
class TurnOutdated:
    """The conversation is no longer what the caller has seen; nothing was written."""


TurnOutcome = TurnBegun | TurnRepeated | TurnWaits | TurnOutdated


@dataclass(frozen=True, slots=True)
class TurnFailure:
    """How a turn ends without an answer: its status, what it still has to say, what is known about it."""

    status: TurnStatus
    messages: tuple[NewMessage, ...] = ()
    error: str | None = None
    """What happened, for people; may quote anything, so it stays with the turn."""
    code: str | None = None
    """The same in one word, such as the name of an exception; this goes into events."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    delivery: Delivery | None = None
    """None: as it was."""

    def __post_init__(self) -> None:
        check_unanswered(self.status)
