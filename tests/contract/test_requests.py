"""A repeated request: the same turn, resumed, superseded, or another turn."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.nodes import Node
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import (
    Delivery,
    TurnBegun,
    TurnFailure,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
)
from holdfast.errors import RequestMismatch, TurnSuperseded
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    calling,
    contents,
    context_of,
    draft,
    reap,
    request,
    result,
    say,
    seen,
    sweep,
    to_message,
    unchanged,
)

KEY = RequestKey("/v1/chat/completions", "k1", b"hash of the body")
UNFINISHED = [TurnStatus.INTERRUPTED, TurnStatus.FAILED]
SETTLED = [*UNFINISHED, TurnStatus.CANCELLED]


def keyed(node: Node, *said: str, **more: str | None) -> TurnRequest:
    return request(node, *said, request_key=KEY, key="cli:ada", **more)  # type: ignore[arg-type]


async def test_a_request_repeated_while_it_runs_is_the_running_turn(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    begun = await store.begin_turn(keyed(node))
    assert isinstance(begun, TurnBegun)
    async with unchanged(store):
        for again in (await store.begin_turn(keyed(node)), await second_store.begin_turn(keyed(second_node))):
            assert isinstance(again, TurnRepeated)
            assert again.turn == begun.turn
            assert again.session.id == begun.session.id


@pytest.mark.parametrize("how", ["completed", "cancelled"])
async def test_a_request_repeated_after_its_end_is_that_turn_and_nothing_new(
    store: Store, node: Node, second_store: Store, second_node: Node, how: str
) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    if how == "completed":
        await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    else:
        await store.settle_turn(begun.lease, TurnFailure(TurnStatus.CANCELLED))
    async with unchanged(store):
        again = await second_store.begin_turn(keyed(second_node))
    assert isinstance(again, TurnRepeated)
    assert (again.turn.id, again.turn.status) == (begun.turn.id, TurnStatus(how))


async def test_a_completed_request_is_remembered_though_later_turns_followed(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    await store.commit_reply(begun.lease)
    await say(store, node, key="cli:ada")
    await store.end_session(OWNER, begun.session.id, "new")
    again = await store.begin_turn(keyed(node))
    assert isinstance(again, TurnRepeated)
    assert again.turn.id == begun.turn.id


async def test_a_completed_request_is_told_to_a_node_that_was_reaped_too(store: Store, node: Node) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    await store.commit_reply(begun.lease)
    await reap(store, node)
    assert isinstance(await store.begin_turn(keyed(node)), TurnRepeated)


@pytest.mark.parametrize("status", UNFINISHED)
async def test_an_unfinished_request_is_taken_up_again_without_its_partial_reply(
    store: Store, node: Node, second_store: Store, second_node: Node, clock: Clock, status: TurnStatus
) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    await store.append(begun.lease, [to_message(calling("a"))])
    await store.append(begun.lease, [to_message(result("a"))])
    await store.append_draft(begun.lease, draft(0, "I was"))
    await store.settle_turn(begun.lease, TurnFailure(status, error="the model is out"))
    clock.move(seconds=5)
    again = await second_store.begin_turn(keyed(second_node))
    assert isinstance(again, TurnBegun)
    assert again.taken_up
    assert (again.turn.id, again.turn.status, again.turn.attempt) == (begun.turn.id, TurnStatus.RUNNING, 2)
    assert (again.turn.node_id, again.turn.ended_at, again.turn.error) == (second_node.id, None, None)
    assert again.lease.token > begun.lease.token
    assert await context_of(store, again.session.id) == ["hello", None, "42"]
    assert await contents(store, again.session.conversation_id) == ["hello", None, "42", "I was"]
    assert (await store.session(OWNER, again.session.id)).last_activity_at == clock.now
    await second_store.commit_reply(again.lease, [to_message("I am", "assistant")])
    assert await context_of(store, again.session.id) == ["hello", None, "42", "I am"]
    assert len(await store.turns(OWNER, again.session.conversation_id)) == 1
    (event,) = [event for event in await all_events(store) if event.type == "turn.taken_up"]
    assert event.data == {"attempt": 2, "node": second_node.id, "by": "retry", "attempts": 2}


async def test_a_request_may_be_taken_up_as_often_as_it_fails(store: Store, node: Node) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    assert begun.next_event == 0
    for attempt in range(2, 5):
        checkpoint = draft(begun.next_event, f"try {attempt - 1}")
        await store.append_draft(begun.lease, checkpoint)
        await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
        assert len(await context_of(store, begun.session.id)) == 2
        again = await store.begin_turn(keyed(node))
        assert isinstance(again, TurnBegun)
        assert again.turn.attempt == attempt
        assert again.next_event > checkpoint.reserved_to + 1, "that one is the end's, told meanwhile"
        assert await context_of(store, again.session.id) == ["hello"]
        begun = again
    await store.commit_reply(begun.lease, [to_message("at last", "assistant")])
    assert await context_of(store, begun.session.id) == ["hello", "at last"]


async def test_an_interrupted_reply_that_is_not_retried_stays_in_the_context(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "I was"))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    later = await begin(store, node, "go on", id=begun.session.id)
    first, partial, last = seen(await store.context(OWNER, later.session.id))
    assert (first, last) == ("hello", "go on")
    assert partial.startswith("I was\n\n[")


@pytest.mark.parametrize("status", UNFINISHED)
async def test_an_unfinished_request_that_later_turns_followed_is_superseded(
    store: Store, node: Node, status: TurnStatus
) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    await store.settle_turn(begun.lease, TurnFailure(status))
    await say(store, node, key="cli:ada")
    async with unchanged(store):
        with pytest.raises(TurnSuperseded) as refusal:
            await store.begin_turn(keyed(node))
    assert refusal.value.turn_id == begun.turn.id


@pytest.mark.parametrize("end", [None, "completed", *SETTLED])
async def test_the_same_key_with_another_body_is_refused_whatever_became_of_the_turn(
    store: Store, node: Node, end: str | None
) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    if end == "completed":
        await store.commit_reply(begun.lease)
    elif end is not None:
        await store.settle_turn(begun.lease, TurnFailure(TurnStatus(end)))
    other = replace(KEY, body_hash=b"hash of another body")
    async with unchanged(store):
        with pytest.raises(RequestMismatch) as refusal:
            await store.begin_turn(request(node, "other", key="cli:ada", request_key=other))
    assert refusal.value.key == "k1"


@pytest.mark.parametrize("difference", ["owner", "route", "key"])
async def test_another_owner_route_or_key_is_another_request(
    store: Store, node: Node, difference: str
) -> None:
    begun = await begin(store, node, request_key=KEY)
    await store.commit_reply(begun.lease)
    other = {
        "owner": request(node, owner=OTHER, request_key=KEY),
        "route": request(node, request_key=replace(KEY, route="/v1/responses")),
        "key": request(node, request_key=replace(KEY, key="k2")),
    }[difference]
    outcome = await store.begin_turn(other)
    assert isinstance(outcome, TurnBegun)
    assert outcome.turn.id != begun.turn.id


async def test_a_request_that_waited_is_not_remembered(store: Store, node: Node) -> None:
    begun = await begin(store, node, key="cli:ada")
    assert isinstance(await store.begin_turn(keyed(node)), TurnWaits)
    await store.commit_reply(begun.lease)
    assert isinstance(await store.begin_turn(keyed(node)), TurnBegun)


async def test_of_the_same_request_sent_many_times_at_once_one_is_stored(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    both = [(store, node), (second_store, second_node)]
    outcomes = await asyncio.gather(*(s.begin_turn(keyed(n)) for s, n in both for _ in range(8)))
    assert len([outcome for outcome in outcomes if isinstance(outcome, TurnBegun)]) == 1
    assert len([outcome for outcome in outcomes if isinstance(outcome, TurnRepeated)]) == 15
    (turn,) = {o.turn.id for o in outcomes if isinstance(o, TurnBegun | TurnRepeated)}
    assert len(await store.turn_messages(turn)) == 1


async def test_a_request_without_a_name_is_one_conversation_however_often_it_comes(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node, request_key=KEY)
    await store.commit_reply(begun.lease)
    again = await store.begin_turn(request(node, request_key=KEY))
    assert isinstance(again, TurnRepeated)
    assert again.session.conversation_id == begun.session.conversation_id


async def test_a_request_whose_node_died_is_taken_up_after_the_sweep(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY, attached=True)
    await store.append_draft(begun.lease, draft(0, "I was"))
    await reap(second_store, node)
    await sweep(second_store)
    again = await second_store.begin_turn(keyed(second_node))
    assert isinstance(again, TurnBegun)
    assert (again.turn.id, again.turn.attempt) == (begun.turn.id, 2)
    assert again.session.parent_id == begun.session.id
    assert (await second_store.turn(OWNER, begun.turn.id)).session_id == again.session.id
    assert await context_of(second_store, again.session.id) == ["hello"]


async def test_a_request_whose_node_is_gone_is_taken_up_without_waiting_for_a_sweep(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    """A turn of a node that is gone runs nowhere; a new request would find it settled, so does its retry."""
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    await store.append_draft(begun.lease, draft(0, "I was"))
    await reap(second_store, node)
    again = await second_store.begin_turn(keyed(second_node))
    assert isinstance(again, TurnBegun)
    assert (again.turn.id, again.turn.attempt) == (begun.turn.id, 2)


@pytest.mark.parametrize("reason", ["closed", "reaped", "new", "idle"])
async def test_a_request_taken_up_after_its_session_ended_still_shows_its_message(
    store: Store, node: Node, reason: str
) -> None:
    begun = await begin(store, node, "what of the tide?", key="cli:ada", request_key=KEY)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    await store.end_session(OWNER, begun.session.id, reason)
    again = await store.begin_turn(keyed(node))
    assert isinstance(again, TurnBegun)
    assert (await context_of(store, again.session.id))[-1:] == ["what of the tide?"]


# --- without a key -----------------------------------------------------------------------------------------


BODY = RequestKey("/v1/chat/completions", "body:1", b"hash of the body", implied=True)
OPENER = replace(BODY, opener=True)


async def answered(store: Store, node: Node, body: RequestKey, **more: Any) -> TurnBegun:
    begun = await begin(store, node, request_key=body, **more)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")], delivery=Delivery.SENDING)
    return begun


async def is_repeated(store: Store, node: Node, body: RequestKey, turn: TurnBegun, **more: Any) -> bool:
    """Whether the request is that turn; another one that it begins is ended."""
    outcome = await store.begin_turn(request(node, request_key=body, **more))
    if isinstance(outcome, TurnRepeated):
        return outcome.turn.id == turn.turn.id
    assert isinstance(outcome, TurnBegun)
    if outcome.turn.id == turn.turn.id:
        return True
    await store.settle_turn(outcome.lease, TurnFailure(TurnStatus.CANCELLED))
    return False


@pytest.mark.parametrize(
    ("delivery", "repeated"),
    [(Delivery.NONE, True), (Delivery.SENDING, True), (Delivery.PART, True), (Delivery.WHOLE, False)],
)
async def test_a_body_is_its_turn_until_the_answer_was_received_whole(
    store: Store, node: Node, second_store: Store, second_node: Node, delivery: Delivery, repeated: bool
) -> None:
    begun = await answered(store, node, BODY, key="cli:ada")
    await store.note_deliveries({begun.turn.id: delivery, "turn_unknown": delivery})
    assert (await second_store.turn(OWNER, begun.turn.id)).delivery is delivery
    assert await is_repeated(second_store, second_node, BODY, begun, key="cli:ada") is repeated


async def test_what_was_received_whole_stays_received(store: Store, node: Node) -> None:
    begun = await answered(store, node, BODY, key="cli:ada")
    for delivery in (Delivery.WHOLE, Delivery.NONE):
        await store.note_deliveries({begun.turn.id: delivery})
    assert (await store.turn(OWNER, begun.turn.id)).delivery is Delivery.WHOLE


@pytest.mark.parametrize(
    ("status", "retries", "repeated"),
    [
        (TurnStatus.INTERRUPTED, 0, True),
        (TurnStatus.FAILED, 0, False),
        (TurnStatus.FAILED, 1, True),
        (TurnStatus.CANCELLED, 1, False),
    ],
)
async def test_a_body_takes_up_what_was_interrupted_and_what_failed_only_by_a_counted_retry(
    store: Store, node: Node, status: TurnStatus, retries: int, repeated: bool
) -> None:
    begun = await begin(store, node, request_key=BODY, key="cli:ada")
    await store.settle_turn(begun.lease, TurnFailure(status))
    again = replace(BODY, retries=retries)
    assert await is_repeated(store, node, again, begun, key="cli:ada") is repeated


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_an_opener_is_repeated_only_by_a_later_try_and_if_nothing_was_received(
    store: Store, node: Node, delivery: Delivery, retries: int
) -> None:
    begun = await answered(store, node, replace(OPENER, retries=1))
    await store.note_deliveries({begun.turn.id: delivery})
    expected = retries == 2 and delivery is Delivery.NONE
    assert await is_repeated(store, node, replace(OPENER, retries=retries), begun) is expected


async def test_an_opener_is_repeated_for_an_hour(store: Store, node: Node, clock: Clock) -> None:
    begun = await begin(store, node, request_key=OPENER)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED, delivery=Delivery.NONE))
    clock.move(seconds=3660)
    assert not await is_repeated(store, node, replace(OPENER, retries=1), begun)


async def test_of_a_streamed_opener_whose_node_died_something_may_have_been_received(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    begun = await begin(store, node, request_key=OPENER, streams=True)
    await reap(second_store, node)
    assert not await is_repeated(second_store, second_node, replace(OPENER, retries=1), begun)


@pytest.mark.parametrize("noted", [False, True])
async def test_of_an_opener_whose_node_died_nothing_was_received_if_it_says_so(
    store: Store, node: Node, second_store: Store, second_node: Node, noted: bool
) -> None:
    begun = await begin(store, node, request_key=OPENER, streams=noted)
    if noted:
        await store.note_deliveries({begun.turn.id: Delivery.NONE})
    await reap(second_store, node)
    assert await is_repeated(second_store, second_node, replace(OPENER, retries=1), begun)


async def test_a_try_that_took_a_turn_up_counts_for_the_next(store: Store, node: Node) -> None:
    begun = await begin(store, node, request_key=OPENER)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED, delivery=Delivery.NONE))
    again = await store.begin_turn(request(node, request_key=replace(OPENER, retries=1)))
    assert isinstance(again, TurnBegun) and again.taken_up
    await store.settle_turn(again.lease, TurnFailure(TurnStatus.INTERRUPTED, delivery=Delivery.NONE))
    assert not await is_repeated(store, node, replace(OPENER, retries=1), begun)


async def test_a_body_that_two_conversations_have_sent_identifies_neither(store: Store, node: Node) -> None:
    hers = await answered(store, node, BODY)
    his = await answered(store, node, replace(BODY, key="body:2"))
    where: dict[str, Any] = {"id": his.session.conversation_id}
    match = (his.session.conversation_id,)
    first = await store.begin_turn(request(node, request_key=BODY, matches=match, **where))
    assert isinstance(first, TurnBegun) and first.session.conversation_id == match[0]
    await store.commit_reply(first.lease)
    assert not await is_repeated(store, node, BODY, hers)
    assert not await is_repeated(store, node, BODY, first, **where)


@pytest.mark.parametrize("reason", ["new", "idle", "daily"])
async def test_words_after_a_reset_are_new_though_the_last_answer_was_not_received(
    store: Store, node: Node, reason: str
) -> None:
    begun = await answered(store, node, BODY, key="cli:ada")
    await store.end_session(OWNER, begun.session.id, reason)
    assert not await is_repeated(store, node, BODY, begun, key="cli:ada")


async def test_a_body_that_is_not_of_the_newest_turn_is_a_new_request(store: Store, node: Node) -> None:
    begun = await answered(store, node, BODY, key="cli:ada")
    await say(store, node, key="cli:ada")
    assert not await is_repeated(store, node, BODY, begun, key="cli:ada")
