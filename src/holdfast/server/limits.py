"""Every limit on what one client may make the server hold or do, and the counters per API key.

Figures that an operator may change are settings (`[server] max_body_mb`, `max_requests` and `[limits]`); the
others are here. `connections.py` applies those of connections and request heads, `call.py` those of bodies,
`work.py` those of JSON. Counts per key are those of this process.
"""

from __future__ import annotations

from collections.abc import Callable

from ..settings import LimitSettings
from .http_errors import RETRY, HttpError

# --- connections ---------------------------------------------------------------------------------------

HEADERS = 100
"""Header fields of one request, trailers included."""
HEAD_BYTES = 64 * 1024
"""URL, names and values of one request's header fields together."""
HEAD_SECONDS = 10.0
"""Time for the headers of a request, and for the first byte of a new connection."""
KEEP_ALIVE_SECONDS = 75
"""How long a connection may be idle between two requests."""
PIPELINED = 8
"""Requests that may wait on one connection for the answer of an earlier one."""
LINGER_SECONDS = 10.0
LINGER_BYTES = 64 * 2**20
"""After an answer that was sent before the whole request had come: for how long, and how much of the rest, is
read and dropped before the connection is closed. Closing at once could destroy the answer on its way."""
STALL_SECONDS = 60.0
"""A client that has taken no byte of its answer for this long is disconnected."""

SPARE_FILES = 200
"""Open files kept for the store, logs and background processes, beside all sockets."""

# --- bodies --------------------------------------------------------------------------------------------

BODY_SECONDS = 60.0
"""Time for a request's body."""
FORM_SECONDS = 10.0
"""Time for the body of a form that is sent without a key: the login."""
FORMS = 32
"""Forms without a key that may be arriving at once."""
BODIES_PER_KEY = 10
"""Bodies and answers of the largest size (`[server] max_body_mb`) that the requests of one key may hold
together. An answer counts until its client has taken it."""
PIECE = 256 * 1024
"""A larger answer is written in pieces of this size, each when the client has taken the one before."""
LARGE_BODY = 128 * 1024
"""A larger body is parsed, checked and hashed in a thread: on the event loop all others would wait."""
WORK_THREADS = 2
"""How many of these threads there are."""
VALUES_PER_MESSAGE = 50
"""JSON values in one body, for each message that `[limits] messages_per_request` allows. They are counted
before they are made: 20 MiB of `[]` would be seven million objects."""
PARTS_PER_MESSAGE = 10
"""Content parts and tool calls in one body, for each message that `messages_per_request` allows."""

# --- keys ----------------------------------------------------------------------------------------------

RESERVED = 10
"""One tenth of `[server] max_requests` is left to other keys, whatever one key has under way."""
RETRY_SECONDS = 5


def connection_limit(files: int, max_requests: int) -> int:
    """Connections that may be open at once: two for each request that may be under way, since clients keep
    idle ones; fewer where the process may not open enough files for them, the model's sockets and the store.
    """
    return max(1, min(2 * max_requests, (files - SPARE_FILES) * 2 // 3))


def files_wanted(max_requests: int) -> int:
    """Open files that are enough for `connection_limit` and a socket to the model for each request."""
    return 3 * max_requests + SPARE_FILES


class Tally:
    """How much of something each key holds now, and how much one may hold. 0: unlimited."""

    def __init__(self, most: int, refusal: Callable[[], HttpError]) -> None:
        self._most = most
        self._refusal = refusal
        self._held: dict[str, int] = {}

    def take(self, key_id: str, amount: int = 1) -> None:
        """Count this much more for the key, which must `give_back`; or refuse and count nothing."""
        held = self._held.get(key_id, 0)
        if self._most and held and held + amount > self._most:  # alone, it may be larger than all together
            raise self._refusal()
        self._held[key_id] = held + amount

    def give_back(self, key_id: str, amount: int = 1) -> None:
        self._held[key_id] -= amount
        if self._held[key_id] <= 0:
            del self._held[key_id]  # keys come and go: only those that hold something are remembered

    def held(self, key_id: str) -> int:
        return self._held.get(key_id, 0)


class KeyLimits:
    """What each key holds: requests, streams, turns, bytes of bodies."""

    def __init__(self, settings: LimitSettings, max_requests: int, max_body: int) -> None:
        share = max_requests - max_requests // RESERVED
        self.requests = Tally(
            share,
            lambda: _too_many(
                f"this key has {share} requests under way, which is its share of [server] max_requests",
                "too_many_requests",
            ),
        )
        self.bytes = Tally(
            BODIES_PER_KEY * max_body,
            lambda: _too_many(
                f"the requests of this key that are under way hold {BODIES_PER_KEY * max_body / 2**20:g} "
                "MiB, which is the limit; wait until some are answered",
                "too_many_bytes",
            ),
        )
        self.streams = Tally(
            settings.streams_per_key,
            lambda: _too_many(
                f"this key has {settings.streams_per_key} streams open, which is the limit "
                "([limits] streams_per_key); close one first",
                "too_many_streams",
            ),
        )
        self.turns = TurnTally(settings.turns_per_key)


class TurnTally:
    """The turns that each key has begun and that still run here, by their ids."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[str, set[str]] = {}

    def begin(self, key_id: str, turn_id: str) -> None:
        """Count a turn that is about to begin; refuse it if the key has too many."""
        running = self._running.setdefault(key_id, set())
        if self._most and len(running) >= self._most and turn_id not in running:
            raise _too_many(
                f"this key has {self._most} turns running, which is the limit ([limits] turns_per_key); "
                "wait until one has ended",
                "too_many_turns",
            )
        running.add(turn_id)

    def end(self, key_id: str, turn_id: str) -> None:
        """Whether it was counted or not."""
        running = self._running.get(key_id)
        if running is not None:
            running.discard(turn_id)
            if not running:
                del self._running[key_id]

    def running(self, key_id: str) -> int:
        return len(self._running.get(key_id, ()))


def _too_many(message: str, code: str) -> HttpError:
    return HttpError(429, message, code, headers={**RETRY, "retry-after": str(RETRY_SECONDS)})
