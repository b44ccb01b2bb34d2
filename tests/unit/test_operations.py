"""Operations that read in several steps, on a real store with a dead node in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import operations
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import user_message
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.sessions import SessionState
from holdfast.domain.turns import TurnBegun, TurnRequest, TurnStatus
from holdfast.errors import NotFound
from holdfast.operations import Operations
from holdfast.os_support import identity
from holdfast.settings import Settings
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.values import SessionFilter


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = await open_store(tmp_path / "store.db")
    yield opened
    await opened.close()


def reads(store: SQLiteStore) -> Operations:
    return Operations(Settings(), store)


async def joined(store: SQLiteStore, *, alive: bool = True) -> str:
    """A node; `alive=False`: the kernel has let go of its lock, its file stays, nobody has swept yet."""
    node = Node(new_id("node"), NodeKind.CLI, identity())
    await store.join(node)
    if not alive:
        path = store._locks.path_of(node.id)
        store._locks.let_go(node.id)
        path.touch()
    return node.id


async def test_states_are_filtered_across_pages(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "SCAN", 2)
    living, dead = await joined(store), await joined(store, alive=False)
    orphans = []
    for number in range(9):
        node = dead if number % 3 == 0 else living
        session = await store.open_session("default", Address(key=f"k{number}"), node, attached=True)
        orphans += [session.id] if node == dead else []
    wanted = SessionFilter("default")
    page, states = await reads(store).sessions_with_states(wanted, SessionState.ORPHANED, limit=2)
    assert [session.id for session in page.items] == orphans[:0:-1]
    assert page.has_more
    rest, _ = await reads(store).sessions_with_states(
        wanted, SessionState.ORPHANED, after=page.items[-1].id, limit=2
    )
    assert [session.id for session in rest.items] == orphans[:1]
    assert not rest.has_more
    assert {states[session.id] for session in page.items} == {SessionState.ORPHANED}
    idle, _ = await reads(store).sessions_with_states(wanted, SessionState.IDLE, limit=100)
    assert len(idle.items) == 6


async def test_leaks_are_the_open_sessions_of_the_dead_by_owner(store: SQLiteStore) -> None:
    living, dead = await joined(store), await joined(store, alive=False)
    await store.open_session("default", Address(key="a"), living, attached=True)
    leaked = await store.open_session("default", Address(key="b"), dead, attached=True)
    await store.open_session("bob", Address(key="c"), dead, attached=True)
    await store.open_session("default", Address(key="d"), dead, attached=False)
    assert [session.id for session in await reads(store).leaked_sessions("default")] == [leaked.id]
    assert len(await reads(store).leaked_sessions(None)) == 2


async def test_a_name_is_an_id_then_a_key_then_an_alias(store: SQLiteStore) -> None:
    node = await joined(store)
    keyed = await store.open_session("default", Address(key="name"), node)
    aliased = await store.open_session("default", Address(id="other name"), node)
    assert (await reads(store).session_named("default", "name")).id == keyed.id
    assert (await reads(store).session_named("default", "other name")).id == aliased.id
    assert (await reads(store).session_named("default", keyed.conversation_id)).id == keyed.id
    for name in ("nothing", "sess_nothing"):
        with pytest.raises(NotFound, match=name):
            await reads(store).session_named("default", name)
    with pytest.raises(NotFound):
        await reads(store).session_named("bob", "name")


async def test_a_lineage_is_a_tree_of_forks(store: SQLiteStore) -> None:
    node = await joined(store)
    root = await store.open_session("default", Address(key="root"), node)
    fork = await store.fork("default", root.id, node)
    deeper = await store.fork("default", fork.id, node)
    line = await reads(store).lineage("default", root.conversation_id)
    assert [session.id for session in line] == [root.id, fork.id, deeper.id]
    assert line.forks[0].forks[0].sessions[0].parent_id == fork.id


async def test_a_cancel_ends_a_queued_turn_that_begins_in_this_moment(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, withdraw = await joined(store), store.withdraw_queue

    def request(turn_id: str, *texts: str, **more: Any) -> TurnRequest:
        messages = tuple(map(user_message, texts))
        return TurnRequest(turn_id, "default", node, Address(key="k"), messages, **more)

    first = await store.begin_turn(request(new_id("turn"), "one"))
    queued = await store.enqueue_turn(request(new_id("turn"), "two"), most=1)
    assert isinstance(first, TurnBegun) and queued is not None

    async def late(*arguments: Any) -> int:
        """Before the queue is withdrawn, the running turn ends and a server begins the queued one."""
        await store.commit_reply(first.lease)
        await store.begin_turn(request(queued.turn.id, starts_queued=True))
        return await withdraw(*arguments)

    monkeypatch.setattr(store, "withdraw_queue", late)
    done = await reads(store).cancel_running("default", "k")
    assert done.turn is not None and (done.turn.id, done.stopped, done.withdrawn) == (queued.turn.id, True, 0)
    assert (await store.turn(None, queued.turn.id)).status is TurnStatus.CANCELLED
