"""Waiting for a conversation: bounded, woken at once, failing closed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_messages
from holdfast.domain.nodes import NodeKind
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnBegun, TurnRepeated, TurnRequest
from holdfast.errors import ConversationBusy
from holdfast.runtime.agents.heartbeat import Heartbeat
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.turns.gate import TurnGate
from holdfast.store.sqlite.engine import SQLiteStore, open_store

from .conftest import Joined, begin, kill


async def keeper_for(store: SQLiteStore) -> tuple[TurnGate, Heartbeat]:
    node_keeper = Heartbeat(store, NodeKind.LIBRARY, 15)
    await node_keeper.join()
    reaper = Reaper(store, lambda: node_keeper.node_id)
    return TurnGate(store, node_keeper, reaper), node_keeper


def request(node_id: str, key: str = "cli:ada", text: str = "next") -> TurnRequest:
    return TurnRequest(new_id("turn"), "default", node_id, Address(key=key), new_messages(text))


async def test_waiting_is_bounded_and_fails_closed(store: SQLiteStore, joined: Joined) -> None:
    held = await begin(store, await joined(), "cli:ada")
    leases, nodes = await keeper_for(store)
    with pytest.raises(ConversationBusy) as busy:
        await leases.begin(request(nodes.node_id), wait_seconds=0.2)
    assert busy.value.turn_id == held.turn.id
    page = await store.messages(None, held.lease.conversation_id)
    assert len(page.items) == 1, "the waiting request has stored nothing"


async def test_a_waiter_goes_on_as_soon_as_the_turn_ends(store: SQLiteStore, joined: Joined) -> None:
    held = await begin(store, await joined(), "cli:ada")
    leases, nodes = await keeper_for(store)
    waiting = asyncio.create_task(leases.begin(request(nodes.node_id), wait_seconds=30))
    await asyncio.sleep(0.1)
    await store.commit_reply(held.lease, new_messages({"role": "assistant", "content": "done"}))
    async with asyncio.timeout(60):
        outcome = await waiting
    assert isinstance(outcome, TurnBegun) and outcome.turn.first_seq == 3, "history is read after the lease"


async def test_two_stores_on_one_file_serialise(store: SQLiteStore, joined: Joined, tmp_path: Path) -> None:
    """Another process lets go: polling the data version tells."""
    other = await open_store(tmp_path / "store.db")
    held = await begin(store, await joined(), "cli:ada")
    leases, nodes = await keeper_for(other)
    waiting = asyncio.create_task(leases.begin(request(nodes.node_id), wait_seconds=30))
    await asyncio.sleep(0.15)
    await store.commit_reply(held.lease)
    async with asyncio.timeout(60):
        assert isinstance(await waiting, TurnBegun)
    await other.close()


async def test_a_dead_holder_is_not_waited_for(store: SQLiteStore, joined: Joined) -> None:
    node = await joined()
    await begin(store, node, "cli:ada", attached=False)
    kill(store, node)
    leases, nodes = await keeper_for(store)
    async with asyncio.timeout(60):
        assert isinstance(await leases.begin(request(nodes.node_id), wait_seconds=60), TurnBegun)


async def test_a_retry_joins_the_running_turn_and_gets_its_answer(store: SQLiteStore, joined: Joined) -> None:
    leases, nodes = await keeper_for(store)
    first = replace(request(nodes.node_id), request_key=RequestKey("r", "k", b"h"))
    begun = await leases.begin(first, 1)
    assert isinstance(begun, TurnBegun)
    retried = replace(first, turn_id=new_id("turn"))
    retry = asyncio.create_task(leases.begin(retried, 30))
    await asyncio.sleep(0.1)
    await store.commit_reply(begun.lease, new_messages({"role": "assistant", "content": "one answer"}))
    outcome = await retry
    assert isinstance(outcome, TurnRepeated) and outcome.turn.id == begun.turn.id
    assert nodes.is_running(begun.turn.id) and not nodes.is_running(retried.turn_id)


async def test_a_node_that_was_reaped_begins_its_turn_as_a_new_incarnation(store: SQLiteStore) -> None:
    leases, nodes = await keeper_for(store)
    first = nodes.node_id
    await store.reap(first, 0, "taken for dead")
    outcome = await leases.begin(request(first), 1)
    assert isinstance(outcome, TurnBegun) and outcome.lease.node_id == nodes.node_id != first


async def test_a_turn_whose_caller_went_away_while_it_began_does_not_hold_the_conversation(
    store: SQLiteStore,
) -> None:
    leases, nodes = await keeper_for(store)
    beginning = asyncio.create_task(leases.begin(request(nodes.node_id), wait_seconds=5))
    await asyncio.sleep(0)  # it has been handed to the writer, and nobody waits for it any more
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    async with asyncio.timeout(60):
        assert isinstance(await leases.begin(request(nodes.node_id), wait_seconds=2), TurnBegun)
