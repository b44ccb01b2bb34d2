"""What is only kept for a while goes when its time has come, and nothing else does."""

from __future__ import annotations

from datetime import timedelta

from holdfast.domain.conversations import Address
from holdfast.domain.drafts import Draft
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_messages
from holdfast.domain.nodes import NodeKind
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnBegun, TurnRequest
from holdfast.runtime.agents.sweeper import PAUSE_SECONDS, Pruner
from holdfast.store.sqlite.engine import SQLiteStore
from holdfast.store.values import Pruned, Retention, StorePolicy

from .conftest import Clock, Joined, begin

KEEP = Retention(drafts=timedelta(hours=24), events=timedelta(days=30), requests=timedelta(days=30))


async def test_drafts_go_after_a_day_unless_their_turn_still_runs(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    node = await joined()
    ended, running = await begin(store, node, "a"), await begin(store, node, "b")
    for turn in (ended, running):
        await store.append_draft(turn.lease, Draft(0, 0, b"data: x", {"content": "half"}))
    await store.commit_reply(ended.lease, new_messages({"role": "assistant", "content": "whole"}))
    pruner = Pruner(store, KEEP)
    clock.advance(hours=23)
    assert not (await pruner.prune_once()).anything
    clock.advance(hours=2)
    assert (await Pruner(store, KEEP).prune_once()).drafts == 1
    assert await store.drafts(ended.turn.id) == [] and len(await store.drafts(running.turn.id)) == 1
    assert len((await store.messages(None, ended.lease.conversation_id)).items) == 2, "messages never go"


async def test_events_and_request_keys_go_after_their_days(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    node = await joined()
    key = RequestKey("r", "m1", b"h")

    def request() -> TurnRequest:
        address = Address(key="a")
        return TurnRequest(new_id("turn"), "default", node.id, address, new_messages("hi"), request_key=key)

    first = await store.begin_turn(request())
    assert isinstance(first, TurnBegun)
    await store.commit_reply(first.lease)
    clock.advance(days=31)
    done = await Pruner(store, KEEP).prune_once()
    assert done.requests == 1 and done.events >= 4
    assert await store.events(owner=None) == []
    assert isinstance(await store.begin_turn(request()), TurnBegun), "so late it is a new request"


async def test_passes_are_bounded_and_pause_when_there_is_nothing_left(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    node = await joined()
    for number in range(5):
        await store.commit_reply((await begin(store, node, f"k{number}")).lease)
    clock.advance(days=31)
    assert (await store.prune(KEEP, limit=3)).events == 3
    now = 0.0
    pruner = Pruner(store, KEEP, monotonic=lambda: now)
    assert (await pruner.prune_once()).anything
    assert not (await pruner.prune_once()).anything
    await store.commit_reply((await begin(store, node, "k")).lease)
    clock.advance(days=31)
    assert await pruner.prune_once() == Pruned(), "it pauses"
    now = PAUSE_SECONDS + 1
    assert (await pruner.prune_once()).anything


async def test_it_goes_on_while_a_pass_was_full(store: SQLiteStore, joined: Joined, clock: Clock) -> None:
    node = await joined()
    turn = await begin(store, node, "a")
    for number in range(25):
        await store.append_draft(turn.lease, Draft(number, number, b"", {"content": "half"}))
    await store.commit_reply(turn.lease)
    clock.advance(hours=25)
    prune = store.prune

    async def small(keep: Retention, limit: int = 10) -> Pruned:
        return await prune(keep, limit)

    store.prune = small  # type: ignore[method-assign]
    pruner = Pruner(store, KEEP, monotonic=lambda: 0.0)
    passes = [await pruner.prune_once() for _ in range(4)]
    assert [done.drafts for done in passes] == [10, 10, 5, 0], "without any pause"
    assert [done.more for done in passes] == [True, True, False, False]


async def test_a_program_prunes_by_the_stores_retention_not_its_own(
    store: SQLiteStore, joined: Joined, clock: Clock
) -> None:
    year = Retention(timedelta(hours=24), timedelta(days=365), timedelta(days=365))
    await store.record_policy(NodeKind.SERVER, StorePolicy(retention=year), "node_server")
    await begin(store, await joined(), "a")
    clock.advance(days=31)
    hasty = Retention(timedelta(0), timedelta(0), timedelta(0), timedelta(0))
    assert not (await Pruner(store, hasty).prune_once()).anything
