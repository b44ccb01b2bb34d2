"""HTTP/1.1 connections with limits, which uvicorn's protocol over httptools does not have.

A request's head is limited in fields, bytes and time; over a limit the response is 431 or 408, and the
connection is closed. Trailer fields of a chunked body are counted and dropped, so that nothing after the head
adds a header. The number of connections stays below the process's limit on open files. At the limit a new
connection replaces the one that has had no request for longest, so that silent connections cannot lock out
clients. If every connection has a request under way, the new one gets a 503. A client that does not read its
response is disconnected.

All limits are in `limits.py`.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import quote

import httptools
import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ..domain.ids import new_request_id
from .http_errors import HttpError
from .limits import (
    HEAD_BYTES,
    HEAD_SECONDS,
    HEADERS,
    KEEP_ALIVE_SECONDS,
    LINGER_BYTES,
    LINGER_SECONDS,
    PING_SECONDS,
    PIPELINED,
    PONG_SECONDS,
    SMALL_CHUNK,
    SMALL_CHUNKS,
    STALL_SECONDS,
)
from .workers.board import Row, RowColumn

SOCKET_PATH = b"/v1/responses"
"""The only path that can be upgraded to a WebSocket."""
COUNT_UNFINISHED = "holdfast.count_unfinished"
"""Extension in the scope of a WebSocket: `SocketConnection.count_unfinished`."""


def http_config(
    app: ASGIApp, connections: Connections, grace_seconds: int, largest_message: int = 20 * 2**20
) -> uvicorn.Config:
    """uvicorn's configuration for a server with these connection limits; `largest_message`: bytes of a
    message over a WebSocket."""
    protocol = partial(HttpConnection, connections)
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        ws=cast("type[asyncio.Protocol]", partial(_web_socket, connections)),
        ws_max_size=largest_message,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace_seconds,
    )


def _web_socket(connections: Connections, **given: Any) -> asyncio.Protocol:
    from .socket_connection import SocketConnection  # few servers have one, and it takes long to import

    return cast(asyncio.Protocol, SocketConnection(connections, **given))


def cycle_of(receive: Receive) -> RequestResponseCycle | None:
    """uvicorn's state of the request that `receive` reads; None: another server's."""
    cycle = getattr(receive, "__self__", None)
    return cycle if isinstance(cycle, RequestResponseCycle) else None


def in_ascii(headers: dict[str, str]) -> dict[str, str]:
    """These headers with values of printable ASCII; other characters are percent-encoded, as in a URL."""
    if _is_plain("".join(headers.values())):
        return headers
    return {
        name: value if _is_plain(value) else quote(value, safe=string.printable.strip())
        for name, value in headers.items()
    }


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def take_body(cycle: RequestResponseCycle) -> bytes | None:
    """The body of a request that has all arrived, as `cycle.receive` would return it. None: it has not, or
    that would do more."""
    if cycle.more_body or not cycle.message_event.is_set() or cycle.flow.read_paused:
        return None
    if cycle.waiting_for_100_continue or cycle.disconnected or cycle.response_complete:
        return None
    cycle.message_event.clear()
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


def write_whole(cycle: RequestResponseCycle, headers: Mapping[str, str], body: bytes) -> bool:
    """Answer a POST with 200 in one write, where `cycle.send` needs two and checks each header: ours are
    valid, and none concerns the connection. False: nothing was written, because that is not possible now."""
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_started:
        return False
    defaults = [b"%b: %b\r\n" % pair for pair in cycle.default_headers]
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    close = "" if cycle.keep_alive else "connection: close\r\n"
    head = f"{lines}{close}content-length: {len(body)}\r\n\r\n".encode()
    cycle.response_started, cycle.waiting_for_100_continue = True, False
    cycle.transport.write(b"".join((STATUS_LINE[200], *defaults, head, body)))
    cycle.response_complete = True
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


class Connections:
    """Counts a server's open connections; at the limit it closes an idle one to admit a new one."""

    def __init__(self, most: int, worker: Row | None = None) -> None:
        """`worker`: this worker's row, if the server has several: they share new connections evenly."""
        self.most = most
        self._worker = worker
        self.count = 0
        # Connections without a request, longest first: those that never sent one; those between two requests.
        self._new: dict[HttpConnection, None] = {}
        self._idle: dict[HttpConnection, None] = {}

    def enter(self, connection: HttpConnection) -> bool:
        """Count a new connection. False: the limit is reached and no connection is idle."""
        self.count += 1
        if self.count > self.most and not self._make_room():
            return False
        self._new[connection] = None
        return True

    def leave(self, connection: HttpConnection | None = None) -> None:
        """Count a closed connection. None: it had become a WebSocket, which is never idle."""
        self.count -= 1
        if self._worker is not None:
            self._worker.set(RowColumn.CONNECTIONS, self.count)
        if connection is not None:
            self.busy(connection)

    def busy(self, connection: HttpConnection) -> None:
        """Mark it as having a request under way, so that it is not closed to admit another."""
        self._new.pop(connection, None)
        self._idle.pop(connection, None)

    def idle(self, connection: HttpConnection) -> None:
        """Mark it as having no request any more."""
        self._idle[connection] = None

    def _make_room(self) -> bool:
        for waiting in (self._new, self._idle):
            if waiting:
                oldest = next(iter(waiting))
                del waiting[oldest]
                oldest.transport.abort()
                return True
        return False


class _HeadTooLarge(Exception):
    """Raised inside a parser callback, which stops the parser."""


class _TooManyPipelined(Exception):
    """Raised inside a parser callback, which stops the parser."""


class _TooManyChunks(Exception):
    """Raised inside a parser callback, which stops the parser."""


class HttpConnection(HttpToolsProtocol):
    """One connection: limits its request heads, pipelined requests and unread responses."""

    def __init__(self, shared: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._shared = shared
        self._in_head = False
        self._fields = 0
        self._head = 0
        self._unreported = 0
        """Bytes given to the parser since its last callback: it buffers an unfinished field."""
        self._chunks: list[bytes] = []
        """Of the body, parsed and not given to the request yet."""
        self._small_chunks = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._over = False
        """True: the last response has been sent, so further input is dropped."""
        self._dropped = 0

    # --- the connection ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._shared.enter(self):
            self._over = True
            transport.write(_answer(503, "all connections of this server are in use", "too_many_connections"))
            transport.close()
            return
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.leave(self)
        self._over = True
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()  # the base class does so only without an error
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        self._unreported += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # To any other protocol, or elsewhere: answered as a plain HTTP/1.1 request.
            if self._should_upgrade():
                self._upgrade(data[upgrade.args[0] :])
                return
        except httptools.HttpParserError as error:
            self._chunks.clear()
            self._refuse_for(error.__context__)
            return
        if self._chunks:
            self._pass_body()
        if self._unreported > HEAD_BYTES - (self._head if self._in_head else 0):
            self._refuse_for(_HeadTooLarge())
        elif self._deadline is None and (self._in_head or not self._has_request):
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)

    def _should_upgrade(self) -> bool:
        path = self.url.partition(b"?")[0]
        return path == SOCKET_PATH and self.scope["method"] == "GET" and super()._should_upgrade()

    def _upgrade(self, rest: bytes) -> None:
        """Hand the connection over to a WebSocket. `rest`: what the client has sent after its handshake."""
        self._over = True
        if self._has_request or self.pipeline:  # pipelined: there is no order between it and the socket
            self._close()
            return
        for timer in (self._deadline, self._stall):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        self.handle_websocket_upgrade()
        socket = self.transport.get_protocol()
        if rest and isinstance(socket, asyncio.Protocol) and socket is not self:
            socket.data_received(rest)

    @property
    def _has_request(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    # --- the head ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._fields = self._head = self._unreported = self._small_chunks = 0

    # The callbacks of every request do what the base class's do, without calling those.

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._unreported = 0
        self._head += len(url)
        if self._head > HEAD_BYTES:
            raise _HeadTooLarge

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._head += len(name) + len(value)
        self._unreported = 0
        if self._fields > HEADERS or self._head > HEAD_BYTES:
            raise _HeadTooLarge
        if self._in_head:  # else it is a trailer, which must not change caller or request
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unreported = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if len(self.pipeline) >= PIPELINED:
            raise _TooManyPipelined
        self._shared.busy(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unreported = 0
        cycle = self.cycle
        if (self.parser.should_upgrade() and self._should_upgrade()) or cycle.response_complete:
            return
        self._chunks.append(body)  # to append each to the body would take time that grows with its square
        if len(body) < SMALL_CHUNK:
            self._small_chunks += 1
            if self._small_chunks > SMALL_CHUNKS:
                raise _TooManyChunks

    def _pass_body(self) -> None:
        """Give the request what has arrived of its body."""
        cycle, chunks = self.cycle, self._chunks
        self._chunks = []
        cycle.body += chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._unreported = 0
        if self._chunks:
            self._pass_body()
        super().on_message_complete()

    def _refuse_for(self, reason: BaseException | None) -> None:
        if isinstance(reason, _HeadTooLarge):
            self._refuse(
                431,
                f"a request may have {HEADERS} header fields, and {HEAD_BYTES // 1024} KiB of URL and header "
                "fields together",
                "headers_too_large",
            )
        elif isinstance(reason, _TooManyPipelined | _TooManyChunks):
            self._close()
        else:
            self._refuse(400, "this is not a valid HTTP request", "invalid_http")

    def _late(self) -> None:
        self._deadline = None
        if self.flow.read_paused:  # by us: the client could not send its headers
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)
        elif self._in_head:
            self._refuse(
                408, f"the request's headers did not arrive within {HEAD_SECONDS:g} s", "request_timeout"
            )
        else:
            self._close()

    # --- the response ------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        unfinished = self.cycle.more_body and not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            self._close()
            return
        if unfinished:  # the body will not be read, so no other request can follow
            self._end()
        elif self.pipeline or self._has_request:
            self.flow.pause_reading()  # answer the pipelined requests before reading more
        else:
            self._shared.idle(self)

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Send an error in place of the application, and close. If a request is under way, only close: its
        response may have started."""
        if self._has_request:
            self._close()
            return
        self.transport.write(_answer(status, message, code))
        self._end()

    def _end(self) -> None:
        """Lingering close: answer no further request, drop input for LINGER_SECONDS so that the client can
        read its response, then close."""
        self._over = True
        self._unset_keepalive_if_required()
        self._shared.busy(self)
        self._shared.idle(self)
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self._close)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def _close(self) -> None:
        """Close once the client has read what was written, or has stopped reading."""
        if not self.transport.is_closing():
            self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_writes()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writes()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None and not self.transport.is_closing():
            self._stall.cancel()
            self._stall = None

    def _watch_writes(self) -> None:
        if self._stall is None:
            self._unsent = self.transport.get_write_buffer_size()
            self._stall = self.loop.call_later(STALL_SECONDS, self._check_writes)

    def _check_writes(self) -> None:
        """Disconnect a client that has read nothing since the last check."""
        self._stall = None
        if 0 < self._unsent <= self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self.transport.get_write_buffer_size():
            self._watch_writes()


def _answer(status: int, message: str, code: str) -> bytes:
    """A complete HTTP response, in the shape of every other error."""
    body = msgspec.json.encode({"error": HttpError(status, message, code).failure.object()})
    return b"".join(
        (
            STATUS_LINE[status],
            b"content-type: application/json\r\nx-content-type-options: nosniff\r\nconnection: close\r\n",
            b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (new_request_id().encode(), len(body)),
            body,
        )
    )
