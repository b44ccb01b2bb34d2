"""The log is moved into the file between groups, and someone who holds it back is named."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_messages
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.turns import Lease, TurnBegun, TurnRequest
from holdfast.os_support import identity
from holdfast.store.sqlite import writer
from holdfast.store.sqlite.engine import SQLiteStore, open_store


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SQLiteStore]:
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(writer, "ALARM_BYTES", 1_000_000)
    opened = await open_store(tmp_path / "store.db")
    yield opened
    await opened.close()


async def lease_on(store: SQLiteStore) -> Lease:
    node = Node(new_id("node"), NodeKind.LIBRARY, identity())
    await store.join(node)
    request = TurnRequest(new_id("turn"), "default", node.id, Address(), new_messages("hello"))
    begun = await store.begin_turn(request)
    assert isinstance(begun, TurnBegun)
    return begun.lease


async def write_megabytes(store: SQLiteStore, lease: Lease, number: int) -> None:
    for _ in range(number * 10):
        await store.append(lease, new_messages({"role": "assistant", "content": "x" * 100_000}))


async def test_the_log_starts_over_again_and_again(store: SQLiteStore, tmp_path: Path) -> None:
    await write_megabytes(store, await lease_on(store), 5)
    assert (tmp_path / "store.db-wal").stat().st_size < 2_000_000
    assert (tmp_path / "store.db").stat().st_size > 4_000_000


async def test_a_reader_that_holds_the_log_back_is_told_of_once(
    store: SQLiteStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await lease_on(store)
    reader = apsw.Connection(str(tmp_path / "store.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM messages").fetchall()
    with caplog.at_level(logging.WARNING):
        await write_megabytes(store, lease, 4)
    told = [record for record in caplog.records if "write-ahead log" in record.message]
    assert len(told) == 1 and "a reader holds it back" in told[0].message
    reader.execute("COMMIT")
    reader.close()
    await write_megabytes(store, lease, 1)
    size = (tmp_path / "store.db-wal").stat().st_size
    await write_megabytes(store, lease, 3)
    assert (tmp_path / "store.db-wal").stat().st_size <= size, "it starts over once the reader is gone"


class Overlapping(threading.Thread):
    """Readers of which at least one has a snapshot at every moment, though each is short."""

    def __init__(self, database: Path) -> None:
        super().__init__()
        self._readers = [apsw.Connection(str(database)) for _ in range(3)]
        self._stopping = threading.Event()
        self.begun = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            if self._stopping.is_set():
                break
            begins, ends = self._readers[number % 3], self._readers[(number + 1) % 3]
            begins.execute("BEGIN; SELECT count(*) FROM messages").fetchall()
            if ends.in_transaction:
                ends.execute("COMMIT")
                self.begun.set()
        for reader in self._readers:
            reader.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join()


async def test_the_log_stays_small_though_readers_overlap_all_the_time(
    store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RESTART_PAGES", 200)
    monkeypatch.setattr(writer, "RESTART_SECONDS", 30.0)  # the machine may be busy; readers are not long
    store._writer._restart_at = 200
    lease = await lease_on(store)
    readers = Overlapping(tmp_path / "store.db")
    readers.start()
    try:
        await asyncio.to_thread(readers.begun.wait)
        await write_megabytes(store, lease, 8)
        assert (tmp_path / "store.db-wal").stat().st_size < 2_000_000
    finally:
        readers.stop()


async def test_a_reader_that_stays_costs_writers_a_few_short_waits_only(
    store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try to restart the log is at twice the size of the last: 200, 400, 800 and 1,600 pages."""
    monkeypatch.setattr(writer, "RESTART_PAGES", 200)
    monkeypatch.setattr(writer, "RESTART_SECONDS", 0.01)
    store._writer._restart_at = 200
    lease = await lease_on(store)
    reader = apsw.Connection(str(tmp_path / "store.db"))
    reader.execute("BEGIN; SELECT count(*) FROM messages").fetchall()
    tries = 0
    restart = store._writer._restart

    def counting() -> None:
        nonlocal tries
        tries += 1
        restart()

    monkeypatch.setattr(store._writer, "_restart", counting)
    await write_megabytes(store, lease, 8)
    assert 2 <= tries <= 5
    reader.execute("COMMIT")
    reader.close()


async def test_a_group_outlives_one_of_its_callers_event_loops(store: SQLiteStore) -> None:
    """A caller whose loop has closed is not told; the writer goes on for everybody else."""

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_start_and_leave())
        loop.close()

    async def _start_and_leave() -> None:
        task = asyncio.ensure_future(store._writer.submit(lambda connection: connection.total_changes()))
        await asyncio.sleep(0)
        task.cancel()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    await write_megabytes(store, await lease_on(store), 1)
