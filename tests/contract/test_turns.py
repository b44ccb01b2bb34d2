"""A turn from its request to its end."""

import asyncio
from dataclasses import replace

import pytest

from holdfast.domain.contexts import OUTCOME_UNKNOWN
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.messages import MessageStatus
from holdfast.domain.nodes import Node
from holdfast.domain.turns import TurnBegun, TurnFailure, TurnStatus, TurnWaits
from holdfast.errors import BadInput, HoldfastError, IllegalTransition, LeaseLost, NodeReaped, NotFound
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    calling,
    contents,
    draft,
    messages,
    new_node,
    reap,
    request,
    result,
    say,
    to_message,
    unchanged,
)

SETTLED = [TurnStatus.INTERRUPTED, TurnStatus.FAILED, TurnStatus.CANCELLED]


# --- one turn ------------------------------------------------------------------------------------


async def test_a_begun_turn_has_its_lease_and_its_messages_on_disk(
    store: Store, node: Node, second_store: Store, clock: Clock
) -> None:
    begun = await begin(store, node, "one", "two", model="small")
    turn = await second_store.turn(OWNER, begun.turn.id)
    assert turn == begun.turn
    assert (turn.status, turn.attempt, turn.first_seq) == (TurnStatus.RUNNING, 1, 1)
    assert (turn.node_id, turn.model, turn.started_at, turn.ended_at) == (node.id, "small", clock.now, None)
    lease = begun.lease
    assert (lease.turn_id, lease.node_id, lease.session_id) == (turn.id, node.id, begun.session.id)
    stored = await messages(second_store, turn.conversation_id)
    assert [(m.seq, m.role, m.turn_id, m.session_id) for m in stored] == [
        (1, "user", turn.id, begun.session.id),
        (2, "user", turn.id, begun.session.id),
    ]
    assert not begun.taken_up


@pytest.mark.parametrize("attached", [False, True])
async def test_a_begun_turn_hands_back_its_session_as_it_now_stands(
    store: Store, node: Node, second_store: Store, clock: Clock, attached: bool
) -> None:
    async def assert_told_truly(begun: TurnBegun) -> None:
        stored = await second_store.session(OWNER, begun.session.id)
        assert replace(begun.session, host=None, last_heartbeat_at=None) == replace(
            stored, host=None, last_heartbeat_at=None
        )
        assert stored.running_turn == begun.lease.turn_id
        place = await second_store.resolve(OWNER, Address(id=begun.session.id))
        assert (place.conversation.token, place.conversation.holder) == (begun.lease.token, node.id)

    first = await begin(store, node, "one", "two", attached=attached)
    await assert_told_truly(first)
    await store.commit_reply(first.lease, [to_message("hi", "assistant")], usage={"input_tokens": 3})
    clock.move(seconds=5)
    again = await begin(store, node, "three", model="small", id=first.session.id)
    assert (again.session.id, again.session.last_seq, again.turn.first_seq) == (first.session.id, 4, 4)
    assert again.lease.token == first.lease.token + 1
    await assert_told_truly(again)
    await store.commit_reply(again.lease)
    await store.end_session(OWNER, first.session.id, "closed")
    clock.move(seconds=5)
    continued = await begin(store, node, "four", id=first.session.id, attached=attached)
    assert continued.session.id != first.session.id
    await assert_told_truly(continued)


async def test_messages_come_back_byte_for_byte(store: Store, node: Node) -> None:
    sent = to_message({"role": "user", "content": "ü", "unknown": {"kept": [1, 2.5, None]}, "name": "Ada"})
    begun = await begin(store, node, sent)
    (stored,) = await messages(store, begun.turn.conversation_id)
    assert stored.body == sent.body
    assert stored.status is MessageStatus.COMPLETED


async def test_what_a_turn_appends_is_numbered_on_without_gap(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    assert await store.append(begun.lease, [to_message(calling("a", "b"))]) == 2
    assert await store.append(begun.lease, [to_message(result("a")), to_message(result("b"))]) == 4
    assert await store.append(begun.lease, []) == 4
    assert await store.commit_reply(begun.lease, [to_message("done", "assistant")]) == 5
    stored = await messages(store, begun.turn.conversation_id)
    assert [message.seq for message in stored] == [1, 2, 3, 4, 5]
    assert {message.turn_id for message in stored} == {begun.turn.id}


async def test_committing_completes_the_turn_and_lets_go(store: Store, node: Node, clock: Clock) -> None:
    begun = await begin(store, node)
    at = clock.move(seconds=3)
    assert (
        await store.commit_reply(begun.lease, [to_message("hi", "assistant")], usage={"input_tokens": 3}) == 2
    )
    turn = await store.turn(OWNER, begun.turn.id)
    assert (turn.status, turn.ended_at, turn.error, turn.usage) == (
        TurnStatus.COMPLETED,
        at,
        None,
        {"input_tokens": 3},
    )
    place = await store.resolve(OWNER, Address(id=begun.session.id))
    assert (place.conversation.holder, place.conversation.turn_id, place.conversation.last_seq) == (
        None,
        None,
        2,
    )
    assert place.tip.last_activity_at == at


async def test_a_turn_may_complete_without_a_last_message(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append(begun.lease, [to_message("hi", "assistant")])
    assert await store.commit_reply(begun.lease) == 2
    assert (await store.turn(OWNER, begun.turn.id)).status is TurnStatus.COMPLETED


@pytest.mark.parametrize("end", ["commit", *SETTLED])
async def test_a_turn_that_has_ended_writes_no_more(store: Store, node: Node, end: str) -> None:
    begun = await begin(store, node)
    if end == "commit":
        await store.commit_reply(begun.lease)
    else:
        await store.settle_turn(begun.lease, TurnFailure(TurnStatus(end)))
    async with unchanged(store):
        with pytest.raises(LeaseLost):
            await store.append(begun.lease, [to_message("late", "assistant")])
        with pytest.raises(LeaseLost):
            await store.append_draft(begun.lease, draft(0, "late"))
        with pytest.raises(LeaseLost):
            await store.commit_reply(begun.lease, [to_message("late", "assistant")])
        with pytest.raises(LeaseLost):
            await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED, (to_message("late"),)))
        assert not await store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "too late")


@pytest.mark.parametrize("status", SETTLED)
async def test_a_settled_turn_says_how_it_ended_and_keeps_the_users_message(
    store: Store, node: Node, clock: Clock, status: TurnStatus
) -> None:
    begun = await begin(store, node)
    at = clock.move(seconds=3)
    await store.settle_turn(
        begun.lease, TurnFailure(status, error="the model is out", usage={"input_tokens": 3})
    )
    turn = await store.turn(OWNER, begun.turn.id)
    assert (turn.status, turn.ended_at, turn.usage) == (status, at, {"input_tokens": 3})
    assert turn.error == ("the model is out" if status is TurnStatus.FAILED else None)
    assert await contents(store, turn.conversation_id) == ["hello"]
    assert (await store.resolve(OWNER, Address(id=turn.session_id))).conversation.holder is None
    assert (await store.session(OWNER, turn.session_id)).last_activity_at == at
    (event,) = [event for event in await all_events(store) if event.type == f"turn.{status}"]
    assert event.turn_id == turn.id
    assert (await say(store, node, "and now?", id=turn.session_id)).session.id == turn.session_id


async def test_a_settled_turn_may_still_have_something_to_say(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    words = replace(to_message("I was", "assistant"), status=MessageStatus.INTERRUPTED)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.CANCELLED, (words,)))
    stored = await messages(store, begun.turn.conversation_id)
    assert [(m.seq, m.status) for m in stored] == [
        (1, MessageStatus.COMPLETED),
        (2, MessageStatus.INTERRUPTED),
    ]


@pytest.mark.parametrize("status", [TurnStatus.RUNNING, TurnStatus.COMPLETED])
async def test_settling_is_for_turns_without_an_answer(store: Store, node: Node, status: TurnStatus) -> None:
    begun = await begin(store, node)
    async with unchanged(store):
        with pytest.raises(HoldfastError) as settling:
            await store.settle_turn(begun.lease, TurnFailure(status, (to_message("x", "assistant"),)))
        with pytest.raises(HoldfastError) as cancelling:
            await store.cancel_turn(OWNER, begun.turn.id, status, "no")
    assert isinstance(settling.value, BadInput | IllegalTransition)
    assert isinstance(cancelling.value, BadInput | IllegalTransition)
    await store.commit_reply(begun.lease)


@pytest.mark.parametrize("status", SETTLED)
async def test_a_turn_cancelled_from_outside_fences_its_writer_off(
    store: Store, node: Node, second_store: Store, status: TurnStatus
) -> None:
    begun = await begin(store, node)
    await store.append(begun.lease, [to_message(calling("a"))])
    await store.append(begun.lease, [to_message(result("a"))])
    await store.append_draft(begun.lease, draft(0, "I was"))
    assert await second_store.cancel_turn(OWNER, begun.turn.id, status, "somebody said stop")
    turn = await second_store.turn(OWNER, begun.turn.id)
    assert turn.status is status
    assert turn.error == ("somebody said stop" if status is TurnStatus.FAILED else None)
    async with unchanged(store):
        with pytest.raises(LeaseLost) as lost:
            await store.commit_reply(begun.lease, [to_message("I was too late", "assistant")])
    assert (lost.value.conversation_id, lost.value.token) == (turn.conversation_id, begun.lease.token)
    assert await contents(store, turn.conversation_id) == ["hello", None, "42", "I was"]
    assert not await second_store.cancel_turn(OWNER, begun.turn.id, status, "again")


async def test_a_turn_is_cancelled_by_its_owner_or_an_operator_only(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    async with unchanged(store):
        with pytest.raises(NotFound):
            await store.cancel_turn(OTHER, begun.turn.id, TurnStatus.CANCELLED, "not mine")
        with pytest.raises(NotFound):
            await store.cancel_turn(OWNER, new_id("turn"), TurnStatus.CANCELLED, "never was")
    assert await store.cancel_turn(None, begun.turn.id, TurnStatus.CANCELLED, "the operator said so")


@pytest.mark.parametrize("status", SETTLED)
async def test_open_tool_calls_are_closed_as_outcome_unknown(
    store: Store, node: Node, status: TurnStatus
) -> None:
    begun = await begin(store, node)
    await store.append(begun.lease, [to_message(calling("a", "b", "c")), to_message(result("b"))])
    await store.settle_turn(begun.lease, TurnFailure(status))
    stored = [message.content() for message in await messages(store, begun.turn.conversation_id)]
    assert [(m["tool_call_id"], m["content"]) for m in stored if m["role"] == "tool"] == [
        ("b", "42"),
        ("a", OUTCOME_UNKNOWN),
        ("c", OUTCOME_UNKNOWN),
    ]
    context = await store.context(OWNER, begun.session.id)
    assert context.awaited == ()
    assert len(context.messages()) == 5


async def test_calls_of_an_earlier_turn_are_not_closed_by_a_later_ones_end(store: Store, node: Node) -> None:
    first = await say(store, node, "look", calling("a"))
    second = await begin(store, node, "never mind", id=first.session.id)
    await store.settle_turn(second.lease, TurnFailure(TurnStatus.FAILED))
    assert await contents(store, first.session.conversation_id) == ["look", None, "never mind"]


async def test_turns_are_told_newest_first(store: Store, node: Node) -> None:
    first = await say(store, node, key="cli:ada")
    await store.end_session(OWNER, first.session.id, "new")
    second, third = await say(store, node, key="cli:ada"), await begin(store, node, key="cli:ada")
    conversation = first.session.conversation_id
    ids = [third.turn.id, second.turn.id, first.turn.id]
    assert [turn.id for turn in await store.turns(OWNER, conversation)] == ids
    assert [turn.id for turn in await store.turns(OWNER, conversation, limit=2)] == ids[:2]
    of_first = await store.turns(OWNER, conversation, session_id=first.session.id)
    assert [turn.id for turn in of_first] == [first.turn.id]


async def test_a_turns_messages_are_its_own_in_order(store: Store, node: Node) -> None:
    await say(store, node, "before", key="cli:ada")
    begun = await say(store, node, "look", calling("a"), result("a"), "seen", key="cli:ada")
    await say(store, node, "after", key="cli:ada")
    await store.exclude(OWNER, begun.session.conversation_id, [6], "in the way")
    told = [(message.seq, message.role) for message in await store.turn_messages(begun.turn.id)]
    assert told == [(3, "user"), (4, "assistant"), (5, "tool"), (6, "assistant")]
    assert await store.turn_messages(new_id("turn")) == []


async def test_messages_are_read_by_number_from_either_end(store: Store, node: Node) -> None:
    begun = await begin(store, node, *"abcdefg")
    conversation = begun.session.conversation_id

    async def numbers(
        first: int = 1, last: int | None = None, limit: int | None = None, newest_first: bool = False
    ) -> tuple[list[int], bool]:
        page = await store.messages(
            OWNER, conversation, first=first, last=last, limit=limit, newest_first=newest_first
        )
        return [message.seq for message in page.items], page.has_more

    assert await numbers() == ([1, 2, 3, 4, 5, 6, 7], False)
    assert await numbers(3, 5) == ([3, 4, 5], False)
    assert await numbers(3, limit=2) == ([3, 4], True)
    assert await numbers(6, limit=2) == ([6, 7], False)
    assert await numbers(limit=3, newest_first=True) == ([7, 6, 5], True)
    assert await numbers(last=4, limit=3, newest_first=True) == ([4, 3, 2], True)
    assert await numbers(last=2, limit=3, newest_first=True) == ([2, 1], False)
    assert await numbers(8) == ([], False)
    assert await numbers(5, 3) == ([], False)
    assert await numbers(last=100) == ([1, 2, 3, 4, 5, 6, 7], False)


# --- busy ----------------------------------------------------------------------------------------


async def test_a_second_turn_waits_and_writes_nothing(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    begun = await begin(store, node)
    async with unchanged(store):
        outcome = await second_store.begin_turn(request(second_node, "me too", id=begun.session.id))
    assert outcome == TurnWaits(begun.session.conversation_id, node.id, begun.turn.id)
    await store.commit_reply(begun.lease)
    assert isinstance(await second_store.begin_turn(request(second_node, id=begun.session.id)), TurnBegun)


async def test_a_nodes_second_turn_waits_for_its_first(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    async with unchanged(store):
        assert isinstance(await store.begin_turn(request(node, id=begun.session.id)), TurnWaits)


async def test_turns_of_different_conversations_do_not_wait_for_each_other(store: Store, node: Node) -> None:
    outcomes = await asyncio.gather(*(store.begin_turn(request(node, str(n))) for n in range(20)))
    assert all(isinstance(outcome, TurnBegun) for outcome in outcomes)


async def test_of_many_that_begin_at_once_one_begins(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = (await say(store, node)).session
    both = [(store, node), (second_store, second_node)]
    outcomes = await asyncio.gather(
        *(s.begin_turn(request(n, "mine", id=session.id)) for s, n in both for _ in range(8))
    )
    (begun,) = [outcome for outcome in outcomes if isinstance(outcome, TurnBegun)]
    waits = [outcome for outcome in outcomes if isinstance(outcome, TurnWaits)]
    assert len(waits) == 15
    assert {outcome.turn_id for outcome in waits} == {begun.turn.id}
    assert await contents(store, session.conversation_id) == ["hello", "hi", "mine"]


# --- refused -------------------------------------------------------------------------------------


async def test_a_turn_needs_a_message(store: Store, node: Node) -> None:
    async with unchanged(store):
        with pytest.raises(BadInput):
            await store.begin_turn(replace(request(node), messages=()))


async def test_a_node_that_is_gone_or_never_joined_begins_nothing(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    left, reaped = await new_node(store), await new_node(store)
    await store.leave(left.id, "closed")
    await reap(store, reaped)
    for node_id in (left.id, reaped.id, new_id("node")):
        for made in (request(node, id=session.id), request(node), request(node, key="new")):
            async with unchanged(store):
                with pytest.raises(NodeReaped):
                    await store.begin_turn(replace(made, node_id=node_id))


async def test_a_turn_id_is_used_once(store: Store, node: Node) -> None:
    first = await say(store, node)
    async with unchanged(store):
        with pytest.raises(HoldfastError):
            await store.begin_turn(request(node, turn_id=first.turn.id))
        with pytest.raises(HoldfastError):
            await store.begin_turn(request(node, id=first.session.id, turn_id=first.turn.id))
