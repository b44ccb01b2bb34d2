"""A TCP proxy that misbehaves on demand: it cuts connections, refuses new ones, or stalls.

Stalling is the worst case: connections stay open, bytes are accepted and not forwarded, and neither side gets
an error. It runs in a thread, so that tests of any kind can use it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close by a reset, as a cut cable's far end would see it


class TcpProxy:
    """Forwards connections of a port of the loopback to another one, within `with`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._flowing = asyncio.Event()
        self._refusing = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        self._do(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._do(self._stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- what can go wrong ------------------------------------------------------------------------------

    def cut(self) -> None:
        """Every connection is gone at once; new ones are taken."""
        self._do(self._cut)

    def refuse(self) -> None:
        """Cut, and take no new ones until `accept`."""
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        self._refusing = False

    def stall(self) -> None:
        """From now on bytes go nowhere, in either direction, until `flow`; connections stay open."""
        self._do(self._set_flowing, False)

    def flow(self) -> None:
        self._do(self._set_flowing, True)

    # --- in the thread ----------------------------------------------------------------------------------

    def _do(self, act: Callable[..., Awaitable[T]], *arguments: object) -> T:
        async def run() -> T:
            return await act(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _start(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._flowing.set()
        await self._cut()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set_flowing(self, flowing: bool) -> None:
        self._flowing.set() if flowing else self._flowing.clear()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            handle: socket.socket = writer.get_extra_info("socket")
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, ours}
        try:
            await asyncio.gather(self._pass_on(reader, ours), self._pass_on(theirs, writer))
        except asyncio.CancelledError:
            return  # the proxy stops; a task left cancelled would be taken for a fault
        finally:
            for each in (writer, ours):
                self._writers.discard(each)
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except OSError:
            writer.transport.abort()
