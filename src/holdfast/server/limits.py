"""Every limit on the resources one client can use, and the counters per API key.

Limits that an operator may change are settings (`[server] max_body_mb`, `max_requests` and `[limits]`); the
others are constants here. `connections.py` applies the limits of connections and request heads, `bodies.py`
those of bodies and their JSON. Counts per API key are those of the whole server: with several
workers each shows its counts to the others (`workers/board.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from ..app import RunningTurn
from ..domain.api_keys import Caller
from ..domain.ids import new_id
from ..domain.turns import (
    TurnOutdated,
    TurnRepeated,
)
from ..domain.usage import tokens_in, usable_usage
from ..errors import RateLimited
from ..models.base import Chunk
from ..settings import LimitSettings
from .http_errors import RETRY, HttpError
from .workers.board import KeyColumn, KeyCounts, Row

if TYPE_CHECKING:
    from .http import RequestContext, Services

# --- connections ---------------------------------------------------------------------------------------

HEADERS = 100
"""Maximum header fields of one request, trailers included."""
HEAD_BYTES = 64 * 1024
"""Maximum total of the URL and the names and values of the header fields of one request."""
HEAD_SECONDS = 10.0
"""Timeout for the headers of a request, and for the first byte of a new connection."""
KEEP_ALIVE_SECONDS = 75
"""How long a connection may be idle between two requests."""
PIPELINED = 8
"""Maximum pipelined requests: those that wait on one connection for the response to an earlier one."""
LINGER_SECONDS = 10.0
LINGER_BYTES = 64 * 2**20
"""Lingering close, after a response that was sent before the whole request had arrived: for how long, and how
much of the rest, is read and dropped before the connection is closed. An immediate close could destroy the
response in transit."""
STALL_SECONDS = 60.0
"""A client that has read no byte of its response for this long is disconnected."""
PING_SECONDS, PONG_SECONDS = 20.0, 20.0
"""How often a WebSocket is pinged, and how long the answer may take; then it is closed."""
SOCKET_FRAMES = 1000
"""How many frames of any kind a WebSocket may send at once: a million empty ones are 6 MB."""
SOCKET_FRAMES_PER_SECOND = 50
SOCKET_FRAME_BYTES = 512
"""Of these frames so many are regained each second, and one for so many bytes received: a large message may
be sent in small fragments."""
SOCKET_PIECE = 8 * 1024
"""So much of what a WebSocket sends is parsed before its frames are counted."""
SOCKET_UNCOUNTED = 128 * 1024
"""A message over a WebSocket that has not arrived whole counts for the memory of its API key if it is
larger."""

SPARE_FILES = 200
"""Open files reserved for the store, logs and background processes, in addition to all sockets."""

# --- bodies --------------------------------------------------------------------------------------------

SMALL_CHUNK = 16
SMALL_CHUNKS = 10_000
"""How many chunks of fewer bytes than `SMALL_CHUNK` a body may have: each costs the event loop as much as a
large one, and its client almost nothing."""
BODY_SECONDS = 60.0
"""Timeout for a request's body."""
FORM_SECONDS = 10.0
"""Timeout for an unauthenticated body: the login, and what is pushed to a connector."""
FORMS = 32
"""Maximum unauthenticated forms that are being received at the same time."""
PUSHES = 256
"""Maximum messages of platforms that are being received at the same time: their signature is in the body."""
LONGEST_PUSH = 2**20
"""Bytes of such a message: about ten for each character of the longest text that is kept."""
BODIES_PER_KEY = 10
"""Memory limit of all requests of one API key, in bodies and responses of the largest size (`[server]
max_body_mb`). A response counts until its client has read it."""
PIECE = 256 * 1024
"""Back-pressure: a larger response is written in pieces of this size, each after the client has read the
previous one."""
LARGE_BODY = 128 * 1024
"""A larger body is parsed, checked and hashed in a thread: on the event loop it would delay all requests."""
WORK_THREADS = 2
"""Number of these threads."""
VALUES_PER_MESSAGE = 50
"""Maximum JSON values in one body, for each message that `[limits] messages_per_request` allows. They are
counted before parsing: 20 MiB of `[]` would be seven million objects."""
PARTS_PER_MESSAGE = 10
"""Maximum content parts and tool calls in one body, for each message that `messages_per_request` allows."""

# --- API keys ------------------------------------------------------------------------------------------

RESERVED = 10
"""One key can use all but one tenth (1 / RESERVED) of `[server] max_requests`; that is left to other keys."""
RETRY_SECONDS = 5


def connection_limit(files: int, max_requests: int) -> int:
    """Maximum open connections: two for each of `max_requests`, since clients keep idle ones.

    Fewer if `files`, the limit on open files, is too low for them, the sockets to the model and the store.
    """
    return max(1, min(2 * max_requests, (files - SPARE_FILES) * 2 // 3))


def files_wanted(max_requests: int) -> int:
    """Open files needed for `connection_limit` and a socket to the model for each request."""
    return 3 * max_requests + SPARE_FILES


class Tally:
    """Counts what each API key uses of one resource and applies its limit `most`. 0: unlimited."""

    def __init__(self, most: int, refusal: Callable[[], HttpError], workers: KeyCounts | None = None) -> None:
        """`workers`: the counts of this server's other workers; None: there are none."""
        self._most = most
        self._refusal = refusal
        self._workers = workers if most else None
        self._held: dict[str, int] = {}

    def take(self, key_id: str, amount: int = 1) -> None:
        """Add `amount` to the key's count; the caller must `give_back`. Over the limit: raises, counting
        nothing."""
        held = self._held.get(key_id, 0)
        used = held if self._workers is None else held + self._workers.elsewhere(key_id)
        if self._most and used and used + amount > self._most:  # a first one may exceed the limit
            raise self._refusal()
        self._held[key_id] = held + amount
        if self._workers is not None:
            self._workers.publish(key_id, held + amount)

    def give_back(self, key_id: str, amount: int = 1) -> None:
        self._held[key_id] -= amount
        if self._workers is not None:
            self._workers.publish(key_id, self._held[key_id])
        if self._held[key_id] <= 0:
            del self._held[key_id]  # else the dict would grow with every key ever used

    def held(self, key_id: str) -> int:
        return self._held.get(key_id, 0)


class KeyLimits:
    """Counters per API key: requests, streams, turns, bytes of bodies."""

    def __init__(
        self, settings: LimitSettings, max_requests: int, max_body: int, worker: Row | None = None
    ) -> None:
        def shared(column: KeyColumn) -> KeyCounts | None:
            return None if worker is None else worker.counts(column)

        share = max_requests - max_requests // RESERVED
        self.requests = Tally(
            share,
            lambda: _too_many(
                f"this API key has {share} requests in progress, which is its share of [server] max_requests",
                "too_many_requests",
            ),
            shared(KeyColumn.REQUESTS),
        )
        self.bytes = Tally(
            BODIES_PER_KEY * max_body,
            lambda: _too_many(
                f"the requests in progress of this API key hold {BODIES_PER_KEY * max_body / 2**20:g} "
                "MiB, which is the limit; wait until some are answered",
                "too_many_bytes",
            ),
            shared(KeyColumn.BYTES),
        )
        self.streams = Tally(
            settings.streams_per_key,
            lambda: _too_many(
                f"this API key has {settings.streams_per_key} streams open, which is the limit "
                "([limits] streams_per_key); close one first",
                "too_many_streams",
            ),
            shared(KeyColumn.STREAMS),
        )
        self.turns = TurnTally(settings.turns_per_key, shared(KeyColumn.TURNS))


class TurnTally:
    """The ids of the turns that each API key has started and that still run in this process."""

    def __init__(self, most: int, workers: KeyCounts | None = None) -> None:
        """`workers`: the counts of this server's other workers; None: there are none."""
        self._most = most
        self._workers = workers if most else None
        self._running: dict[str, set[str]] = {}

    def begin(self, key_id: str, turn_id: str) -> None:
        """Count a turn that is about to start; raises HttpError 429 if the key has too many."""
        running = self._running.setdefault(key_id, set())
        used = len(running) if self._workers is None else len(running) + self._workers.elsewhere(key_id)
        if self._most and used >= self._most and turn_id not in running:
            if not running:
                del self._running[key_id]
            raise _too_many(
                f"this API key has {self._most} turns running, which is the limit ([limits] turns_per_key); "
                "wait until one has ended",
                "too_many_turns",
            )
        running.add(turn_id)
        if self._workers is not None:
            self._workers.publish(key_id, len(running))

    def end(self, key_id: str, turn_id: str) -> None:
        """Stop counting a turn. Idempotent: it need not have been counted."""
        running = self._running.get(key_id)
        if running is not None:
            running.discard(turn_id)
            if self._workers is not None:
                self._workers.publish(key_id, len(running))
            if not running:
                del self._running[key_id]

    def runs(self, key_id: str, turn: RunningTurn, instead_of: str | None = None) -> None:
        """Count a turn that runs already, until it has ended: that is never refused. `instead_of`: the turn
        that a request was to start, if it joined or resumed this one."""
        turn_id, running = turn.turn.id, self._running.setdefault(key_id, set())
        running.discard(instead_of or turn_id)
        running.add(turn_id)
        if self._workers is not None:
            self._workers.publish(key_id, len(running))
        turn.when_ended(lambda: self.end(key_id, turn_id))

    def running(self, key_id: str) -> int:
        return len(self._running.get(key_id, ()))


def _too_many(message: str, code: str) -> HttpError:
    return HttpError(429, message, code, headers={**RETRY, "retry-after": str(RETRY_SECONDS)})


class HeldLimits:
    """The part of a `RequestContext` that counts what the request uses of the limits, until it ends."""

    if not TYPE_CHECKING:  # the attributes below are slots of RequestContext
        __slots__ = ()

    services: Services
    id: str
    _caller: Caller | None
    _held: dict[str, Callable[[], None]]
    """What this request uses of its API key's limits: name to release function."""
    _bytes: int

    @property
    def caller(self) -> Caller:
        raise NotImplementedError

    def hold_slot(self) -> None:
        """Count this request among all requests under way and those of its API key; raises HttpError over
        either limit."""
        gate, requests, key_id = self.services.gate, self.services.limits.requests, self.caller.key_id
        gate.enter()
        try:
            requests.take(key_id)
        except BaseException:
            gate.leave()
            raise

        def leave() -> None:
            gate.leave()
            requests.give_back(key_id)

        self._held["slot"] = leave

    def leave_slot(self) -> None:
        """Stop counting it as a request under way: from now on it is only a stream."""
        self._give_back("slot")

    def hold_stream(self) -> None:
        """Count one stream of this API key until the request ends; raises HttpError over the limit.

        Idempotent per request: called by a handler before it starts anything, and again by its stream.
        """
        if "stream" in self._held or self._caller is None:
            return
        streams, key_id = self.services.limits.streams, self._caller.key_id
        streams.take(key_id)
        self._held["stream"] = lambda: streams.give_back(key_id)

    def hold_turn(self) -> None:
        """Count one turn of this API key until the request ends: for answers without a stored turn. Raises
        HttpError over the limit. Idempotent per request."""
        if "turn" in self._held:
            return
        turns, key_id, turn_id = self.services.limits.turns, self.caller.key_id, new_id("turn")
        turns.begin(key_id, turn_id)  # not under the request's id, which its client may choose
        self._held["turn"] = lambda: turns.end(key_id, turn_id)

    def hold_bytes(self, more: int) -> None:
        """Add `more` bytes to the memory used by this API key's requests; raises HttpError over the limit."""
        if self._caller is not None and more:
            held, key_id = self.services.limits.bytes, self._caller.key_id
            held.take(key_id, more)
            self._bytes = size = self._bytes + more
            self._held["bytes"] = lambda: held.give_back(key_id, size)

    def _give_back(self, name: str) -> None:
        give_back = self._held.pop(name, None)
        if give_back is not None:
            give_back()

    def give_back_all(self) -> None:
        """Release everything this request has counted; called when it has ended."""
        while self._held:
            self._held.popitem()[1]()


# --- requests and tokens of an API key -------------------------------------------------------------------
#
# Exact over all nodes. A request counts when it asks the model: for a turn, a retry of one, an answer that is
# not stored, or a summary. It is refused once a window's requests or tokens are used up. Tokens count when
# an answer is committed or ends, as the model reports them: answers that run at the same time may together
# exceed the limit, and none is cut short. Tokens of flushes, and of summaries of what is stored, count for no
# key.


def limited_key(call: RequestContext) -> str | None:
    """The id of the request's API key if its tokens must be counted."""
    key = call.key
    return key.id if key is not None and key.limits else None


async def count_request(call: RequestContext) -> None:
    """Count this request for its API key, once. At a limit: raises RateLimited, having counted nothing."""
    key = call.key
    if key is None or not key.limits or "request" in call._held:
        return
    reached = await call.hf.count_request(key.id, key.limits)
    if reached is not None:
        raise RateLimited(reached.name, reached.most, reached.retry_after.total_seconds())
    call._held["request"] = _kept


def _kept() -> None:
    """What was counted in a window stays so when the request ends."""


async def spend(call: RequestContext, usage: object) -> None:
    """Count the tokens that the model reports for an answer to this request."""
    if call.key is not None and call.key.limits:
        await call.hf.spend_tokens(call.key.id, tokens_in(usable_usage(usage)[0]))


async def counted(call: RequestContext, chunks: AsyncGenerator[Chunk, None]) -> AsyncGenerator[Chunk, None]:
    """The chunks of an answer that is not stored; its request is counted before the model is asked, its
    tokens before its end."""
    await count_request(call)
    usage: object = None
    async for chunk in chunks:
        usage = chunk.value.get("usage") or usage
        yield chunk
    await spend(call, usage)


StartedTurn = TypeVar("StartedTurn", bound=RunningTurn | TurnRepeated | TurnOutdated)


async def counted_turn(
    call: RequestContext, turn_id: str, start: Callable[[], Awaitable[StartedTurn]]
) -> StartedTurn:
    """Count a turn of the request's API key: while it waits to start, and until the turn that it started or
    joined has ended. Raises HttpError 429 if the key has too many."""
    turns, key_id = call.services.limits.turns, call.caller.key_id
    turns.begin(key_id, turn_id)
    try:
        outcome = await start()
    except BaseException:
        turns.end(key_id, turn_id)
        raise
    if not isinstance(outcome, RunningTurn) or outcome.task is None or outcome.outcome is not None:
        turns.end(key_id, turn_id)
        return outcome
    turns.runs(key_id, outcome, turn_id)
    return outcome
