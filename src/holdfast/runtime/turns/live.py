"""A turn under way in this process: what it has said so far, for any number of listeners, and how it ended.

Listeners come and go without the turn noticing. One that comes late hears everything from the beginning: a
client whose connection broke joins its own turn again. What is told last is told after it is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ...domain.compaction import Compacted
from ...domain.sessions import Session
from ...domain.turns import Delivery, Lease, Turn, TurnBegun, TurnRequest, TurnStatus
from ...errors import HoldfastError
from ...models.base import Chunk
from ...models.reply import Reply


@dataclass(frozen=True, slots=True)
class TurnOutput:
    """A reply as clients are shown it, and its number."""

    seq: int
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer is on disk."""

    reply: Reply
    """All of it, as one message."""
    answer: dict[str, Any]
    """What the model's completion carried besides its message."""
    said: tuple[TurnOutput, ...]
    """The same, message by message: several, if the server ran tools of its own between them."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """There is no whole answer; what had been said is kept."""

    status: TurnStatus
    error: HoldfastError
    spoke: bool = False
    """Had the model begun to answer?"""


Outcome = Answered | Unanswered


class Client(Protocol):
    """Whoever is connected to hear a turn's answer."""

    def is_open(self) -> bool:
        """Is it still connected, and its answer not sent yet?"""
        ...


class TurnRenderer(Protocol):
    """How a surface puts a turn into events: one for each turn."""

    numbered: bool
    """Are its events kept on disk under their numbers, so that they can be asked for again?"""
    apart: bool
    """Has whoever listens the replies of one turn each as a message of its own, or joined as one?"""

    def begin(self, begun: TurnBegun) -> Sequence[bytes]: ...

    def add(self, chunk: Chunk) -> Sequence[bytes]: ...

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        """What comes now is a further reply of the turn, message `seq`. `spoke`: did the one before say
        anything?"""
        ...

    def moved(self, begun: TurnBegun) -> None:
        """Its context was compacted: it goes on in another session."""
        ...

    def end(self, outcome: Outcome) -> Sequence[bytes]: ...


@dataclass(slots=True)
class Stop:
    """Why a turn is being stopped before its end."""

    status: TurnStatus
    why: str
    retry: bool = False
    """Would the same request, sent again, take the turn up?"""


@dataclass(slots=True)
class RunningTurn:
    begun: TurnBegun
    events: list[bytes] = field(default_factory=list)
    """As they were told, the first under number `begun.next_event`."""
    preface: int = 0
    """How many of them were told before the model was asked."""
    accepted: bool = False
    """Has the model accepted the request? Its first word may be far off."""
    outcome: Outcome | None = None
    answered: Answered | None = None
    """The whole answer, on its way to the disk."""
    last_words: Sequence[bytes] = ()
    """How the end of an answer will be told, once it is on disk."""
    doing: str = "model"
    """What is waited for: the model, `tool:<name>`, or a summary: `compacting`."""
    said: Callable[[], str] = str
    """What the reply under way says so far, for those who look in from the side."""
    task: asyncio.Task[None] | None = None
    stop: Stop | None = None
    clients: list[Client] = field(default_factory=list)
    """Those that came for the answer; some may have left."""
    sent: bool = False
    """Was anything of the answer, or the ids of its conversation, written to an open connection?"""
    noted_unsent: bool = False
    """Does the store say that nothing was sent, so that it must be told before anything is?"""
    _listeners: Waiters = field(default_factory=list)
    _awaiting_end: Waiters = field(default_factory=list)

    @property
    def turn(self) -> Turn:
        return self.begun.turn

    @property
    def session(self) -> Session:
        return self.begun.session

    @property
    def lease(self) -> Lease:
        return self.begun.lease

    def attend(self, client: Client | None) -> None:
        """This client waits for the answer."""
        if client is not None and client not in self.clients:
            self.clients.append(client)

    @property
    def has_listener(self) -> bool:
        return any(client.is_open() for client in self.clients)

    @property
    def delivery(self) -> Delivery:
        """What is known of the answer's delivery in the moment it is committed."""
        if self.has_listener:
            return Delivery.SENDING
        return Delivery.PART if self.sent else Delivery.NONE

    def moved(self, done: Compacted) -> None:
        """Its context was compacted: it goes on in another session, under the same token."""
        assert done.lease is not None
        begun = self.begun
        self.begun = replace(
            begun,
            turn=replace(begun.turn, session_id=done.session.id),
            lease=done.lease,
            session=done.session,
            addressed=begun.addressed or begun.session.id,
            context=None,
            revision=None,
        )

    def tell(self, events: Sequence[bytes]) -> None:
        if events:
            self.events.extend(events)
            _wake(self._listeners)

    def accept(self) -> None:
        """The model has accepted the request: whoever waits for its status need not wait for its words."""
        self.accepted = True
        _wake(self._listeners)

    def finish(self, outcome: Outcome, events: Sequence[bytes]) -> None:
        self.events.extend(events)
        self.outcome = outcome
        self.said = str  # whoever answered need not be kept for it
        _wake(self._listeners)
        _wake(self._awaiting_end)

    async def heard(self, count: int, timeout: float | None = None) -> bool:
        """Wait until there are more than `count` events, or the turn has ended. False: time is up, or the
        model has accepted the request."""
        if len(self.events) <= count and self.outcome is None:
            await _wait(self._listeners, timeout)
        return len(self.events) > count or self.outcome is not None

    async def ended(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the end. None: time is up."""
        if self.outcome is None:
            await _wait(self._awaiting_end, timeout)
        return self.outcome


# Each waits for a future of its own: one that is shared would be cancelled for all by the first to leave, and
# what asyncio has against that costs more than all the rest of listening.
Waiters = list[asyncio.Future[None]]


async def _wait(waiters: Waiters, timeout: float | None) -> None:
    """Until woken, or until time is up."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    waiters.append(waiter)
    timer = None if timeout is None else loop.call_later(max(0.0, timeout), _settle, waiter)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        if waiter in waiters:
            waiters.remove(waiter)


def _wake(waiters: Waiters) -> None:
    woken, waiters[:] = list(waiters), ()
    for waiter in woken:
        _settle(waiter)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def allowed() -> None:
    """The check of a caller whose right cannot end: this program's own."""


@dataclass(frozen=True, slots=True)
class TurnSpec:
    request: TurnRequest
    telling: TurnRenderer
    instructions: tuple[bytes, ...] = ()
    """Messages that go first, as JSON; not stored."""
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    prints: tuple[bytes, ...] = ()
    """Of the request's messages."""
    history: bytes | None = None
    """The chain of what is shown before them, where the caller knows it better than the store."""
    follows: bool = False
    """Can whoever asks follow, by its checkpoints, a turn that this request already is on another node?"""
    client: Client | None = None
    """Who waits for the answer; None: nobody is connected for it."""
    tools: frozenset[str] = frozenset()
    """Those of the server's tools that whoever asks may use."""
    check: Callable[[], Awaitable[None]] = allowed
    """Raises when the caller may no longer act (KeyRevoked). Asked after every wait: before the turn begins
    and before each tool call."""
