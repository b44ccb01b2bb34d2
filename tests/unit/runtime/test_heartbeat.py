"""Beats, strays, and going on after having been reaped."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.turns import TurnStatus
from holdfast.errors import StoreClosed, StoreFull
from holdfast.runtime.agents.heartbeat import Heartbeat
from holdfast.store.sqlite.engine import SQLiteStore

from .conftest import begin


async def joined_keeper(store: SQLiteStore, kind: NodeKind = NodeKind.LIBRARY) -> Heartbeat:
    keeper = Heartbeat(store, kind, heartbeat_seconds=0.02)
    await keeper.join()
    return keeper


async def present(store: SQLiteStore, keeper: Heartbeat) -> int:
    return next(node.beat for node in await store.nodes() if node.id == keeper.node_id)


@pytest.mark.parametrize("kind", [NodeKind.SERVER, NodeKind.LIBRARY])
async def test_a_node_beats_from_its_loop_or_its_thread(store: SQLiteStore, kind: NodeKind) -> None:
    keeper = await joined_keeper(store, kind)
    keeper.start()
    deadline = time.monotonic() + 60
    while await present(store, keeper) < 3:
        assert time.monotonic() < deadline
        await store.changed(store.version(), 0.5)
    await keeper.leave("closed")
    assert await store.nodes() == []


async def test_a_program_whose_loop_is_blocked_goes_on_beating(store: SQLiteStore) -> None:
    keeper = await joined_keeper(store)
    keeper.start()
    for _ in range(60):  # a machine that is busy otherwise may give the thread little time
        before = await present(store, keeper)
        time.sleep(0.5)  # user code that blocks the event loop
        if await present(store, keeper) > before + 5:  # from the loop, it would have been one or two
            break
    else:
        raise AssertionError("it did not beat while its loop was blocked")
    await keeper.leave("closed")


async def test_a_server_whose_loop_is_blocked_stops_beating(store: SQLiteStore, tmp_path: Path) -> None:
    keeper = await joined_keeper(store, NodeKind.SERVER)
    keeper.start()
    await asyncio.sleep(0.1)
    # Read without the loop: while it waits for a reader, it beats.
    with closing(apsw.Connection(str(tmp_path / "store.db"))) as outside:
        before = outside.execute("SELECT beat FROM nodes WHERE id = ?", (keeper.node_id,)).get
        time.sleep(0.5)  # a hung server
        after = outside.execute("SELECT beat FROM nodes WHERE id = ?", (keeper.node_id,)).get
    assert after <= before + 1
    await keeper.leave("closed")


async def test_a_reaped_node_goes_on_as_a_new_incarnation(store: SQLiteStore) -> None:
    keeper = await joined_keeper(store)
    first = keeper.node_id
    assert await store.reap(first, 0, "taken for dead")
    await keeper.beat_once()
    assert keeper.node_id != first
    assert [node.id for node in await store.nodes()] == [keeper.node_id]


async def test_a_reaped_node_that_cannot_join_again_does_not_beat(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watch over others pauses: what keeps it from writing may keep them too."""
    keeper = await joined_keeper(store)
    assert await store.reap(keeper.node_id, 0, "it hung")

    async def full(*_given: object, **_named: object) -> None:
        raise StoreFull("the disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(store, "join", full)
        with pytest.raises(StoreFull):
            await keeper.beat_once()
        assert not keeper.beating
    await keeper.beat_once()
    assert keeper.beating


def lock_handles(store: SQLiteStore) -> int:
    """How many lock files of the store's nodes this process has open, also those that were removed."""
    names = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            names.append(str(handle.readlink()))
    return sum(name.startswith(f"{store.location}.nodes/") for name in names)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="handles are counted in /proc")
async def test_a_node_that_is_reaped_again_and_again_keeps_one_lock(store: SQLiteStore) -> None:
    keeper = await joined_keeper(store)
    assert lock_handles(store) == 1
    for _ in range(20):
        reaped = keeper.node_id
        assert await store.reap(reaped, await present(store, keeper), "it hung")
        await keeper.beat_once()
        assert keeper.node_id != reaped
    assert lock_handles(store) == 1
    assert len(list(Path(f"{store.location}.nodes").iterdir())) == 1


async def test_a_lease_that_nobody_runs_is_let_go_at_the_second_beat(store: SQLiteStore) -> None:
    keeper = await joined_keeper(store)
    (node,) = await store.nodes()
    stray = await begin(store, node, "cli:stray")
    kept = await begin(store, node, "cli:kept")
    keeper.runs(kept.turn.id)
    await keeper.beat_once()
    assert (await store.turn(None, stray.turn.id)).status is TurnStatus.RUNNING
    await keeper.beat_once()
    assert (await store.turn(None, stray.turn.id)).status is TurnStatus.INTERRUPTED
    assert (await store.turn(None, kept.turn.id)).status is TurnStatus.RUNNING


async def test_ten_thousand_sessions_cost_one_write_per_beat(store: SQLiteStore) -> None:
    keeper = await joined_keeper(store)
    (node,) = await store.nodes()
    for start in range(0, 10_000, 500):
        opening = (
            store.open_session("default", Address(key=f"cli:{start + number}"), node.id, attached=True)
            for number in range(500)
        )
        await asyncio.gather(*opening)
    assert (await store.statistics(None)).open == 10_000
    changes = []

    def count(connection: object) -> int:
        return connection.total_changes()  # type: ignore[attr-defined, no-any-return]

    changes.append(await store._writer.submit(count))
    await keeper.beat_once()
    changes.append(await store._writer.submit(count))
    assert changes[1] - changes[0] == 1


async def test_after_leaving_a_keeper_has_no_name(store: SQLiteStore) -> None:
    keeper = await joined_keeper(store)
    await keeper.leave("closed")
    with pytest.raises(StoreClosed):
        _ = keeper.node_id


async def test_a_task_cancelled_while_another_joins_anew_keeps_nobody_from_it(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = await joined_keeper(store)
    first = keeper.node_id
    await store.reap(first, 0, "taken for dead")
    disk, join = asyncio.Event(), store.join

    async def slowly(node: Node, **given: str | None) -> None:
        await disk.wait()
        await join(node, **given)

    monkeypatch.setattr(store, "join", slowly)
    joining, impatient = (asyncio.create_task(keeper.rejoin(first)) for _ in range(2))
    await asyncio.sleep(0.05)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    disk.set()
    second = await joining
    async with asyncio.timeout(60):
        assert await keeper.rejoin(first) == second, "it was done already"
        await store.reap(second, 0, "taken for dead again")
        assert await keeper.rejoin(second) == keeper.node_id != second
