"""A small HTTP/1.1 client for one host: keep-alive connections, and bodies that are read as they arrive.

It does what a request to a model needs, at a fraction of the cost of a general client: no redirects, proxies,
cookies, compression or HTTP/2. httptools parses the responses. A connection is reused only after a response
that was received whole, and for at most `KEEP_ALIVE_SECONDS` without a request.

Every failure is an OSError or an HttpFailure: `ConnectTimeout`, `Disconnected` (closed without a response),
`BrokenBody` (closed inside a body, or too long) and `InvalidResponse` (not HTTP). TimeoutError: no byte
arrived for `read_seconds`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import cast

import httptools

KEEP_ALIVE_SECONDS = 15.0
HEAD_BYTES = 64 * 1024
BODY_BYTES = 16 * 2**20
"""The longest body that is read whole."""
BUFFER_BYTES = 128 * 1024
"""Reading from the network pauses while more of a body than this waits to be read."""
SECOND_ADDRESS_SECONDS = 0.25
"""After so long without a connection, the host's next address is tried at the same time (RFC 8305)."""


class HttpFailure(Exception):
    """The request failed, and no part of its response can be trusted any more."""


class ConnectTimeout(HttpFailure, TimeoutError):
    """No connection within the time."""


class Disconnected(HttpFailure):
    """The server closed the connection without a response."""


class BrokenBody(HttpFailure):
    """The connection was closed before the end of a response, or its body is too long."""


class InvalidResponse(HttpFailure):
    """What the server sent is not an HTTP/1.1 response."""


class UpstreamResponse:
    """A response whose head has arrived. Its body is read with `readany`; `close` gives up the rest."""

    __slots__ = ("_connection", "_ended", "_failure", "_pieces", "_size", "_waiter", "raw_headers", "status")

    def __init__(self, connection: _KeptConnection) -> None:
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self._connection = connection
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name; of a repeated header, the first."""
        return {
            name.decode("latin-1").lower(): value.decode("utf-8", "replace")
            for name, value in reversed(self.raw_headers)
        }

    @property
    def content_type(self) -> str:
        """The media type without its parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def at_eof(self) -> bool:
        """True: the body has been read to its end."""
        return self._ended and not self._pieces

    async def readany(self) -> bytes:
        """What has arrived of the body since the last call, at least one byte; empty at its end."""
        if not self._pieces and not self._ended:
            if self._failure is not None:
                raise self._failure
            await self._arrival()
            if not self._pieces and self._failure is not None:
                raise self._failure
        if len(self._pieces) == 1:
            piece = self._pieces.popleft()
        else:
            piece = b"".join(self._pieces)
            self._pieces.clear()
        self._size = 0
        self._connection.resume(self)
        return piece

    async def read(self, most: int = BODY_BYTES) -> bytes:
        """The rest of the body. BrokenBody: it has more than `most` bytes."""
        pieces, size = [], 0
        while piece := await self.readany():
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise BrokenBody(f"a body of more than {most} bytes")
        return b"".join(pieces)

    def close(self) -> None:
        """Close the connection, unless the response has arrived whole."""
        if not self._ended:
            self._failure = self._failure or BrokenBody("closed here")
            self._connection.abort()

    async def _arrival(self) -> None:
        """Wait until the response continues, ends or fails."""
        self._waiter = self._connection.loop.create_future()
        self._connection.waits()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # --- called by the connection ------------------------------------------------------------------

    def feed(self, piece: bytes) -> bool:
        """True: the buffer is full."""
        self._pieces.append(piece)
        self._size += len(piece)
        self._wake()
        return self._size > BUFFER_BYTES

    def end(self) -> None:
        self._ended = True
        self._wake()

    def fail(self, failure: Exception) -> None:
        if not self._ended and self._failure is None:
            self._failure = failure
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def head(self) -> UpstreamResponse:
        """Wait for the status and the headers."""
        while not self.status:
            if self._failure is not None:
                raise self._failure
            await self._arrival()
        return self

    def begun(self, status: int) -> None:
        self.status = status
        self._wake()


class _KeptConnection(asyncio.Protocol):
    """One connection: a request at a time, then back to the pool."""

    def __init__(self, client: HttpClient, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self._client = client
        self._transport: asyncio.Transport
        self._parser = self._new_parser()
        self._response: UpstreamResponse | None = None
        self._head_bytes = 0
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._read_seconds = 0.0
        self._waited_since = 0.0
        self._unsent = 0

    def _new_parser(self) -> httptools.HttpResponseParser:
        parser = httptools.HttpResponseParser(self)
        parser.set_dangerous_leniencies(  # what servers get away with elsewhere
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        return parser

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def send(self, head: bytes, body: bytes, read_seconds: float) -> UpstreamResponse:
        """Send a whole request; its response is still without a head."""
        self._read_seconds = read_seconds
        self._head_bytes = 0
        self._response = response = UpstreamResponse(self)
        self._transport.writelines((head, body) if body else (head,))
        return response

    def abort(self) -> None:
        self._transport.abort()

    def resume(self, response: UpstreamResponse) -> None:
        """Its body was read: receive more, if that was paused."""
        if self._paused and response is self._response:
            self._paused = False
            self._transport.resume_reading()

    # --- the time without a byte -------------------------------------------------------------------

    def waits(self) -> None:
        """A reader waits from now on. One timer serves many waits: it is only set again when it fires."""
        self._waited_since = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self._read_seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._response is None:
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent:  # the request is still being sent
            self._unsent = unsent
            self._waited_since = self.loop.time()
        left = self._waited_since + self._read_seconds - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._look)
        elif not self._paused:
            self._fail(TimeoutError())

    # --- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # it was not asked for anything
            self._transport.abort()
            return
        self._waited_since = self.loop.time()
        if not response.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(InvalidResponse(str(error)) if not response.status else BrokenBody(str(error)))
            return
        if not response.status and self._head_bytes > HEAD_BYTES:
            self._fail(InvalidResponse(f"headers of more than {HEAD_BYTES} bytes"))

    def connection_lost(self, error: Exception | None) -> None:
        self._client.lost(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        response, self._response = self._response, None
        if response is None:
            return
        if not response.status:
            response.fail(error if isinstance(error, OSError) else Disconnected())
        elif error is None and _until_closed(response):
            response.end()
        else:
            response.fail(BrokenBody())

    def _fail(self, failure: Exception) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.fail(failure)
        self._transport.abort()

    # --- httptools' callbacks ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is None:  # more than was asked for
            self._transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None and not self._response.status:  # later ones are trailers
            self._response.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._response is not None and (status >= 200 or status == 101):
            self._response.begun(status)

    def on_body(self, body: bytes) -> None:
        if self._response is not None and self._response.feed(body) and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        response = self._response
        if response is None:
            return
        if not response.status:  # 1xx: the response follows
            response.raw_headers.clear()
            return
        self._response = None
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        reusable = self._parser.should_keep_alive() and not self._transport.get_write_buffer_size()
        response.end()
        if reusable:
            self._client.free(self)
        else:
            self._transport.close()


class HttpClient:
    """The connections to one host. It belongs to the event loop of its first request."""

    def __init__(self, host: str, port: int, *, tls: bool, connect_seconds: float) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._context: ssl.SSLContext | None = None
        self._idle: list[_KeptConnection] = []
        """The most recently used last."""
        self._all: set[_KeptConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def request(self, head: bytes, body: bytes, read_seconds: float) -> UpstreamResponse:
        """Send a whole request; the response, once its head has arrived. `read_seconds`: how long the server
        may send no byte while one is waited for."""
        connection = self._reusable() or await self._connected()
        response = connection.send(head, body, read_seconds)
        try:
            return await response.head()
        except BaseException:
            response.close()
            raise

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()

    def free(self, connection: _KeptConnection) -> None:
        """A response has arrived whole: keep its connection for the next request."""
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = connection.loop.call_later(KEEP_ALIVE_SECONDS, self._drop_old, connection.loop)

    def lost(self, connection: _KeptConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _reusable(self) -> _KeptConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.loop.time() - connection.idle_since < KEEP_ALIVE_SECONDS:
                return connection
            connection.abort()
        return None

    def _drop_old(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = None
        limit = loop.time() - KEEP_ALIVE_SECONDS
        old = [connection for connection in self._idle if connection.idle_since <= limit]
        self._idle = [connection for connection in self._idle if connection.idle_since > limit]
        for connection in old:
            connection.abort()
        if self._idle:
            self._sweep = loop.call_later(KEEP_ALIVE_SECONDS, self._drop_old, loop)

    async def _connected(self) -> _KeptConnection:
        loop = asyncio.get_running_loop()
        if self._tls and self._context is None:  # reads the system's certificates
            self._context = await asyncio.to_thread(_tls_context)
        try:
            async with asyncio.timeout(self._connect_seconds):
                opened = await self._socket(loop)
                try:
                    _, connection = await loop.create_connection(
                        lambda: _KeptConnection(self, loop),
                        sock=opened,
                        ssl=self._context,
                        server_hostname=self._host.rstrip(".") if self._tls else None,
                    )
                except BaseException:
                    opened.close()
                    raise
        except TimeoutError:
            raise ConnectTimeout from None
        self._all.add(connection)
        return connection

    async def _socket(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        """A connected socket, to whichever of the host's addresses answers first."""
        from aiohappyeyeballs import start_connection

        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        opened = await start_connection(
            found, happy_eyeballs_delay=SECOND_ADDRESS_SECONDS, interleave=1, loop=loop
        )
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _until_closed(response: UpstreamResponse) -> bool:
    """True: the response has no length, so that the end of the connection is its end."""
    headers = response.headers
    return "content-length" not in headers and "transfer-encoding" not in headers
