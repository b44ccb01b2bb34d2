"""WebSocket mode of `/v1/responses`: each message `response.create` is answered by the events of a stream.

A message is handled as a `POST /v1/responses` with `stream: true` whose headers are those of the handshake:
the same authentication, limits, errors and turns. Each event of its stream is one text message; an error that
HTTP would answer with a status is one message of type `error` with that `status`. Messages are answered one
after the other.

The socket remembers the history of its newest response (`Chain`), so that `previous_response_id` continues it
although nothing was stored. The memory ends with the socket. A turn does not: a client that lost its socket
reads a stored response again, or continues it, on another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope, Send

from ...errors import BadKey, HoldfastError
from ..bodies import parsed
from ..connections import COUNT_UNFINISHED
from ..http import Endpoint, RequestContext, Services
from ..http_errors import SERVER, ErrorResponse, HttpError, failure_of
from ..response_writer import HttpResponse
from .chains import Chain
from .parameters import BadParameter
from .responses import ROUTE, create

CREATE = "response.create"
MOST_SECONDS = 60 * 60.0
"""A socket older than this accepts no further message."""
LOOK_SECONDS = 15.0
"""How often an idle socket checks that its API key is still valid."""
MOST_WAITING = 4
"""Messages that may wait while a response is made; with more, the socket is closed."""
DROPPED = frozenset({b"idempotency-key", b"x-request-id", b"content-length", b"content-type"})
"""Headers of the handshake that must not be repeated with each message."""
PER_MESSAGE = ("x-codex-turn-metadata", "x-codex-window-id", "x-codex-parent-thread-id", "x-openai-subagent")
"""Headers that Codex sends, over a socket, in the message's `client_metadata`."""
NOT_OF_HTTP = ("type", "stream", "stream_options", "generate", "stream_id")

RESTARTS, POLICY, NORMAL = 1012, 1008, 1000

_encode = msgspec.json.Encoder().encode


class ResponseSocket:
    """ASGI endpoint of WebSocket mode."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._endpoint = Endpoint(services, self._opened, name=f"{ROUTE} (WebSocket)")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The handshake is an HTTP request: an error is answered as one."""

        async def as_http(message: Message) -> None:
            kind = message["type"]
            await send({**message, "type": f"websocket.{kind}"} if kind.startswith("http.") else message)

        handshake = {**scope, "type": "http", "method": "GET", "websocket": scope}
        await self._endpoint(handshake, receive, as_http)

    async def _opened(self, call: RequestContext) -> HttpResponse:
        if self._services.draining.is_set():
            raise HttpError(503, "the server is stopping; retry in a moment", "draining")
        call.hold_stream()
        return _OpenSocket(self._services, call.request.scope["websocket"])


class _Closing(Exception):
    """The socket is to be closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class _OpenSocket:
    """One open socket: reads messages, answers them in order, closes."""

    def __init__(self, services: Services, scope: Scope) -> None:
        self._services = services
        self._scope = scope
        self._chain = Chain()
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._flooded = asyncio.Event()
        self._refusal = HttpError(
            429, f"more than {MOST_WAITING} messages are waiting", "too_many_requests"
        ).failure
        """Why no further message is read, once `_flooded` is set."""
        self._endpoint = Endpoint(services, partial(create, chain=self._chain), name=ROUTE)

    async def send(self, call: RequestContext) -> None:
        call.leave_slot()
        call.started, call.status = True, 101
        self._scope["extensions"][COUNT_UNFINISHED](partial(self._count, call.caller.key_id))
        await call.receive()  # websocket.connect
        await call.send({"type": "websocket.accept"})
        reader = asyncio.create_task(self._read(call))
        try:
            await self._serve(call)
        except _Closing as closing:
            with suppress(OSError, RuntimeError):
                await call.send(
                    {"type": "websocket.close", "code": closing.code, "reason": str(closing)[:120]}
                )
        finally:
            self._gone.set()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            while not self._waiting.empty():
                self._taken(call, self._waiting.get_nowait())

    async def _read(self, call: RequestContext) -> None:
        """Queue the client's messages; the last is None, when it has disconnected."""
        while (message := await call.receive())["type"] == "websocket.receive":
            text = message.get("text")
            data = text.encode() if text is not None else message.get("bytes") or b""
            if self._waiting.qsize() >= MOST_WAITING:
                self._flooded.set()
                return
            if not self._count(call.caller.key_id, len(data)):
                return
            self._waiting.put_nowait(data)
        self._gone.set()
        self._waiting.put_nowait(None)

    def _count(self, key_id: str, more: int) -> bool:
        """Count bytes of messages for the API key; less than 0: no longer. False: it may hold no more, and
        the socket is closed."""
        if more < 0:
            self._services.limits.bytes.give_back(key_id, -more)
            return True
        try:
            self._services.limits.bytes.take(key_id, more)
        except HttpError as refused:
            self._refusal = refused.failure
            self._flooded.set()
            return False
        return True

    async def _serve(self, call: RequestContext) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + MOST_SECONDS
        while True:
            data = await self._next(call, ends_at)
            if data is None or self._gone.is_set():
                return
            if loop.time() >= ends_at:
                await self._refuse_old(call)
            await self._answer(call, data)

    async def _next(self, call: RequestContext, ends_at: float) -> bytes | None:
        """The next message. Meanwhile, checks the key, the socket's age and whether the server stops."""
        loop = asyncio.get_running_loop()
        coming = asyncio.ensure_future(self._waiting.get())
        stopping = asyncio.ensure_future(self._services.draining.wait())
        flooded = asyncio.ensure_future(self._flooded.wait())
        waits = (coming, stopping, flooded)
        try:
            while True:
                left = max(0.0, ends_at - loop.time())
                await asyncio.wait(
                    waits, timeout=min(LOOK_SECONDS, left), return_when=asyncio.FIRST_COMPLETED
                )
                if coming.done():
                    return self._taken(call, coming.result())
                if flooded.done():  # nothing is read any more, not even a disconnect
                    await self._tell(call, self._refusal)
                    raise _Closing(POLICY, self._refusal.message)
                if stopping.done():
                    raise _Closing(RESTARTS, "the server is stopping")
                try:
                    await call.check_key()
                except BadKey as error:
                    await self._tell(call, failure_of(error))
                    raise _Closing(POLICY, "the API key is not valid any more") from None
                if loop.time() >= ends_at:
                    await self._refuse_old(call)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _taken(self, call: RequestContext, data: bytes | None) -> bytes | None:
        """Stop counting the bytes of a message that waits no longer."""
        if data:
            self._count(call.caller.key_id, -len(data))
        return data

    async def _refuse_old(self, call: RequestContext) -> None:
        said = f"this connection is older than {MOST_SECONDS / 60:g} minutes; open another"
        await self._tell(call, HttpError(400, said, "websocket_connection_limit_reached").failure)
        raise _Closing(NORMAL, said)

    async def _answer(self, call: RequestContext, data: bytes) -> None:
        try:
            fields = await call.work(len(data), lambda: _message(call, data))
        except (HoldfastError, RecursionError) as error:
            await self._tell(call, failure_of(error))
            return
        self._chain.begin(warms_up=fields.get("generate") is False)
        given = self._chain.with_tools(fields)
        body = _encode(
            {**{name: value for name, value in given.items() if name not in NOT_OF_HTTP}, "stream": True}
        )
        answer = _Answer(call, body, self._gone, self._chain)
        await self._unless_flooded(self._endpoint(self._request(fields), answer.receive, answer.send))
        if answer.failed and fields.get("previous_response_id") == self._chain.id:
            self._chain.forget()
        self._chain.limit(len(data) + answer.last, self._services.settings.server.max_body_mb)
        if not answer.ended and not self._gone.is_set():
            # A stream without its last event: the client must not take it for the whole answer.
            raise _Closing(RESTARTS, "the response was cut off; send the request again")

    async def _unless_flooded(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for the answer. If too many messages wait, the client is disconnected."""
        answering = asyncio.create_task(work)
        flooded = asyncio.create_task(self._flooded.wait())
        try:
            await asyncio.wait({answering, flooded}, return_when=asyncio.FIRST_COMPLETED)
            if flooded.done():
                self._gone.set()
            await answering
        finally:
            for each in (answering, flooded):
                each.cancel()
            await asyncio.gather(answering, flooded, return_exceptions=True)
        if self._flooded.is_set():
            raise _Closing(POLICY, self._refusal.message)

    def _request(self, fields: Mapping[str, Any]) -> MutableMapping[str, Any]:
        """The scope of the HTTP request that this message is handled as."""
        given = fields.get("client_metadata")
        own = {
            name.encode(): value.encode()
            for name in PER_MESSAGE
            if isinstance(given, Mapping) and isinstance(value := given.get(name), str)
        }
        headers = [pair for pair in self._scope["headers"] if pair[0] not in DROPPED and pair[0] not in own]
        return {**self._scope, "type": "http", "method": "POST", "headers": [*headers, *own.items()]}

    async def _tell(self, call: RequestContext, failure: ErrorResponse) -> None:
        await _say(call, _encode(_error(failure)), self._gone)


async def _say(call: RequestContext, data: bytes, gone: asyncio.Event) -> None:
    """Send a text message, unless the client is gone. uvicorn raises if the connection was closed meanwhile;
    for HTTP it drops what is sent then."""
    if gone.is_set():
        return
    try:
        await call.send({"type": "websocket.send", "text": data.decode()})
    except (OSError, RuntimeError):
        gone.set()


def _error(failure: ErrorResponse) -> dict[str, Any]:
    return {"type": "error", "status": failure.status, "error": failure.object()}


def _message(call: RequestContext, data: bytes) -> dict[str, Any]:
    """Parse a message and check what only WebSocket mode demands."""
    fields = call.parsed(data)
    if fields.get("type") != CREATE:
        raise BadParameter("type", f"must be {CREATE!r}, not {fields.get('type')!r:.80}")
    if fields.get("background"):
        raise BadParameter("background", "cannot be used over a WebSocket")
    if not isinstance(fields.get("generate", True), bool):
        raise BadParameter("generate", "must be true or false")
    return fields


@dataclass(slots=True)
class _Answer:
    """The HTTP connection of one message: its body in, its events or its error out to the socket."""

    call: RequestContext
    body: bytes
    gone: asyncio.Event
    chain: Chain
    failed: bool = False
    ended: bool = False
    """True: the last event, or an error, was sent."""
    last: int = 0
    """Bytes of the last event."""
    _read: bool = False
    _status: int = 0
    _streams: bool = False
    _rest: bytes = b""

    async def receive(self) -> Message:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._streams = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            return
        self._rest += message.get("body", b"")
        if self._streams:
            *frames, self._rest = self._rest.split(b"\n\n")
            for frame in frames:
                await self._event(frame)
        elif not message.get("more_body"):
            self.failed = self.ended = True
            await self._say(_encode({"type": "error", "status": self._status, **parsed(self._rest)}))

    async def _event(self, frame: bytes) -> None:
        """Send the event of an SSE frame. Comments and [DONE] are of SSE only."""
        data = next((line[6:] for line in frame.split(b"\n") if line.startswith(b"data: ")), b"[DONE]")
        if data == b"[DONE]":
            return
        if data.startswith(LAST):
            self.ended, self.last = True, len(data)
            self.failed = not self.chain.end(msgspec.json.decode(data)["response"])
        elif data.startswith(b'{"error"'):  # outside any response: the key was revoked, or cannot be read
            self.failed = self.ended = True
            error = parsed(data)
            status = 503 if error["error"]["type"] == SERVER else 401
            data = _encode({"type": "error", "status": status, **error})
        elif data.startswith(b'{"type":"error"'):
            self.failed = self.ended = True
        await self._say(data)

    async def _say(self, data: bytes) -> None:
        await _say(self.call, data, self.gone)


LAST = tuple(f'{{"type":"response.{name}"'.encode() for name in ("completed", "incomplete", "failed"))
