"""A turn from its request to its end, and the same request coming again."""

import asyncio
from dataclasses import replace

import pytest

from holdfast.domain.contexts import OUTCOME_UNKNOWN
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.messages import MessageStatus
from holdfast.domain.nodes import Node
from holdfast.domain.turns import (
    RequestKey,
    Settlement,
    TurnBegun,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
)
from holdfast.errors import (
    BadInput,
    HoldfastError,
    IllegalTransition,
    LeaseLost,
    NodeReaped,
    NotFound,
    RequestMismatch,
    TurnSuperseded,
)
from holdfast.store.base import Store
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
    messages,
    new_node,
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
        await store.settle_turn(begun.lease, Settlement(TurnStatus(end)))
    async with unchanged(store):
        with pytest.raises(LeaseLost):
            await store.append(begun.lease, [to_message("late", "assistant")])
        with pytest.raises(LeaseLost):
            await store.append_draft(begun.lease, draft(0, "late"))
        with pytest.raises(LeaseLost):
            await store.commit_reply(begun.lease, [to_message("late", "assistant")])
        with pytest.raises(LeaseLost):
            await store.settle_turn(begun.lease, Settlement(TurnStatus.FAILED, (to_message("late"),)))
        assert not await store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "too late")


@pytest.mark.parametrize("status", SETTLED)
async def test_a_settled_turn_says_how_it_ended_and_keeps_the_users_message(
    store: Store, node: Node, clock: Clock, status: TurnStatus
) -> None:
    begun = await begin(store, node)
    at = clock.move(seconds=3)
    await store.settle_turn(
        begun.lease, Settlement(status, error="the model is out", usage={"input_tokens": 3})
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
    await store.settle_turn(begun.lease, Settlement(TurnStatus.CANCELLED, (words,)))
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
            await store.settle_turn(begun.lease, Settlement(status, (to_message("x", "assistant"),)))
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
    await store.settle_turn(begun.lease, Settlement(status))
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
    await store.settle_turn(second.lease, Settlement(TurnStatus.FAILED))
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


# --- the same request again ------------------------------------------------------------------------


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
        await store.settle_turn(begun.lease, Settlement(TurnStatus.CANCELLED))
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
    await store.settle_turn(begun.lease, Settlement(status, error="the model is out"))
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
    assert event.data == {"attempt": 2, "node": second_node.id}


async def test_a_request_may_be_taken_up_as_often_as_it_fails(store: Store, node: Node) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    assert begun.next_event == 0
    for attempt in range(2, 5):
        checkpoint = draft(begun.next_event, f"try {attempt - 1}")
        await store.append_draft(begun.lease, checkpoint)
        await store.settle_turn(begun.lease, Settlement(TurnStatus.INTERRUPTED))
        assert len(await context_of(store, begun.session.id)) == 2
        again = await store.begin_turn(keyed(node))
        assert isinstance(again, TurnBegun)
        assert again.turn.attempt == attempt
        assert again.next_event > checkpoint.reserved_to
        assert await context_of(store, again.session.id) == ["hello"]
        begun = again
    await store.commit_reply(begun.lease, [to_message("at last", "assistant")])
    assert await context_of(store, begun.session.id) == ["hello", "at last"]


async def test_an_interrupted_reply_that_is_not_retried_stays_in_the_context(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "I was"))
    await store.settle_turn(begun.lease, Settlement(TurnStatus.INTERRUPTED))
    later = await begin(store, node, "go on", id=begun.session.id)
    first, partial, last = seen(await store.context(OWNER, later.session.id))
    assert (first, last) == ("hello", "go on")
    assert partial.startswith("I was\n\n[")


@pytest.mark.parametrize("status", UNFINISHED)
async def test_an_unfinished_request_that_later_turns_followed_is_superseded(
    store: Store, node: Node, status: TurnStatus
) -> None:
    begun = await begin(store, node, key="cli:ada", request_key=KEY)
    await store.settle_turn(begun.lease, Settlement(status))
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
        await store.settle_turn(begun.lease, Settlement(TurnStatus(end)))
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
    (turn,) = {o.turn.id for o in outcomes if not isinstance(o, TurnWaits)}
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
    await store.settle_turn(begun.lease, Settlement(TurnStatus.INTERRUPTED))
    await store.end_session(OWNER, begun.session.id, reason)
    again = await store.begin_turn(keyed(node))
    assert isinstance(again, TurnBegun)
    assert (await context_of(store, again.session.id))[-1:] == ["what of the tide?"]
