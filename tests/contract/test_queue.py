"""Queued turns: stored in order, begun in order, edited, withdrawn, joined; nothing of them is in memory."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.events import EventType
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import tool_result
from holdfast.domain.nodes import Node
from holdfast.domain.queue import QueuedTurn
from holdfast.domain.quotas import Quotas
from holdfast.domain.recovery import Origin, RequestToStore
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import (
    NewResponse,
    TurnBegun,
    TurnFailure,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
)
from holdfast.errors import BadInput, Conflict, LeaseLost, NotFound, QueueFull, QuotaExceeded
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    begin,
    calling,
    context_of,
    limit,
    new_node,
    reap,
    request,
    sweep,
    to_message,
)

STORED = RequestToStore(b'{"surface":"chat","body":{}}', Origin.QUEUED, True)


def wanted(node: Node, *said: str, key: str = "k", **more: Any) -> TurnRequest:
    return replace(request(node, *said, key=key, **more), stored=STORED)


async def queued(store: Store, node: Node, text: str, *, most: int = 16, **more: Any) -> QueuedTurn:
    found = await store.enqueue_turn(wanted(node, text, **more), most=most)
    assert found is not None
    return found


def starting(node: Node, turn_id: str, *, collects: bool = False) -> TurnRequest:
    return TurnRequest(turn_id, OWNER, node.id, Address(), (), starts_queued=True, collects=collects)


async def started(store: Store, node: Node, turn_id: str, **more: bool) -> TurnBegun:
    outcome = await store.begin_turn(starting(node, turn_id, **more))
    assert isinstance(outcome, TurnBegun), outcome
    return outcome


async def answer(store: Store, begun: TurnBegun, text: str = "fine") -> None:
    await store.commit_reply(begun.lease, [to_message(text, "assistant")])


async def test_queued_turns_begin_in_order_when_the_conversation_is_free(
    store: Store, second_store: Store, node: Node
) -> None:
    first = await begin(store, node, "one", key="k")
    two, three = await queued(store, node, "two"), await queued(second_store, node, "three")
    assert (two.position, three.position) == (1, 2)
    assert (two.behind, three.behind) == (first.turn.id, two.turn.id)
    assert (two.turn.status, two.turn.ended_at) == (TurnStatus.QUEUED, None)
    conversation = first.session.conversation_id
    assert len((await store.messages(OWNER, conversation)).items) == 1
    assert await store.queue_heads() == []
    assert isinstance(await store.begin_turn(starting(node, two.turn.id)), TurnWaits)
    await answer(store, first)
    assert [turn.id for turn in await store.queue_heads()] == [two.turn.id]
    assert isinstance(await store.begin_turn(starting(node, three.turn.id)), TurnWaits)
    begun = await started(second_store, node, two.turn.id)
    assert (begun.turn.id, begun.turn.first_seq, begun.turn.status) == (two.turn.id, 3, TurnStatus.RUNNING)
    assert begun.turn.recovery.origin is Origin.QUEUED
    assert await store.count_queued() == 1
    await answer(store, begun)
    await answer(store, await started(store, node, three.turn.id))
    said = [each.content()["content"] for each in (await store.messages(OWNER, conversation)).items]
    assert said == ["one", "fine", "two", "fine", "three", "fine"]
    assert await store.count_queued() == 0
    again = await store.begin_turn(starting(node, two.turn.id))
    assert isinstance(again, TurnRepeated)


async def test_of_queued_turns_that_can_begin_each_owner_s_oldest_comes_first(
    store: Store, node: Node
) -> None:
    waiting = {}
    for owner, key in ((OWNER, "a"), (OWNER, "b"), (OWNER, "c"), (OTHER, "d")):
        running = await begin(store, node, "one", key=key, owner=owner)
        waiting[key] = (await queued(store, node, "two", key=key, owner=owner)).turn.id
        await answer(store, running)
    assert [turn.id for turn in await store.queue_heads()] == [waiting[key] for key in "adbc"]
    assert [turn.id for turn in await store.queue_heads(limit=2)] == [waiting[key] for key in "ad"]


async def test_a_newer_request_waits_for_the_queue_and_a_free_conversation_has_none(
    store: Store, node: Node
) -> None:
    assert await store.enqueue_turn(wanted(node, "one"), most=16) is None
    first = await begin(store, node, "one", key="k")
    two = await queued(store, node, "two")
    await answer(store, first)
    waits = await store.begin_turn(request(node, "three", key="k"))
    assert isinstance(waits, TurnWaits)
    assert waits.turn_id == two.turn.id
    hasty = await store.begin_turn(replace(request(node, "now", key="k"), overtakes=True))
    assert isinstance(hasty, TurnBegun)
    await answer(store, hasty)
    await answer(store, await started(store, node, two.turn.id))
    assert isinstance(await store.begin_turn(request(node, "three", key="k")), TurnBegun)
    assert await store.enqueue_turn(wanted(node, "new", key="other"), most=16) is None


async def test_a_queue_is_bounded(store: Store, node: Node) -> None:
    await begin(store, node, "one", key="k")
    for number in range(3):
        await queued(store, node, str(number), most=3)
    with pytest.raises(QueueFull, match="3 turns"):
        await store.enqueue_turn(wanted(node, "more"), most=3)
    with pytest.raises(QueueFull):
        await store.enqueue_turn(wanted(node, "more"), most=0)
    assert await store.count_queued() == 3


async def test_what_is_queued_counts_for_the_limits_of_bytes(store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    await begin(store, node, "one", key="other")
    (usage,) = await store.usage(OWNER)
    limit(store, Quotas(conversation_bytes=usage.bytes // 2 + 2000))
    short = await queued(store, node, "short")
    await queued(store, node, "x" * 1500)
    with pytest.raises(QuotaExceeded):
        await queued(store, node, "y" * 1500)
    with pytest.raises(QuotaExceeded):
        await store.edit_queued(OWNER, short.turn.id, [to_message("y" * 1500)])
    waiting = await store.queue(OWNER, short.turn.conversation_id)
    assert [len(each.messages[0].body) < 100 for each in waiting] == [True, False]
    await store.edit_queued(OWNER, short.turn.id, [to_message("y" * 100)])
    limit(store, Quotas(owner_bytes=usage.bytes + 2000))
    with pytest.raises(QuotaExceeded):
        await queued(store, node, "z" * 1500, key="other")
    assert await store.withdraw_queue(OWNER, first.session.conversation_id, "not now") == 2
    other = await queued(store, node, "z" * 1500, key="other")
    with pytest.raises(QuotaExceeded):
        await store.edit_queued(OWNER, other.turn.id, [to_message("z" * 2500)])
    await store.edit_queued(OWNER, other.turn.id, [to_message("z" * 1600)])


async def test_two_clients_at_once_get_two_places(store: Store, second_store: Store, node: Node) -> None:
    await begin(store, node, "one", key="k")
    both = [store, second_store]
    found = await asyncio.gather(*(queued(both[n % 2], node, str(n), most=8) for n in range(8)))
    assert sorted(each.position for each in found) == list(range(1, 9))
    first = (await store.resolve(OWNER, Address(key="k"))).conversation.id
    assert [each.position for each in await store.queue(OWNER, first)] == list(range(1, 9))


async def test_only_one_node_begins_it(store: Store, second_store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    two = await queued(store, node, "two")
    await answer(store, first)
    other = await new_node(second_store)
    outcomes = await asyncio.gather(
        store.begin_turn(starting(node, two.turn.id)), second_store.begin_turn(starting(other, two.turn.id))
    )
    assert sorted(type(each).__name__ for each in outcomes) == ["TurnBegun", "TurnRepeated"]


async def test_a_queued_turn_is_edited_and_withdrawn(store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    conversation = first.session.conversation_id
    two, three = await queued(store, node, "two"), await queued(store, node, "three")
    edited = await store.edit_queued(OWNER, two.turn.id, [to_message("two and a half")])
    assert (edited.position, edited.messages[0].body) == (1, to_message("two and a half").body)
    assert await store.withdraw_queued(OWNER, three.turn.id, "a person withdrew it")
    assert not await store.withdraw_queued(OWNER, three.turn.id, "a person withdrew it")
    gone = await store.turn(OWNER, three.turn.id)
    assert (gone.status, gone.why) == (TurnStatus.CANCELLED, "a person withdrew it")
    for wrong in (three.turn.id, first.turn.id):
        with pytest.raises(Conflict, match="only a queued turn"):
            await store.edit_queued(OWNER, wrong, [to_message("x")])
    with pytest.raises(BadInput):
        await store.edit_queued(OWNER, two.turn.id, [])
    for call in (
        store.edit_queued(OTHER, two.turn.id, [to_message("x")]),
        store.withdraw_queued(OTHER, two.turn.id, "x"),
        store.withdraw_queued(OWNER, new_id("turn"), "x"),
        store.queue(OTHER, conversation),
        store.withdraw_queue(OTHER, conversation, "x"),
    ):
        with pytest.raises(NotFound):
            await call
    await answer(store, first)
    begun = await started(store, node, two.turn.id)
    assert (await context_of(store, begun.session.id))[-1] == "two and a half"


async def test_ending_and_deleting_withdraw_the_queue(store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    two = await queued(store, node, "two")
    await answer(store, first)
    assert await store.end_session(OWNER, first.session.id, "new")
    assert (await store.turn(OWNER, two.turn.id)).status is TurnStatus.CANCELLED
    again = await begin(store, node, "one", key="k")
    more = [await queued(store, node, str(n)) for n in range(3)]
    assert await store.withdraw_queue(OWNER, again.session.conversation_id, "enough") == 3
    assert (await store.turn(OWNER, more[0].turn.id)).why == "enough"
    await queued(store, node, "last")
    await store.delete_conversation(OWNER, again.session.conversation_id)
    assert await store.count_queued() == 0


async def test_messages_queued_after_one_turn_become_one_turn(store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    turns = [await queued(store, node, text) for text in ("two", "three", "four")]
    other = await queued(store, node, "five", model="another")
    await answer(store, first)
    begun = await started(store, node, turns[0].turn.id, collects=True)
    assert await context_of(store, begun.session.id) == ["one", "fine", "two", "three", "four"]
    joined = [await store.turn(OWNER, each.turn.id) for each in turns[1:]]
    assert [each.joined for each in joined] == [begun.turn.id] * 2
    assert [each.position for each in await store.queue(OWNER, begun.session.conversation_id)] == [1]
    follows = await store.begin_turn(starting(node, turns[2].turn.id))
    assert isinstance(follows, TurnRepeated)
    assert follows.turn.id == begun.turn.id
    await answer(store, begun)
    await answer(store, await started(store, node, other.turn.id, collects=True))


async def test_steering_messages_join_the_running_turn_in_order(store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    conversation = first.session.conversation_id
    assert not await store.has_steering(conversation)
    assert await store.take_steering(first.lease) is None
    waiting = await queued(store, node, "later")
    steering = [
        await store.enqueue_turn(wanted(node, text), most=16, steers=True) for text in ("left", "no, right")
    ]
    assert await store.has_steering(conversation)
    step = replace(to_message(calling("c")), inner=True, own_calls=("c",))
    await store.append(first.lease, [step])
    await store.append(first.lease, [tool_result("c", "42", inner=True)])
    done = await store.take_steering(first.lease)
    assert done is not None
    assert done.last_seq == 5
    assert (await context_of(store, first.session.id))[-3:] == ["42", "left", "no, right"]
    for each in steering:
        assert each is not None
        turn = await store.turn(OWNER, each.turn.id)
        assert (turn.joined, turn.status) == (first.turn.id, TurnStatus.RUNNING)
    await answer(store, first)
    with pytest.raises(LeaseLost):
        await store.enqueue_turn(wanted(node, "x", key="k"), most=16, steers=True)
        await store.take_steering(first.lease)
    await answer(store, await started(store, node, waiting.turn.id))


async def test_a_request_key_stands_for_its_queued_turn(store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    key = RequestKey("/v1/chat/completions", "once", b"hash")
    two = await queued(store, node, "two", request_key=key)
    again = await store.begin_turn(wanted(node, "two", request_key=key))
    assert isinstance(again, TurnRepeated)
    assert (again.turn.id, again.turn.status) == (two.turn.id, TurnStatus.QUEUED)
    assert await store.enqueue_turn(wanted(node, "two", request_key=key), most=16) is None
    implied = RequestKey("/v1/chat/completions", "implied", b"hash", implied=True)
    three = await queued(store, node, "ok", request_key=implied)
    four = await queued(store, node, "ok", request_key=implied)
    assert three.turn.id != four.turn.id
    await answer(store, first)


async def test_a_queued_turn_brings_its_alias(store: Store, node: Node) -> None:
    running = await begin(store, node, key="k")
    await queued(store, node, "two", alias="harbour")
    assert (await store.resolve(OWNER, Address(id="harbour"))).tip.id == running.session.id


async def test_a_queued_response_is_found_by_its_id(store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    response = NewResponse("resp_1", b"{}", None, True)
    two = await queued(store, node, "two", response=response)
    found = await store.response(OWNER, "resp_1")
    assert (found.turn.id, found.turn.status, found.background) == (two.turn.id, TurnStatus.QUEUED, True)
    await answer(store, first)
    begun = await started(store, node, two.turn.id)
    assert begun.turn.response_id == "resp_1"


async def test_an_interrupted_turn_is_still_the_newest_while_others_are_queued(
    store: Store, second_store: Store, node: Node
) -> None:
    dead = await new_node(second_store)
    key = RequestKey("/r", "once", b"hash")
    first = await begin(second_store, dead, "one", key="k", request_key=key)
    two = await queued(store, node, "two")
    await store.settle_turn(first.lease, TurnFailure(TurnStatus.INTERRUPTED))
    withdrawn = await queued(store, node, "three")
    await store.withdraw_queued(OWNER, withdrawn.turn.id, "enough")
    again = await begin(store, node, "one", key="k", request_key=key)
    assert again.taken_up
    await answer(store, again)
    await answer(store, await started(store, node, two.turn.id))


async def test_a_retry_by_its_clients_count_is_the_turn_that_it_queued(store: Store, node: Node) -> None:
    """The answer 202 was lost; without a count, the same words are a new message."""
    body = RequestKey("/v1/chat/completions", "body:two", b"x" * 32, implied=True)
    first = await begin(store, node, "one", key="k")
    two = await queued(store, node, "two", request_key=body)
    await queued(store, node, "three")
    again = wanted(node, "two", request_key=replace(body, retries=1))
    repeated = await store.begin_turn(again)
    assert isinstance(repeated, TurnRepeated) and repeated.turn.id == two.turn.id
    assert await store.enqueue_turn(again, most=16) is None
    assert isinstance(await store.begin_turn(wanted(node, "two", request_key=body)), TurnWaits)
    await answer(store, first)
    begun = await started(store, node, two.turn.id)
    repeated = await store.begin_turn(again)
    assert isinstance(repeated, TurnRepeated) and repeated.turn.id == two.turn.id
    await answer(store, begun)


async def test_a_node_that_dies_leaves_its_queue_to_others(
    store: Store, second_store: Store, node: Node
) -> None:
    dead = await new_node(second_store)
    await begin(second_store, dead, "one", key="k")
    two = await queued(second_store, dead, "two")
    await reap(store, dead)
    begun = await started(store, node, two.turn.id)
    assert begun.turn.node_id == node.id
    assert [e.type for e in await store.events(owner=OWNER)].count(EventType.TURN_QUEUED) == 1


async def test_only_a_request_that_adds_messages_is_queued(store: Store, node: Node) -> None:
    await begin(store, node, "one", key="k")
    for wrong in (replace(wanted(node), messages=()), replace(wanted(node, "x"), regenerates=(1,))):
        with pytest.raises(BadInput):
            await store.enqueue_turn(wrong, most=16)


async def test_a_steering_response_is_answered_by_the_turn_that_it_joined(store: Store, node: Node) -> None:
    first = await begin(store, node, "one", key="k")
    response = NewResponse(new_id("resp"), b'{"echo": {}}', None, background=True)
    wants = wanted(node, "no, right", response=response)
    steers = await store.enqueue_turn(wants, most=16, steers=True)
    assert steers is not None
    queued_one = await store.response(OWNER, response.id)
    assert (queued_one.turn.status, queued_one.joined) == (TurnStatus.QUEUED, False)
    step = replace(to_message(calling("c")), inner=True, own_calls=("c",))
    await store.append(first.lease, [step])
    await store.append(first.lease, [tool_result("c", "42", inner=True)])
    assert await store.take_steering(first.lease) is not None
    found = await store.response(OWNER, response.id)
    assert (found.turn.id, found.turn.status, found.joined) == (first.turn.id, TurnStatus.RUNNING, True)
    assert (found.turn.first_seq, found.brought, found.turn.response_id) == (4, 1, response.id)
    assert await store.newest_turn(OWNER, first.session.conversation_id) == first.turn.id
    await answer(store, first)
    found = await store.response(OWNER, response.id)
    assert found.turn.status is TurnStatus.COMPLETED
    assert await store.newest_turn(OWNER, first.session.conversation_id) == first.turn.id


async def test_a_turn_that_others_have_joined_is_taken_up_when_its_server_dies(
    store: Store, second_store: Store, node: Node
) -> None:
    dead = await new_node(store)
    first = await begin(store, dead, "one", key="k", stored=STORED)
    response = NewResponse(new_id("resp"), b'{"echo": {}}', None, background=True)
    given: tuple[dict[str, Any], ...] = ({}, {"response": response})
    for more in given:
        assert await store.enqueue_turn(wanted(dead, "right", **more), most=16, steers=True) is not None
    await store.append(first.lease, [replace(to_message(calling("c")), inner=True, own_calls=("c",))])
    await store.append(first.lease, [tool_result("c", "42", inner=True)])
    assert await store.take_steering(first.lease) is not None
    await reap(second_store, dead)
    await sweep(second_store)
    assert await store.check() == []
    (due,) = await store.due_turns()
    wants = request(node, answer_existing=True, resumes_turn=due.id, by_recovery=True)
    begun = await second_store.begin_turn(wants)
    assert isinstance(begun, TurnBegun)
    assert (begun.turn.id, begun.turn.first_seq) == (first.turn.id, 1)
    await answer(store, begun)
    assert (await store.response(OWNER, response.id)).turn.status is TurnStatus.COMPLETED
