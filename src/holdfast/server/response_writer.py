"""The response to a request: headers that every response has, large bodies in pieces, and its delivery.

`HttpResponse` is what a handler returns: one body, pieces, or a stream of `streams.py`. A body larger than
PIECE is written as fast as the client reads it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from ..domain.turns import Delivery
from .connections import in_ascii, write_whole
from .gate import Headers
from .limits import PIECE

if TYPE_CHECKING:
    from .http import RequestContext, Services

_encode = msgspec.json.Encoder().encode


class HttpResponse(Protocol):
    """What a handler returns: `JsonResponse`, a stream, or anything else that can send itself."""

    async def send(self, call: RequestContext) -> None: ...


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


class ResponseWriter:
    """The part of a `RequestContext` that sends its response."""

    if not TYPE_CHECKING:  # the attributes below are slots of RequestContext
        __slots__ = ()

    services: Services
    headers: Headers
    receive: Receive
    id: str
    started: bool
    status: int
    sent_bytes: int
    reply_headers: dict[str, str]
    _send: Send
    _cycle: RequestResponseCycle | None

    @property
    def is_anthropic(self) -> bool:
        raise NotImplementedError

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
