"""A WebSocket connection, after its handshake: uvicorn's protocol, with our limits.

Imported when the first client opens one: its imports would be a twentieth of a server's start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from .connections import COUNT_UNFINISHED, Connections
from .limits import (
    SOCKET_FRAME_BYTES,
    SOCKET_FRAMES,
    SOCKET_FRAMES_PER_SECOND,
    SOCKET_PIECE,
    SOCKET_UNCOUNTED,
)

# uvicorn logs these as errors of the server, one with a traceback; any client can cause them.
_MISTAKES_OF_CLIENTS = ("ASGI callable returned without completing handshake", "Invalid UTF-8 sequence")

_QUIET = logging.getLogger(f"{__name__}.websocket")
_QUIET.setLevel(logging.WARNING)  # uvicorn logs each handshake, with its query
_QUIET.addFilter(lambda record: not record.getMessage().startswith(_MISTAKES_OF_CLIENTS))


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket. When the server stops, its application closes it, after the response under way."""

    def __init__(self, shared: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._shared = shared
        self.logger = _QUIET
        self._frames_left = float(SOCKET_FRAMES)
        self._counted_at = time.monotonic()
        self._unfinished = 0
        """Bytes that were received of a message that is not whole."""
        self._count: Callable[[int], bool] | None = None
        self._counted = 0
        """How many of them count for the API key."""
        self._refused = False

    def count_unfinished(self, count: Callable[[int], bool]) -> None:
        """Call this with the bytes by which a large message grows that has not arrived whole, and with less
        than 0 when it has, or never will. False: there is no room; nothing more is received."""
        self._count = count

    def _hold(self, received: int) -> None:
        self._unfinished += received
        if self._count is None or self._unfinished <= SOCKET_UNCOUNTED:
            return
        if self._count(self._unfinished - self._counted):
            self._counted = self._unfinished
        else:
            self._refused = True

    def _release(self) -> None:
        if self._count is not None and self._counted:
            self._count(-self._counted)
        self._unfinished = self._counted = 0

    def data_received(self, data: bytes) -> None:
        """Parse in pieces, until the client has sent too many frames: each costs as much as a request's line,
        and the event loop serves no other client meanwhile."""
        now = time.monotonic()
        regained = (now - self._counted_at) * SOCKET_FRAMES_PER_SECOND + len(data) / SOCKET_FRAME_BYTES
        self._frames_left = min(SOCKET_FRAMES, self._frames_left + regained)
        self._counted_at = now
        for at in range(0, len(data), SOCKET_PIECE):
            if self.transport.is_closing() or self._refused:
                return
            piece = data[at : at + SOCKET_PIECE]
            super().data_received(piece)
            self._hold(len(piece))
            if self._frames_left < 0 and not self.transport.is_closing():
                self.conn.fail(CloseCode.POLICY_VIOLATION, "too many frames")
                self.handle_parser_exception()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"][COUNT_UNFINISHED] = self.count_unfinished  # type: ignore[assignment]

    def send_receive_event_to_app(self) -> None:
        self._release()
        super().send_receive_event_to_app()

    def handle_cont(self, event: Frame) -> None:
        self._frames_left -= 1
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        self._frames_left -= 1
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._frames_left -= 1
        super().handle_bytes(event)

    def handle_ping(self) -> None:
        self._frames_left -= 1
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        self._frames_left -= 1
        super().handle_pong(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._shared.leave()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self.close_sent or not self.handshake_complete:
            super().shutdown()
