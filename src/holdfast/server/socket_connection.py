"""A WebSocket connection, after its handshake: uvicorn's protocol, with our limits.

Imported when the first client opens one: its imports would be a twentieth of a server's start.
"""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from .connections import Connections

_QUIET = logging.getLogger(f"{__name__}.websocket")
_QUIET.setLevel(logging.WARNING)  # uvicorn logs each handshake, with its query


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket. When the server stops, its application closes it, after the response under way."""

    def __init__(self, shared: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._shared = shared
        self.logger = _QUIET

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.leave()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self.close_sent or not self.handshake_complete:
            super().shutdown()
