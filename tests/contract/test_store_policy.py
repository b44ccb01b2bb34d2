"""Policies of the whole store, which apply whatever the settings of the acting node."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.domain.flushes import FlushPolicy
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.resets import ResetMode, ResetPolicies, ResetPolicy
from holdfast.os_support import identity
from holdfast.store.store import Store
from holdfast.store.values import Retention, StorePolicy
from tests.contract.steps import OWNER, Clock, follow, request, say
from tests.contract.test_flushes import finished

ON, OFF = FlushPolicy(True, 2), FlushPolicy(False, 2)
ASSUMED = FlushPolicy(False, 2, assumed=True)
MONTH = Retention(timedelta(hours=24), timedelta(days=30), timedelta(days=30))
YEAR = Retention(timedelta(hours=24), timedelta(days=365), timedelta(days=365), timedelta(days=900))


async def record(store: Store, kind: NodeKind, **parts: Any) -> StorePolicy:
    return await store.record_policy(kind, StorePolicy(**parts), "node_test")


async def test_nothing_is_recorded_in_a_new_store(store: Store) -> None:
    assert await store.policy() == StorePolicy()


async def test_what_is_recorded_is_read_by_every_node(store: Store, second_store: Store) -> None:
    holds = await record(store, NodeKind.SERVER, flush=ON, retention=YEAR, resets="stamp")
    assert holds == StorePolicy(ON, YEAR, "stamp")
    assert await second_store.policy() == holds


@pytest.mark.parametrize(
    ("first", "then", "holds"),
    [
        ((NodeKind.SERVER, ON), (NodeKind.LIBRARY, OFF), ON),
        ((NodeKind.SERVER, ON), (NodeKind.CLI, OFF), ON),
        ((NodeKind.SERVER, ON), (NodeKind.SERVER, ASSUMED), ON),
        ((NodeKind.SERVER, ON), (NodeKind.SERVER, OFF), OFF),
        ((NodeKind.LIBRARY, OFF), (NodeKind.CLI, ON), OFF),
        ((NodeKind.LIBRARY, OFF), (NodeKind.LIBRARY, ON), ON),
        ((NodeKind.SERVER, ASSUMED), (NodeKind.CLI, ON), ON),
        ((NodeKind.CLI, ON), (NodeKind.SERVER, ASSUMED), ON),
    ],
)
async def test_the_last_servers_word_counts_and_an_assumption_yields(
    store: Store, first: Any, then: Any, holds: FlushPolicy
) -> None:
    for kind, flush in (first, then):
        await record(store, kind, flush=flush)
    assert (await store.policy()).flush == holds


async def test_parts_that_a_program_leaves_open_stay(store: Store) -> None:
    await record(store, NodeKind.LIBRARY, flush=ON, retention=MONTH)
    assert await record(store, NodeKind.SERVER, retention=YEAR) == StorePolicy(ON, YEAR)


async def test_recording_the_same_again_or_less_changes_nothing(store: Store) -> None:
    holds = await record(store, NodeKind.SERVER, flush=ON, retention=YEAR)
    assert await record(store, NodeKind.SERVER, flush=ON, retention=YEAR) == holds
    assert await record(store, NodeKind.LIBRARY, flush=OFF, retention=MONTH) == holds


# --- flushes -----------------------------------------------------------------------------------------------


async def test_a_node_without_rules_of_its_own_writes_the_flush_that_the_store_wants(
    store: Store, node: Node
) -> None:
    await record(store, NodeKind.SERVER, flush=ON)
    store._flushing = None  # as a library without a model opens it
    session = await finished(store, node)
    assert (await store.flush(None, session.id)).shown == "pending"


async def test_a_node_that_would_flush_writes_none_where_the_store_wants_none(
    store: Store, node: Node
) -> None:
    await record(store, NodeKind.SERVER, flush=OFF)
    session = await finished(store, node)
    assert await store.flushes_of([session.id]) == {}


async def test_how_many_messages_are_enough_is_the_stores_to_say(store: Store, node: Node) -> None:
    await record(store, NodeKind.SERVER, flush=FlushPolicy(True, 5))
    short = await finished(store, node, turns=2, key="short")
    long = await finished(store, node, turns=3, key="long")
    assert set(await store.flushes_of([short.id, long.id])) == {long.id}


async def test_a_waiting_flush_is_taken_over_by_whichever_node_resumes(store: Store, node: Node) -> None:
    await record(store, NodeKind.SERVER, flush=ON)
    session = await finished(store, node, "closed")
    store._flushing = None
    again = (await say(store, node, "go on", "gladly", id=session.id)).session
    await store.end_session(None, again.id, "new")
    assert (await store.flush(None, session.id)).shown == "none"
    assert [entry.first for entry in (await store.flush_input(again.id)).entries] == [1, 2, 3, 4, 5, 6]


# --- resets ------------------------------------------------------------------------------------------------


def idle(minutes: float) -> ResetPolicies:
    return ResetPolicies(ResetPolicy(ResetMode.IDLE, timedelta(minutes=minutes)))


async def test_a_library_with_other_policies_leaves_the_servers_sessions_alone(
    store: Store, second_store: Store, node: Node, clock: Clock
) -> None:
    follow(store, idle(600))
    await record(store, NodeKind.SERVER, resets=idle(600).stamp)
    session = (await say(store, node, "hello", "hi", key="telegram:ada")).session
    clock.move(seconds=3600)
    follow(second_store, idle(1))
    assert await second_store.date_sessions(over_servers=False) == 0
    assert await second_store.due_sessions() == []
    assert not (await store.session(OWNER, session.id)).ended


async def test_without_a_servers_word_the_last_library_dates(
    store: Store, second_store: Store, node: Node, clock: Clock
) -> None:
    follow(store, idle(600))
    session = (await say(store, node, "hello", "hi", key="telegram:ada")).session
    clock.move(seconds=3600)
    follow(second_store, idle(1))
    assert await second_store.date_sessions(over_servers=False) == 1
    assert await second_store.due_sessions() == [session.id]


def test_other_limits_are_other_policies() -> None:
    stopping = ResetPolicies(ResetPolicy(ResetMode.IDLE), stop_processes=True)
    keeping = ResetPolicies(ResetPolicy(ResetMode.IDLE), stop_processes=False)
    patient = ResetPolicies(ResetPolicy(ResetMode.IDLE), max_block=timedelta(hours=9))
    assert len({stopping.stamp, keeping.stamp, patient.stamp}) == 3


# --- nodes -------------------------------------------------------------------------------------------------


async def test_a_node_says_itself_how_long_it_may_be_silent(store: Store) -> None:
    await store.join(Node(new_id("node"), NodeKind.SERVER, identity(), stale_seconds=90.5))
    await store.join(Node(new_id("node"), NodeKind.SERVER, identity()))
    assert sorted((each.stale_seconds or 0) for each in await store.nodes()) == [0, 90.5]


# --- usage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -5, "output_tokens": 7},
        {"input_tokens": 10**30, "output_tokens": 7},
        {"input_tokens": "many", "output_tokens": 7.0},
        {"input_tokens": True, "output_tokens": 7, "details": {"cached": 3}},
        {"input_tokens": float("nan"), "output_tokens": 7},
    ],
)
async def test_figures_that_cannot_be_stored_do_not_undo_an_answer(
    store: Store, node: Node, usage: dict[str, Any]
) -> None:
    begun: Any = await store.begin_turn(request(node, key="a"))
    await store.commit_reply(begun.lease, usage=usage)
    turn = await store.turn(None, begun.turn.id)
    assert (turn.status.value, turn.usage) == ("completed", {"output_tokens": 7})
