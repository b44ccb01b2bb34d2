"""The log is moved into the file between groups, and someone who holds it back is named."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.leases import Lease
from holdfast.domain.messages import new_messages
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.turns import TurnBegun, TurnRequest
from holdfast.platforms import identity
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


async def test_a_group_outlives_one_of_its_callers_event_loops(store: SQLiteStore) -> None:
    """A caller whose loop has closed is not told; the writer goes on for everybody else."""
    import asyncio
    import threading

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
