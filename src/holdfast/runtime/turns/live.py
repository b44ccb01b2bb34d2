"""A turn running in this process: its events so far, for any number of subscribers, and its outcome.

Subscribers come and go without affecting the turn. A late one gets all events from the first: a client whose
connection broke joins its turn again. The final events are published after the outcome is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from ...domain.compaction import ClientCompaction, Compacted
from ...domain.recovery import Cause
from ...domain.sessions import Session
from ...domain.turns import Delivery, Lease, Turn, TurnBegun, TurnRequest, TurnStatus
from ...domain.value import Value
from ...errors import HoldfastError
from ...models.base import Chunk, NativeRequest
from ...models.reply import Reply


class TurnOutput(Value, frozen=True):
    """A reply as clients receive it, and its seq."""

    seq: int
    message: dict[str, Any]


class Answered(Value, frozen=True):
    """The turn completed; its answer is on disk."""

    reply: Reply
    """The whole answer as one message."""
    answer: dict[str, Any]
    """The fields of the model's completion other than its message."""
    said: tuple[TurnOutput, ...]
    """The answer as separate messages: more than one if the server ran its own tools between them."""
    ended_at: datetime
    """When the turn ended, as it is stored."""


class Unanswered(Value, frozen=True):
    """The turn ended without a complete answer; its partial output is stored."""

    status: TurnStatus
    error: HoldfastError
    spoke: bool = False
    """True if the model had begun to answer."""
    waits: bool = False
    """True: this is not the turn's end; a server will retry it, or has done so."""
    withdrawn: bool = False
    """True: its conversation, which it had begun, is deleted; nothing of the turn is stored."""


Outcome = Answered | Unanswered


class Client(Protocol):
    """A connection that waits for a turn's answer."""

    def is_open(self) -> bool:
        """True while it is connected and its answer is not sent yet."""
        ...


class TurnRenderer(Protocol):
    """Renders one turn as a surface's events. One instance for each turn."""

    numbered: bool
    """True: events are stored under their numbers, so a client can resume the stream."""
    apart: bool
    """True: each assistant message is sent separately (Responses). False: concatenated (Chat Completions)."""

    def begin(self, begun: TurnBegun) -> Sequence[bytes]: ...

    def add(self, chunk: Chunk) -> Sequence[bytes]: ...

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        """Begin a further reply of the turn, message `seq`. `spoke`: the previous reply had text."""
        ...

    def moved(self, begun: TurnBegun) -> None:
        """The context was compacted: the turn continues in another session."""
        ...

    def end(self, outcome: Outcome) -> Sequence[bytes]: ...


@runtime_checkable
class ShowsAttempts(Protocol):
    """A renderer whose stream marks where a new attempt of the turn begins."""

    def resumed(self) -> Sequence[bytes]:
        """The stored output of earlier attempts was given to the renderer: returns the events for it."""
        ...


@dataclass(slots=True)
class Stop:
    """Why a turn is being stopped before its end."""

    status: TurnStatus
    why: str
    retry: bool = False
    """True if a retry of the same request would resume the turn."""
    cause: Cause | None = None
    """Not None: a turn that the policy covers waits to be retried."""


@dataclass(slots=True)
class RunningTurn:
    """A turn that this process runs: published events, its outcome, and the clients that wait for it."""

    begun: TurnBegun
    events: list[bytes] = field(default_factory=list)
    """Published events; the first has number `begun.next_event`."""
    preface: int = 0
    """How many events were published before the model was called."""
    accepted: bool = False
    """True once the model has accepted the request; its first chunk may come much later."""
    outcome: Outcome | None = None
    answered: Answered | None = None
    """The complete answer, while it is being committed."""
    final_events: Sequence[bytes] = ()
    """The final events, to be published once the answer is on disk."""
    doing: str = "model"
    """What the turn waits for: `model`, `tool:<name>`, or `compacting` (a summary)."""
    text_so_far: Callable[[], str] = str
    """Returns the text of the current reply so far, for observers that do not subscribe."""
    task: asyncio.Task[None] | None = None
    stop: Stop | None = None
    clients: list[Client] = field(default_factory=list)
    """Clients that asked for the answer; some may have disconnected."""
    sent: bool = False
    """True if any of the answer, or its conversation's ids, was written to an open connection."""
    withdrawing: bool = False
    """True while it may be deleted with its conversation: no id of it is sent meanwhile."""
    noted_unsent: bool = False
    """True if the store says that nothing was sent: it must be updated before anything is."""
    _listeners: Waiters = field(default_factory=list)
    _awaiting_end: Waiters = field(default_factory=list)
    _at_end: list[Callable[[], None]] = field(default_factory=list)

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
        """Register a client that waits for the answer."""
        if client is not None and client not in self.clients:
            self.clients.append(client)

    @property
    def has_listener(self) -> bool:
        return any(client.is_open() for client in self.clients)

    @property
    def delivery(self) -> Delivery:
        """What is known of the answer's delivery when it is committed."""
        if self.has_listener:
            return Delivery.SENDING
        return Delivery.PART if self.sent else Delivery.NONE

    def compacts(self) -> None:
        """A summary of the context is being waited for."""
        self.doing = "compacting"

    def moved(self, done: Compacted) -> None:
        """The context was compacted: the turn continues in another session, with the same fencing token."""
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

    def appended(self, last_seq: int) -> None:
        """Messages were stored before the model was called: the next reply follows `last_seq`."""
        self.begun = replace(self.begun, session=replace(self.begun.session, last_seq=last_seq), context=None)

    def publish(self, events: Sequence[bytes]) -> None:
        """Append events and wake the subscribers."""
        if events:
            self.events.extend(events)
            _wake(self._listeners)

    def accept(self) -> None:
        """The model has accepted the request: a client that waits for a status need not wait for the first
        chunk."""
        self.accepted = True
        _wake(self._listeners)

    def finish(self, outcome: Outcome, events: Sequence[bytes]) -> None:
        """Publish the final events and the outcome, which is on disk."""
        self.events.extend(events)
        self.outcome = outcome
        self.text_so_far = str  # drops the reference to the AgentLoop
        for each in self._at_end:
            each()
        _wake(self._listeners)
        _wake(self._awaiting_end)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call this when the outcome is on disk, before any client receives it."""
        self._at_end.append(callback)

    async def wait_for_events(self, count: int, timeout: float | None = None) -> bool:
        """Wait until there are more than `count` events or the turn has ended. False: timeout, or the model
        has accepted the request."""
        if len(self.events) <= count and self.outcome is None:
            await _wait(self._listeners, timeout)
        return len(self.events) > count or self.outcome is not None

    async def ended(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the outcome. None: timeout."""
        if self.outcome is None:
            await _wait(self._awaiting_end, timeout)
        return self.outcome


# One future per waiter: a shared one would be cancelled for all when the first waiter is cancelled, and
# asyncio.shield costs more than the rest of waiting.
Waiters = list[asyncio.Future[None]]


async def _wait(waiters: Waiters, timeout: float | None) -> None:
    """Wait until woken or until the timeout."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    waiters.append(waiter)
    timer = None if timeout is None else loop.call_later(max(0.0, timeout), _resolve, waiter)
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
        _resolve(waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def allowed() -> None:
    """The `check` of a caller whose permission cannot be revoked: this program itself."""


class TurnSpec(Value, frozen=True):
    """Everything that `TurnRunner.begin` needs for one turn."""

    request: TurnRequest
    renderer: TurnRenderer
    instructions: tuple[bytes, ...] = ()
    """Messages that go before the context, as JSON; not stored."""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    model: str | None = None
    fingerprints: tuple[bytes, ...] = ()
    """Fingerprints of the request's messages."""
    history: bytes | None = None
    """The history fingerprint before them, if the caller knows it better than the store."""
    follows: bool = False
    """True if the caller can follow, by its drafts, the same turn running on another node."""
    client: Client | None = None
    """The connection that waits for the answer; None: none does."""
    tools: frozenset[str] = frozenset()
    """The server tools that the caller may use."""
    check: Callable[[], Awaitable[None]] = allowed
    """Raises when the caller may no longer act (KeyRevoked). Called after every wait: before the turn begins
    and before each tool call."""
    native: NativeRequest | None = None
    """The request in Anthropic's API, for a model that speaks it."""
    compacts: ClientCompaction | None = None
    """Compact the context like this before the model is called."""
    compact_at: int | None = None
    """Compact the context before the model is called if it has more tokens than this; None: by settings."""
    max_tool_calls: int | None = None
    """After this many calls of server tools the model may call none; None: no limit but `max_steps`."""
    notice: str | None = None
    """A notice for the person, stored with the answer."""
    withdraws_refused: bool = False
    """True: the client is told if its model's name is refused, so nothing of such a first request is kept."""
    key_id: str | None = None
    """The API key of a turn that is begun from its stored request."""
