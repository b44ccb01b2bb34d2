"""A worker of `holdfast serve --workers N`: accepts its share of the connections, obeys the supervisor.

All workers inherit one listening socket. A worker takes a connection only while no other has fewer, so that
a few long-lived connections are spread evenly; one that others should take and do not (a busy or stopped
worker) is taken after YIELD_SECONDS.

The supervisor's commands come through a pipe, not as signals: a terminal or a process manager signals the
whole process group, and one Ctrl-C must not count twice. End of file means that the supervisor is dead: the
worker drains and ends, so that none is left as an orphan.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from .board import Row, RowColumn

log = logging.getLogger(__name__)

DRAIN = b"d"
HURRY = b"h"
READY = b"r"

BACKLOG = 2048
YIELD_SECONDS = 0.005
FULL_SECONDS = 1.0
"""Pause before accepting again after an error, such as too many open files."""
BEAT_SECONDS = 1.0
REPORT_SECONDS = 0.5
"""How long to wait for another worker's report."""


class WorkerReport(msgspec.Struct):
    """What a worker knows of its turns that the store does not."""

    doing: dict[str, str] = {}
    """What each running turn waits for, by the turn's id."""
    compacting: list[str] = []
    """Conversations that are being compacted after a turn."""


@dataclass
class Worker:
    """One worker process, as the supervisor made it."""

    row: Row
    listening: socket.socket
    commands: int
    """Read end of the supervisor's pipe."""
    ready: int
    """Write end of the pipe that tells the supervisor that this worker serves."""
    directory: Path
    """Private to this server: metrics files and the workers' sockets."""
    is_first_start: bool
    """True for the first process of the first worker: it prints the start lines."""
    orphaned: bool = False
    report: Callable[[], WorkerReport] = WorkerReport
    on_beat: Callable[[], None] = lambda: None
    """Called every BEAT_SECONDS."""
    _server: asyncio.Server | None = field(default=None, repr=False)
    _beat: asyncio.TimerHandle | None = field(default=None, repr=False)

    @property
    def flushes(self) -> bool:
        """True for one worker only: so `[memory] concurrency` and `per_minute` hold for the server."""
        return self.row.index == 0

    # --- the supervisor ----------------------------------------------------------------------------

    def obey(self, drain: Callable[[], None], hurry: Callable[[], None]) -> None:
        """Carry out the supervisor's commands from now on; drain if it dies."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            said = os.read(self.commands, 64)
            if not said:
                loop.remove_reader(self.commands)
                log.warning("the supervisor has died: this worker stops")
                self.orphaned = True
                drain()
            if DRAIN in said:
                drain()
            if HURRY in said:
                drain()
                hurry()

        loop.add_reader(self.commands, read)

    async def started(self) -> None:
        """Report to the supervisor that this worker serves, and answer other workers' questions."""
        path = self._socket(self.row.index)
        try:
            path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._send_report, path)
        except OSError as error:  # such as a path too long for a socket: only /api/activity says less
            log.warning("other workers cannot ask this one what its turns are doing: %s: %s", path, error)
        if not any(self.row.all(RowColumn.IDLE_SINCE)):  # a successor does not restart the server's idle time
            self.row.set(RowColumn.IDLE_SINCE, time.monotonic_ns())
        self.row.set(RowColumn.ACCEPTING, 1)
        self._tick()
        with suppress(BrokenPipeError):
            os.write(self.ready, READY)

    def _tick(self) -> None:
        self.row.set(RowColumn.BEAT, time.monotonic_ns())
        self.on_beat()
        self._beat = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._tick)

    async def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        asyncio.get_running_loop().remove_reader(self.commands)
        if self._server is not None:
            self._server.close()
        if self.orphaned:  # else the supervisor removes it
            shutil.rmtree(self.directory, ignore_errors=True)

    # --- the other workers -------------------------------------------------------------------------

    def _socket(self, index: int) -> Path:
        return self.directory / f"{index}.sock"

    async def _send_report(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(msgspec.json.encode(self.report()))
            await writer.drain()
        writer.close()

    async def reports(self) -> list[WorkerReport]:
        """The reports of the other workers. One that does not answer in time is left out."""
        others = [index for index in range(self.row.board.workers) if index != self.row.index]
        found = await asyncio.gather(*(self._ask(index) for index in others))
        return [report for report in found if report is not None]

    async def _ask(self, index: int) -> WorkerReport | None:
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._socket(index))
                try:
                    return msgspec.json.decode(await reader.read(), type=WorkerReport)
                finally:
                    writer.close()
        except (OSError, TimeoutError, msgspec.DecodeError):
            return None


class FairAcceptor:
    """Accepts connections from the shared socket while no other worker has fewer. Has the methods of an
    asyncio.Server that uvicorn uses."""

    def __init__(
        self, worker: Worker, protocol: Callable[[], asyncio.Protocol], connections: Callable[[], int]
    ) -> None:
        """`connections`: how many this worker has now."""
        self._worker = worker
        self._protocol = protocol
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._socket = worker.listening
        self._starting: set[asyncio.Task[Any]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._closed = False
        self._listen()

    def _listen(self) -> None:
        self._later = None
        self._loop.add_reader(self._socket, self._readable)

    def _readable(self) -> None:
        mine = self._connections() + len(self._starting)
        self._worker.row.set(RowColumn.CONNECTIONS, mine)
        if mine > min(self._worker.row.all(RowColumn.CONNECTIONS)):
            self._loop.remove_reader(self._socket)
            self._later = self._loop.call_later(YIELD_SECONDS, self._take, True)
        else:
            self._take(False)

    def _take(self, paused: bool) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            pass  # another worker took it, or the client has left
        except OSError as error:  # too many open files; on Linux also an error of the new connection
            log.error("no connection can be accepted for %g s: %s", FULL_SECONDS, error.strerror)
            self._loop.remove_reader(self._socket)
            self._later = self._loop.call_later(FULL_SECONDS, self._listen)
            return
        else:
            self._start(connection)
        if paused:
            self._listen()

    def _start(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            with suppress(OSError):  # macOS: the client has left
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun = self._loop.create_task(_connected(self._loop, self._protocol, connection))
        self._starting.add(begun)
        begun.add_done_callback(self._starting.discard)
        self._worker.row.set(RowColumn.CONNECTIONS, self._connections() + len(self._starting))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._worker.row.set(RowColumn.ACCEPTING, 0)
            self._loop.remove_reader(self._socket)
            if self._later is not None:
                self._later.cancel()

    async def wait_closed(self) -> None:
        return None


async def _connected(
    loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.Protocol], connection: socket.socket
) -> None:
    try:
        await loop.connect_accepted_socket(protocol, connection)
    except OSError as error:
        connection.close()
        log.debug("a connection was lost before its first request: %s", error)


async def doing_elsewhere(worker: Worker | None) -> tuple[Mapping[str, str], frozenset[str]]:
    """What the turns of the other workers wait for, by turn id; and the conversations that they compact."""
    if worker is None:
        return {}, frozenset()
    doing: dict[str, str] = {}
    compacting: set[str] = set()
    for report in await worker.reports():
        doing.update(report.doing)
        compacting.update(report.compacting)
    return doing, frozenset(compacting)
