"""A TCP proxy that cuts connections: what a bad network does to a client."""

from __future__ import annotations

import asyncio
from types import TracebackType
from urllib.parse import urlsplit

PIECE = 65536


class CuttingProxy:
    """Passes bytes both ways until `cut`. With `swallows_first`, the first answer is read from the server and
    thrown away, and the connection is cut in its place."""

    def __init__(self, target: str, *, swallows_first: bool = False) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._swallows = swallows_first
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.connections = 0
        self.url = ""

    async def __aenter__(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Every connection is gone, without a word."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        swallows, self._swallows = self._swallows, False
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, up_writer}
        try:
            asks = asyncio.create_task(self._pass(reader, up_writer))
            if swallows:
                await up_reader.read(PIECE)
            else:
                await self._pass(up_reader, writer)
            asks.cancel()
        finally:
            for each in (writer, up_writer):
                each.transport.abort()
            self._writers -= {writer, up_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(PIECE):
                writer.write(piece)
                await writer.drain()
        except OSError:
            return  # one side is gone; `_connected` lets go of the other
