"""One HTTP request: authentication, limits, body, response and error handling.

`Endpoint` is the ASGI endpoint of a route. Before its handler runs, it checks Host and Origin, authenticates
the caller and applies the limits on requests. Exceptions of the handler are answered in the error shape of
the API that the request uses, OpenAI's or Anthropic's. A body is read only on demand, within limits of size
and time, and must be a JSON object.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ..app import Holdfast, ModelWatch, TurnRunner
from ..domain.api_keys import ApiKey, Caller, acting_as, acting_for
from ..domain.ids import is_short, new_request_id
from ..domain.turns import Delivery
from ..errors import BadInput, BadKey, HoldfastError, KeyRevoked, ModelError, StoreError, StoreFailed
from ..models.base import REQUEST_ID, Model
from ..settings import Settings
from .access_log import AccessLog
from .connections import cycle_of, in_ascii, take_body, write_whole
from .gate import Gate, Headers
from .http_errors import ErrorResponse, HttpError, anthropic_error, failure_of
from .limits import BODY_SECONDS, LARGE_BODY, PIECE, KeyLimits
from .log_buffer import LogBuffer
from .metrics import Metrics
from .openai.parameters import BadParameter, body_from
from .work import BodyThreads, check_values
from .workers.worker import Worker

log = logging.getLogger(__name__)

T = TypeVar("T")
Body = TypeVar("Body", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Services:
    """The services that handlers use; `server.py` builds them once."""

    holdfast: Holdfast
    model: Model
    gate: Gate
    limits: KeyLimits
    body_threads: BodyThreads
    metrics: Metrics
    draining: asyncio.Event
    """Set when the server begins to stop: endless streams end now."""
    broken: asyncio.Event
    """Set when the store has failed permanently: the server must stop."""
    model_watch: ModelWatch
    access_log: AccessLog
    log_buffer: LogBuffer
    worker: Worker | None = None
    """This process among the server's workers; None: the server is one process."""

    @property
    def runner(self) -> TurnRunner:
        return self.holdfast.runner

    @property
    def settings(self) -> Settings:
        return self.holdfast.settings


@dataclass(slots=True)
class JsonResponse:
    """A response sent as one body."""

    value: Any
    """Encoded as JSON; bytes are sent unchanged."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = "application/json"
    answers: str | None = None
    """The id of the turn whose complete answer this is; its delivery is recorded."""

    async def send(self, call: RequestContext) -> None:
        body = self.value if isinstance(self.value, bytes) else _encode(self.value)
        self.value = body  # a client that reads slowly holds the bytes in memory, not the object as well
        last = 0
        if len(body) > PIECE:
            call.hold_bytes(len(body))  # counts until the client has read it
            last = (len(body) - 1) // PIECE * PIECE
        await call.start(self.status, {"content-type": self.media_type, **self.headers}, len(body))
        if self.answers is not None:
            if await call.finish(body):
                call.services.runner.receipts.note(self.answers, Delivery.WHOLE)
            return
        for at in range(0, last, PIECE):
            await call.send({"type": "http.response.body", "body": body[at : at + PIECE], "more_body": True})
        await call.send({"type": "http.response.body", "body": body[last:] if last else body})


@dataclass(slots=True)
class PiecesResponse:
    """A response sent piece by piece, as its client reads: for what is too large to be held or encoded whole.

    An error while the first piece is made is answered as usual; a later one ends the connection.
    """

    pieces: AsyncIterator[bytes]
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    async def send(self, call: RequestContext) -> None:
        async for piece in self.pieces:
            await call.start(200, {"content-type": self.media_type, **self.headers})
            for at in range(0, len(piece), PIECE):
                await call.send(
                    {"type": "http.response.body", "body": piece[at : at + PIECE], "more_body": True}
                )
        await call.send({"type": "http.response.body", "body": b""})


class HttpResponse(Protocol):
    """What a handler returns: `JsonResponse`, a stream, or anything else that can send itself."""

    async def send(self, call: RequestContext) -> None: ...


@dataclass(slots=True)
class RequestContext:
    services: Services
    request: Request
    headers: Headers
    receive: Receive
    _send: Send
    id: str
    key: ApiKey | None = None
    _caller: Caller | None = None
    still_logged_in: Callable[[], Awaitable[bool]] | None = None
    """For a browser's request: returns whether its login is still valid."""
    started: bool = False
    status: int = 0
    began: float = field(default_factory=time.monotonic)
    _held: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What this request uses of its API key's limits: name to release function."""
    _bytes: int = 0
    sent_bytes: int = 0
    """Bytes of the response's body so far."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    """Headers to add to the response, whatever it is."""
    _cycle: RequestResponseCycle | None = field(init=False)

    def __post_init__(self) -> None:
        self._cycle = cycle_of(self.receive)

    @property
    def known_caller(self) -> Caller | None:
        """The caller; None: not authenticated."""
        return self._caller

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            raise BadKey()
        return self._caller

    @property
    def owner(self) -> str:
        """The owner whose data this request writes."""
        return self.caller.owner

    @property
    def read_owner(self) -> str | None:
        """The owner whose data this request reads; None: all owners, for admins only."""
        return acting_for(self.caller, self.request.query_params.get("owner"))

    @property
    def hf(self) -> Holdfast:
        """The operations that handlers call."""
        return self.services.holdfast

    @property
    def is_anthropic(self) -> bool:
        """True: the request uses Anthropic's API, so its errors have Anthropic's shape."""
        path: str = self.request.scope["path"]
        return path.startswith("/v1/messages") or (
            path.startswith("/v1/models") and bool(self.headers.get("anthropic-version"))
        )

    def error(self, failure: ErrorResponse, ours: object = None) -> dict[str, Any]:
        """The body of an error response, in the shape of the API that the request uses; `ours`: its
        `holdfast` field."""
        added = {} if ours is None else {"holdfast": ours}
        if self.is_anthropic:
            return {**anthropic_error(failure, self.id), **added}
        return {"error": failure.object(), **added}

    async def check_key(self) -> None:
        """Raises KeyRevoked unless the request's API key, and its browser login if any, are still valid.

        Must be called after every wait, before anything is written or sent.
        """
        if self.key is None:
            return
        if not await self.hf.authenticator.is_valid(self.key):
            raise KeyRevoked
        if self.still_logged_in is not None and not await self.still_logged_in():
            raise KeyRevoked

    def header(self, *names: str) -> str | None:
        """The first of these headers that is present and not empty."""
        return self.headers.first(names)

    def query(self, name: str) -> str | None:
        return self.request.query_params.get(name)

    def query_number(self, name: str, default: int, least: int = 0, most: int = 2**53) -> int:
        text = self.request.query_params.get(name)
        if text is None or text == "":
            return default
        if not text.isascii() or not text.isdecimal() or len(text) > 16 or not least <= int(text) <= most:
            raise BadParameter(name, f"must be a whole number from {least} to {most}, not {text!r:.40}")
        return int(text)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    async def body(self, seconds: float | None = None) -> bytes:
        """The request's body. Raises HttpError if it is too large, arrives too slowly (`seconds` replaces
        BODY_SECONDS), or if this API key's requests exceed their memory limit."""
        limit = int(self.services.settings.server.max_body_mb * 2**20)
        declared = self.headers.get("content-length")
        if declared.isdecimal() and int(declared) > limit:
            raise _too_large(limit)
        cycle = self._cycle
        whole = take_body(cycle) if cycle is not None else None
        if whole is not None:
            if len(whole) > limit:
                raise _too_large(limit)
            self.hold_bytes(len(whole))
            return whole
        whole = b""
        with BodyDeadline(BODY_SECONDS if seconds is None else seconds) as deadline:
            whole = await self._read_body(limit)
        if deadline.passed:
            raise HttpError(408, "the request's body did not arrive in time", "request_timeout")
        return whole

    async def _read_body(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect()
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            self.hold_bytes(len(piece))
            pieces.append(piece)
            if not message.get("more_body"):
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def json(self, *, optional: bool = False) -> dict[str, Any]:
        """The body as a JSON object; with `optional`, a missing body is an empty object."""
        body = await self.body()
        return await self.work(len(body), lambda: self.parsed(body, optional=optional))

    async def decoded(self, kind: type[Body]) -> Body:
        """The body as this Struct; a missing body is an empty object. Raises BadParameter if it does not
        match."""
        return body_from(await self.json(optional=True), kind)

    def parsed(self, body: bytes, *, optional: bool = False) -> dict[str, Any]:
        """Parse a body as a JSON object, within the limit on JSON values."""
        check_values(body, self.services.settings.limits.messages_per_request)
        return parsed(body, optional=optional)

    async def work(self, size: int, work: Callable[[], T]) -> T:
        """Returns `work()`; runs it in a thread if `size`, the bytes of the body it processes, is large."""
        if size <= LARGE_BODY:
            return work()
        return await self.services.body_threads.run(self._caller.key_id if self._caller else "", size, work)

    # --- usage of the API key's limits -------------------------------------------------------------

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

    async def changed(self, version: int, timeout: float) -> bool:
        """Wait for a commit, as `Store.changed`; the waits of one API key are paced together."""
        return await self.hf.changed(version, timeout, self._caller.key_id if self._caller else "open")

    def hold_turn(self) -> None:
        """Count one turn of this API key until the request ends: for answers without a stored turn."""
        turns, key_id = self.services.limits.turns, self.caller.key_id
        turns.begin(key_id, self.id)
        self._held["turn"] = lambda: turns.end(key_id, self.id)

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

    async def disconnected(self) -> None:
        """Returns when the client has disconnected."""
        while (await self.receive())["type"] != "http.disconnect":
            continue

    def is_open(self) -> bool:
        """True: the client is still connected and its response not sent yet. Does not wait. Call it only
        after the body was read."""
        cycle = self._cycle
        if cycle is not None:
            return not (cycle.disconnected or cycle.response_complete)
        looking = self.receive().__await__()
        try:
            next(looking)
        except StopIteration as found:
            return bool(found.value["type"] != "http.disconnect")
        looking.close()
        return True

    async def start(self, status: int, headers: Mapping[str, str], length: int | None = None) -> None:
        if self.started:  # a stream that was announced before its turn began
            return
        self.started, self.status = True, status
        listed = [(name.encode(), value.encode()) for name, value in self._complete(headers).items()]
        if length is not None:
            listed.append((b"content-length", b"%d" % length))
        await self._send({"type": "http.response.start", "status": status, "headers": listed})

    async def respond(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Send a whole response with status 200. True: its last byte was written to an open connection."""
        cycle = self._cycle
        is_plain = cycle is not None and cycle.scope["method"] == "POST" and len(body) <= PIECE
        if cycle is not None and is_plain and write_whole(cycle, self._complete(headers), body):
            self.started, self.status = True, 200
            self.sent_bytes += len(body)
            return True
        await self.start(200, headers, len(body))
        return await self.finish(body)

    def _complete(self, headers: Mapping[str, str]) -> dict[str, str]:
        """These headers of a response, and those that every response has; all values are printable ASCII."""
        found = {
            "x-content-type-options": "nosniff",
            **headers,
            **self.reply_headers,
            "x-request-id": self.id,
            **self.services.gate.headers_for(self.headers),
        }
        if self.is_anthropic:
            found["request-id"] = self.id
        return in_ascii(found)

    async def send(self, message: dict[str, Any]) -> None:
        self.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def finish(self, body: bytes) -> bool:
        """Send the rest of the response. True: its last byte was written to an open connection."""
        self.sent_bytes += len(body)
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)] or [b""]
        if len(pieces) > 1:  # back-pressure: as fast as the client reads
            for piece in (*pieces[:-1], b""):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        is_open = self.is_open()
        await self._send({"type": "http.response.body", "body": pieces[-1]})
        return is_open


Handler = Callable[[RequestContext], Awaitable[HttpResponse]]


class Endpoint:
    """ASGI endpoint of a route: authenticates, applies limits, runs the handler, answers errors."""

    def __init__(self, services: Services, handler: Handler, *, name: str, open: bool = False) -> None:
        self._services = services
        self._handler = handler
        self._name = name
        self._open = open
        """True: no API key is needed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        headers = Headers(scope["headers"])
        call = RequestContext(
            services, Request(scope, receive), headers, receive, send, request_id_of(headers)
        )
        REQUEST_ID.set(call.id)
        services.metrics.begin()
        try:
            services.gate.check(headers)
            if self._open:
                await (await self._handler(call)).send(call)
            else:
                await self._answer(call)
        except ClientDisconnect:
            return
        except StoreFailed as error:
            log.critical("%s; the server stops", error)
            services.broken.set()
            await fail(call, failure_of(error))
        except (HoldfastError, RecursionError) as error:
            note_trouble(self._name, call, error)
            await fail(call, failure_of(error))
        except Exception as error:
            log.exception("%s failed with an unexpected error (request %s)", self._name, call.id)
            await fail(call, failure_of(error))
        finally:
            call.give_back_all()
            services.metrics.end(self._name, call.status, call.began)
            services.access_log.note(call, self._name)

    async def _answer(self, call: RequestContext) -> None:
        services, headers = self._services, call.headers
        call.key = await services.holdfast.authenticator.authenticate(_token(headers))
        call._caller = acting_as(call.key, headers.once("x-holdfast-owner"))
        call.hold_slot()
        if call.request.path_params:
            await expand_id(call)
        answer = await self._handler(call)
        await call.check_key()  # it may have been revoked while the handler waited
        await answer.send(call)


async def expand_id(call: RequestContext) -> None:
    """Replace a shortened id in the path by the id that it begins. Raises AmbiguousId."""
    given = call.request.path_params.get("id")
    if given is not None and is_short(given):
        owner = call.owner if call.request.scope["path"].startswith("/v1/") else call.read_owner
        call.request.path_params["id"] = await call.hf.full_id(owner, given)


class BodyDeadline:
    """Timeout for the awaits in its block; `passed` is True if it expired. Costs only a timer, because every
    request with a body has one."""

    __slots__ = ("_seconds", "_task", "_timer", "passed")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.passed = False

    def __enter__(self) -> BodyDeadline:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._pass)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._timer.cancel()
        if not self.passed or kind is None or not issubclass(kind, asyncio.CancelledError):
            return False
        assert self._task is not None
        return self._task.uncancel() == 0  # True: only this deadline cancelled it

    def _pass(self) -> None:
        assert self._task is not None
        self.passed = True
        self._task.cancel()


_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id_of(headers: Headers) -> str:
    """The client's `X-Request-Id` if it can be used as one, else a new id."""
    given = headers.get("x-request-id")
    return given if given and _REQUEST_ID.fullmatch(given) else new_request_id()


def note_trouble(route: str, call: RequestContext, error: BaseException) -> None:
    """Log the details that are not sent to the client because they name files and hosts."""
    if isinstance(error, StoreError) or (isinstance(error, ModelError) and error.public != str(error)):
        log.warning("%s: %s (request %s)", route, error, call.id)


async def fail(call: RequestContext, failure: ErrorResponse) -> None:
    """Send an error response. If a response has started, send nothing: the connection just ends."""
    if not call.started:
        await JsonResponse(call.error(failure), failure.status, failure.headers).send(call)


def parsed(body: bytes, *, optional: bool = False) -> dict[str, Any]:
    if optional and not body.strip():
        return {}
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"the body is not valid JSON: {_fault(body) or error}") from None
    if not isinstance(value, dict):
        raise BadInput("the body must be a JSON object")
    return value


_WHOLE_PAIRS = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?:d[89ab]..\\ud[c-f]..|(?!d[89a-f])....))*+", re.DOTALL | re.IGNORECASE
)
_SURROGATE = re.compile(rb"\\ud[89a-f][0-9a-f]{2}", re.IGNORECASE)


def _fault(body: bytes) -> str | None:
    """What is wrong with a body's text, and where; None: nothing. The parser takes half a surrogate pair
    at the end of a string for the end of the body, and counts the bytes of a string from its beginning."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} (0x{body[error.start]:02x}) is not UTF-8"
    sound = _WHOLE_PAIRS.match(body)
    alone = _SURROGATE.match(body, sound.end() if sound else 0)
    if alone is None:
        return None
    return (
        f"the escape {alone[0].decode()} at byte {alone.start()} is half of a surrogate pair; "
        "send both halves, or the character itself in UTF-8"
    )


def _token(headers: Headers) -> str:
    """The API key of a request: a bearer token, else the header `x-api-key`; empty: none."""
    scheme, _, token = headers.get("authorization").partition(" ")
    return (token.strip() if scheme.lower() == "bearer" else "") or headers.get("x-api-key").strip()


def _too_large(limit: int) -> HttpError:
    return HttpError(
        413, f"the body is larger than {limit / 2**20:g} MiB ([server] max_body_mb)", "request_too_large"
    )
