"""Retention: what is pruned by age, and that nothing else ever is."""

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnBegun, TurnRepeated
from holdfast.errors import NotFound
from holdfast.store.store import Store
from holdfast.store.values import Pruned, Retention, SessionFilter
from tests.contract.steps import OWNER, Clock, all_events, begin, draft, everything, request, say, to_message

KEEP = Retention(drafts=timedelta(hours=24), events=timedelta(days=30), requests=timedelta(days=30))
KEY = RequestKey("/r", "k", b"h")


async def a_turn(store: Store, node: Node, **more: object) -> TurnBegun:
    """A completed turn that left two checkpoints."""
    begun = await begin(store, node, **more)
    for number in range(2):
        await store.append_draft(begun.lease, draft(number, "The tide"))
    await store.commit_reply(begun.lease, [to_message("The tide comes in", "assistant")])
    return begun


async def test_a_young_store_loses_nothing(store: Store, node: Node, clock: Clock) -> None:
    await a_turn(store, node, request_key=KEY)
    clock.move(hours=23)
    before = await everything(store)
    assert await store.prune(KEEP) == Pruned()
    assert await everything(store) == before


async def test_checkpoints_of_ended_turns_go_after_their_time(store: Store, node: Node, clock: Clock) -> None:
    old = await a_turn(store, node)
    clock.move(hours=23)
    young = await a_turn(store, node)
    clock.move(hours=2)
    assert await store.prune(KEEP) == Pruned(drafts=2)
    assert await store.drafts(old.turn.id) == []
    assert len(await store.drafts(young.turn.id)) == 2
    assert await store.prune(KEEP) == Pruned()


async def test_checkpoints_of_a_running_turn_stay_however_old(store: Store, node: Node, clock: Clock) -> None:
    running = await begin(store, node)
    await store.append_draft(running.lease, draft(0, "The tide"))
    clock.move(hours=100)
    assert (await store.prune(KEEP)).drafts == 0
    assert len(await store.drafts(running.turn.id)) == 1


async def test_checkpoints_of_a_running_turn_do_not_keep_those_behind_them(
    store: Store, node: Node, clock: Clock
) -> None:
    running = await begin(store, node)
    for number in range(5):
        await store.append_draft(running.lease, draft(number, "The tide"))
    ended = await a_turn(store, node)
    clock.move(hours=100)
    for _ in range(10):
        await store.prune(KEEP, limit=2)
    assert await store.drafts(ended.turn.id) == []
    assert len(await store.drafts(running.turn.id)) == 5


async def test_old_events_go_and_cursors_still_lead_on(store: Store, node: Node, clock: Clock) -> None:
    await say(store, node)
    last = (await all_events(store))[-1].id
    clock.move(hours=31 * 24)
    await say(store, node)
    pruned = await store.prune(KEEP)
    assert pruned.events == 5
    told = await all_events(store)
    assert len(told) == 4
    assert await store.events(owner=None, after=last) == told


async def test_a_request_is_recognised_for_its_time_and_no_longer(
    store: Store, node: Node, clock: Clock
) -> None:
    first = await a_turn(store, node, request_key=KEY)
    clock.move(hours=29 * 24)
    await store.prune(KEEP)
    assert isinstance(await store.begin_turn(request(node, request_key=KEY)), TurnRepeated)
    clock.move(hours=2 * 24)
    assert (await store.prune(KEEP)).requests == 1
    again = await store.begin_turn(request(node, request_key=KEY))
    assert isinstance(again, TurnBegun)
    assert again.turn.id != first.turn.id


async def test_what_was_said_is_never_dropped_by_age(store: Store, node: Node, clock: Clock) -> None:
    begun = await a_turn(store, node, request_key=KEY)
    await store.end_session(OWNER, begun.session.id, "closed")
    before = await everything(store)
    clock.move(hours=10 * 365 * 24)
    while (await store.prune(KEEP, limit=3)).anything:
        pass
    after = await everything(store)
    for what in before.keys() - {"drafts", "events"}:
        assert after[what] == before[what]
    assert [hit.message.seq for hit in await store.search(OWNER, "tide")] == [2]


async def test_a_pass_drops_at_most_as_many_as_it_may_the_oldest_first(
    store: Store, node: Node, clock: Clock
) -> None:
    for number in range(5):
        await a_turn(store, node, request_key=RequestKey("/r", f"k{number}", b"h"))
        clock.move(seconds=1)
    clock.move(hours=31 * 24)
    events = [event.id for event in await all_events(store)]
    assert await store.prune(KEEP, limit=3) == Pruned(drafts=3, events=3, requests=3, more=True)
    assert [event.id for event in await all_events(store)] == events[3:]
    oldest = await store.begin_turn(request(node, request_key=RequestKey("/r", "k0", b"h")))
    newest = await store.begin_turn(request(node, request_key=RequestKey("/r", "k4", b"h")))
    assert isinstance(oldest, TurnBegun)
    assert isinstance(newest, TurnRepeated)


AND_CONVERSATIONS = replace(KEEP, conversations=timedelta(days=60))


async def test_conversations_go_by_when_somebody_last_spoke_and_only_if_that_was_asked_for(
    store: Store, node: Node, clock: Clock
) -> None:
    silent = await a_turn(store, node, key="silent")
    spoken = await a_turn(store, node, key="spoken")
    clock.move(hours=24 * 59)
    await a_turn(store, node, key="spoken")
    clock.move(hours=24 * 2)
    assert (await store.prune(KEEP)).conversations == 0
    pruned = await store.prune(AND_CONVERSATIONS)
    assert (pruned.conversations, pruned.spared) == (1, 0)
    with pytest.raises(NotFound):
        await store.resolve(OWNER, Address(key="silent"))
    assert await store.search(OWNER, "tide", conversation_id=spoken.session.conversation_id)
    kept = await store.messages(OWNER, spoken.session.conversation_id)
    assert len(kept.items) == 4, "as long as somebody speaks, all of it stays, however old"
    assert {found.message.conversation_id for found in await store.search(OWNER, "tide")} == {
        spoken.session.conversation_id
    }
    assert silent.session.conversation_id not in {
        session.conversation_id for session in (await store.sessions(SessionFilter(OWNER))).items
    }


async def test_what_still_goes_on_keeps_a_conversation_and_is_counted(
    store: Store, node: Node, clock: Clock
) -> None:
    await begin(store, node, key="running")
    await store.open_session(OWNER, Address(key="attached"), node.id, attached=True)
    ended = await store.open_session(OWNER, Address(key="ended"), node.id)
    await store.end_session(OWNER, ended.id, "closed")
    clock.move(hours=24 * 61)
    pruned = await store.prune(AND_CONVERSATIONS)
    assert (pruned.conversations, pruned.spared) == (1, 2)
    assert (await store.prune(AND_CONVERSATIONS)).spared == 2


async def test_what_still_goes_on_is_counted_by_the_last_pass_alone(
    store: Store, node: Node, clock: Clock
) -> None:
    """The count reads all old conversations: by each pass it would take as long as all passes together."""
    await begin(store, node, key="running")
    for number in range(2):
        await say(store, node, "hello", key=str(number))
    clock.move(hours=24 * 61)
    passes = [await store.prune(AND_CONVERSATIONS, limit=1) for _ in range(3)]
    assert [(each.conversations, each.spared) for each in passes] == [(1, 0), (1, 0), (0, 1)]
    assert passes[0].more and passes[1].more
