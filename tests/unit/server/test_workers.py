"""Workers of one server: the memory that they share, limits over all of them, restarts, reports."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.server.gate import Gate
from holdfast.server.http_errors import HttpError
from holdfast.server.limits import KeyLimits
from holdfast.server.workers import board, worker
from holdfast.server.workers.board import Board, KeyColumn, RowColumn
from holdfast.server.workers.supervisor import LONGEST_PAUSE_SECONDS, restart_pause
from holdfast.server.workers.worker import READY, FairAcceptor, Worker, WorkerReport, doing_elsewhere
from holdfast.settings import LimitSettings, ServerSettings


def limits(shared: Board, index: int, **settings: int) -> KeyLimits:
    return KeyLimits(LimitSettings(**settings), 1000, 2**20, shared.row(index))


def test_a_worker_reads_what_the_others_wrote_and_not_its_own() -> None:
    shared = Board(3)
    for index, turns in enumerate((1, 2, 4)):
        shared.row(index).set(RowColumn.TURNS, turns)
    assert shared.row(0).total(RowColumn.TURNS) == 7
    assert shared.row(1).elsewhere(RowColumn.TURNS) == 5
    shared.clear(2)
    assert shared.row(1).total(RowColumn.TURNS) == 3


def test_only_workers_that_accept_connections_are_compared() -> None:
    shared = Board(3)
    for index in (0, 1, 2):
        shared.row(index).set(RowColumn.CONNECTIONS, index + 1)
    shared.row(1).set(RowColumn.ACCEPTING, 1)
    assert shared.row(2).all(RowColumn.CONNECTIONS) == [2, 3]


def test_streams_of_a_key_are_limited_over_all_workers() -> None:
    shared = Board(2)
    one, other = (limits(shared, index, streams_per_key=2) for index in (0, 1))
    one.streams.take("key_a")
    other.streams.take("key_a")
    for full in (one, other):
        with pytest.raises(HttpError):
            full.streams.take("key_a")
    other.streams.take("key_b")  # another key has its own count
    one.streams.give_back("key_a")
    other.streams.take("key_a")


def test_turns_of_a_key_are_limited_over_all_workers_and_a_dead_one_counts_no_more() -> None:
    shared = Board(2)
    one, other = (limits(shared, index, turns_per_key=1) for index in (0, 1))
    one.turns.begin("key_a", "turn_1")
    with pytest.raises(HttpError):
        other.turns.begin("key_a", "turn_2")
    assert other.turns.running("key_a") == 0
    shared.clear(0)
    other.turns.begin("key_a", "turn_2")


def test_requests_under_way_are_limited_over_all_workers() -> None:
    shared = Board(2)
    one, other = (Gate(ServerSettings(max_requests=2), shared.row(index)) for index in (0, 1))
    one.enter()
    one.enter()
    with pytest.raises(HttpError):
        other.enter()
    one.leave()
    other.enter()


def test_entries_of_keys_that_have_nothing_under_way_are_used_again() -> None:
    shared = Board(2)
    counts, seen = shared.row(0).counts(KeyColumn.TURNS), shared.row(1).counts(KeyColumn.TURNS)
    for number in range(10 * board.KEYS):
        counts.publish(f"key_{number}", 1)
        assert seen.elsewhere(f"key_{number}") == 1
        counts.publish(f"key_{number}", 0)
    assert seen.elsewhere("key_1") == 0


def test_what_a_child_process_writes_is_read_by_its_parent() -> None:
    shared = Board(2)
    pid = os.fork()
    if pid == 0:
        shared.row(1).set(RowColumn.TURNS, 7)
        os._exit(0)
    os.waitpid(pid, 0)
    assert shared.row(0).elsewhere(RowColumn.TURNS) == 7


def test_a_worker_that_ends_at_once_is_replaced_later_each_time() -> None:
    pauses = [restart_pause(lives) for lives in range(12)]
    assert pauses[0] == 0, "one that had lived is replaced at once"
    assert 0 < pauses[1] < 1
    assert pauses == sorted(pauses)
    assert pauses[2] == 2 * pauses[1]
    assert pauses[-1] == restart_pause(10_000) == LONGEST_PAUSE_SECONDS


def test_a_worker_knows_what_turns_of_the_others_wait_for() -> None:
    async def ask(directory: Path) -> None:
        shared = Board(3)
        with socket.socket() as listening:
            workers = []
            for index in (0, 1):
                commands, ready = os.pipe()
                worker = Worker(shared.row(index), listening, commands, ready, directory, False)
                worker.report = lambda index=index: WorkerReport(  # type: ignore[misc]
                    {f"turn_{index}": f"tool:{index}"}, [f"conv_{index}"]
                )
                await worker.started()
                workers.append((worker, commands, ready))
            assert await doing_elsewhere(workers[0][0]) == ({"turn_1": "tool:1"}, frozenset({"conv_1"}))
            assert await doing_elsewhere(workers[1][0]) == ({"turn_0": "tool:0"}, frozenset({"conv_0"}))
            for worker, commands, ready in workers:
                await worker.close()
                os.close(commands)
                os.close(ready)
        assert await doing_elsewhere(None) == ({}, frozenset())

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(ask(Path(directory)))


def test_a_worker_serves_though_its_socket_cannot_be_made(tmp_path: Path) -> None:
    async def start() -> None:
        shared = Board(2)
        commands, ready = os.pipe()
        with socket.socket() as listening:
            worker = Worker(shared.row(0), listening, commands, ready, tmp_path / ("x" * 200), False)
            await worker.started()
            assert shared.row(0).get(RowColumn.ACCEPTING) == 1
            assert os.read(commands, 1) == READY
            assert await worker.reports() == []
            await worker.close()
        os.close(commands)
        os.close(ready)

    asyncio.run(start())


class Failing(socket.socket):
    """A listening socket whose accept fails once, with an error of the new connection's network."""

    fails = True

    def accept(self) -> tuple[socket.socket, Any]:
        if self.fails:
            self.fails = False
            raise OSError(errno.EPROTO, "Protocol error")
        return super().accept()


@pytest.mark.parametrize("busier", [False, True], ids=["takes at once", "yields to others"])
async def test_a_worker_accepts_again_after_any_error(busier: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FULL_SECONDS", 0.01)
    shared = Board(2)
    shared.row(1).set(RowColumn.ACCEPTING, 1)
    connected = asyncio.Event()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connected.set()
            transport.close()

    with Failing() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        one = Worker(shared.row(0), listening, -1, -1, Path(), False)
        acceptor = FairAcceptor(one, Accepted, lambda: int(busier))
        _, writer = await asyncio.open_connection(*listening.getsockname())
        async with asyncio.timeout(60):
            await connected.wait()
        writer.close()
        acceptor.close()
