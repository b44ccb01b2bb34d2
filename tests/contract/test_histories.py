"""Histories: matched by their fingerprint chain, guarded by an optimistic lock, forked, answered again."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.domain.conversations import Address, Conversation
from holdfast.domain.fingerprints import EMPTY, extended, fingerprint_of_body
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.sessions import Edge
from holdfast.domain.turns import (
    ConversationVersion,
    ForkPoint,
    NewResponse,
    TurnBegun,
    TurnFailure,
    TurnOutdated,
    TurnRepeated,
    TurnStatus,
    TurnWaits,
)
from holdfast.errors import BadInput, Conflict, LeaseLost, NodeReaped, NotFound
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    all_events,
    begin,
    calling,
    contents,
    context_of,
    draft,
    ended,
    messages,
    reap,
    request,
    result,
    say,
    to_message,
    unchanged,
)

CHAIN = extended(EMPTY, [b"one", b"two"])


async def conversation_of(store: Store, id: str) -> Conversation:
    return (await store.resolve(None, Address(id=id))).conversation


async def seen(store: Store, id: str) -> ConversationVersion:
    conversation = await conversation_of(store, id)
    return ConversationVersion(conversation.id, conversation.last_seq, conversation.revision)


async def shown(store: Store, conversation_id: str, **more: Any) -> list[Any]:
    return [m.content().get("content") for m in await store.visible(OWNER, conversation_id, **more)]


async def chained(store: Store, node: Node, chain: bytes = CHAIN, **address: Any) -> TurnBegun:
    """A conversation whose history is known."""
    begun = await begin(store, node, **address)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")], history=chain)
    return begun


# --- seen -----------------------------------------------------------------------------------------


async def test_a_turn_begins_in_the_conversation_its_caller_has_seen(store: Store, node: Node) -> None:
    first = await say(store, node, key="k")
    begun = await begin(store, node, key="k", seen=await seen(store, first.session.id))
    assert begun.session.id == first.session.id


async def speak(store: Store, node: Node, session_id: str) -> None:
    await say(store, node, id=session_id)


async def exclude(store: Store, node: Node, session_id: str) -> None:
    await store.exclude(OWNER, (await conversation_of(store, session_id)).id, [1], "wrong")


async def delete(store: Store, node: Node, session_id: str) -> None:
    await store.delete_message(OWNER, (await conversation_of(store, session_id)).id, 1)


async def fail(store: Store, node: Node, session_id: str) -> None:
    begun = await begin(store, node, id=session_id)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))


async def answer_again(store: Store, node: Node, session_id: str) -> None:
    begun = await begin(store, node, id=session_id, answer_existing=True, regenerates=(2,))
    await store.commit_reply(begun.lease, [to_message("hi again", "assistant")])


CHANGES = pytest.mark.parametrize("change", [speak, exclude, delete, fail, answer_again])


@CHANGES
@pytest.mark.parametrize("kind", ["plain", "branch", "regenerates"])
async def test_a_conversation_that_has_changed_since_it_was_seen_begins_nothing(
    store: Store,
    node: Node,
    second_store: Store,
    change: Callable[[Store, Node, str], Awaitable[None]],
    kind: str,
) -> None:
    session = (await say(store, node, key="k")).session
    before = await seen(store, session.id)
    await change(store, node, session.id)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "branch": {"branch": ForkPoint(session.id, 1)},
        "regenerates": {"regenerates": (2,), "answer_existing": True},
    }
    async with unchanged(second_store):
        outcome = await store.begin_turn(request(node, key="k", seen=before, **kinds[kind]))
        assert isinstance(outcome, TurnOutdated)


async def test_a_session_that_was_ended_meanwhile_is_still_what_was_seen(store: Store, node: Node) -> None:
    session = (await say(store, node, key="k")).session
    before = await seen(store, session.id)
    await store.end_session(OWNER, session.id, "closed")
    begun = await begin(store, node, key="k", seen=before)
    assert begun.session.parent_id == session.id
    assert await context_of(store, begun.session.id) == ["hello", "hi", "hello"]


async def test_a_conversation_that_appeared_since_begins_nothing(store: Store, node: Node) -> None:
    await say(store, node, key="k")
    async with unchanged(store):
        outcome = await store.begin_turn(request(node, key="k", seen=ConversationVersion("", 0, 0)))
        assert isinstance(outcome, TurnOutdated)
    assert isinstance(
        await store.begin_turn(request(node, key="new", seen=ConversationVersion("", 0, 0))), TurnBegun
    )


async def test_a_conversation_that_vanished_since_begins_nothing(store: Store, node: Node) -> None:
    session = (await say(store, node, key="k")).session
    before = await seen(store, session.id)
    await store.delete_conversation(OWNER, session.conversation_id)
    async with unchanged(store):
        assert isinstance(await store.begin_turn(request(node, key="k", seen=before)), TurnOutdated)


async def test_a_busy_conversation_is_waited_for_whatever_was_seen(store: Store, node: Node) -> None:
    session = (await say(store, node, key="k")).session
    before = await seen(store, session.id)
    await begin(store, node, key="k")
    async with unchanged(store):
        outcome = await store.begin_turn(request(node, key="k", seen=before))
        assert isinstance(outcome, TurnWaits)


async def test_a_request_that_came_before_is_that_turn_whatever_was_seen(store: Store, node: Node) -> None:
    key = RequestKey("r", "k1", b"hash")
    begun = await begin(store, node, key="k", request_key=key)
    await store.commit_reply(begun.lease)
    never = ConversationVersion("conv_never", -1, -1)
    outcome = await store.begin_turn(request(node, key="k", request_key=key, seen=never))
    assert isinstance(outcome, TurnRepeated) and outcome.turn.id == begun.turn.id
    other = request(node, key="k", request_key=replace(key, key="k2"), seen=never)
    assert isinstance(await store.begin_turn(other), TurnOutdated)
    assert isinstance(await store.begin_turn(replace(other, seen=None)), TurnBegun), "it was not remembered"


async def test_of_two_that_have_seen_the_same_one_begins(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = (await say(store, node, key="k")).session
    before = await seen(store, session.id)
    outcomes = await asyncio.gather(
        *(
            by.begin_turn(request(who, key="k", seen=before))
            for by, who in ((store, node), (second_store, second_node))
            for _ in range(4)
        )
    )
    assert len([outcome for outcome in outcomes if isinstance(outcome, TurnBegun)]) == 1
    assert all(isinstance(outcome, TurnBegun | TurnWaits) for outcome in outcomes)


# --- branch ---------------------------------------------------------------------------------------


async def test_a_branch_forks_and_begins_in_one_step(store: Store, node: Node, second_store: Store) -> None:
    session = (await say(store, node, "a", "A", key="k")).session
    await say(store, node, "b", "B", key="k")
    source = await conversation_of(store, session.id)
    said = await messages(store, source.id)
    begun = await begin(
        store, node, "c", key="k", seen=await seen(store, session.id), branch=ForkPoint(session.id, 2)
    )
    assert begun.session.conversation_id != source.id
    assert (begun.session.edge, begun.session.parent_id) == (Edge.FORK, session.id)
    assert (begun.turn.first_seq, begun.turn.conversation_id) == (3, begun.session.conversation_id)
    assert await contents(second_store, begun.session.conversation_id) == ["a", "A", "c"]
    assert await context_of(second_store, begun.session.id) == ["a", "A", "c"]
    await store.commit_reply(begun.lease, [to_message("C", "assistant")])
    assert await conversation_of(store, session.id) == source, "where it came from stays as it was"
    assert await messages(store, source.id) == said
    assert (await store.resolve(OWNER, Address(key="k"))).conversation.id == source.id
    forked = await conversation_of(store, begun.session.id)
    assert (forked.forked_from, forked.key, forked.holder) == (session.id, None, None)


async def test_a_branch_may_answer_the_message_it_forks_behind(store: Store, node: Node) -> None:
    session = (await say(store, node, "a", "A", key="k")).session
    await say(store, node, "b", "B", key="k")
    begun = await begin(store, node, key="k", branch=ForkPoint(session.id, 3), answer_existing=True)
    assert await context_of(store, begun.session.id) == ["a", "A", "b"]
    await store.commit_reply(begun.lease, [to_message("other", "assistant")])
    assert await contents(store, begun.session.conversation_id) == ["a", "A", "b", "other"]
    assert await contents(store, session.conversation_id) == ["a", "A", "b", "B"]


async def test_a_branch_that_fails_leaves_nothing(store: Store, node: Node, second_store: Store) -> None:
    mine = (await say(store, node, key="k")).session
    theirs = (await say(store, node, owner=OTHER)).session
    taken = (await say(store, node)).turn.id
    for branch, turn_id, error in (
        (ForkPoint(theirs.id, 1), None, NotFound),
        (ForkPoint(new_id("sess"), 1), None, NotFound),
        (ForkPoint(mine.id, 3), None, BadInput),
        (ForkPoint(mine.id, -1), None, BadInput),
        (ForkPoint(mine.id, 1), taken, Conflict),
    ):
        async with unchanged(second_store):
            with pytest.raises(error):
                await store.begin_turn(request(node, "c", key="k", branch=branch, turn_id=turn_id))


async def test_a_node_that_was_reaped_branches_nothing(store: Store, node: Node, second_store: Store) -> None:
    session = (await say(store, node, key="k")).session
    await reap(second_store, node)
    async with unchanged(second_store):
        with pytest.raises(NodeReaped):
            await store.begin_turn(request(node, "c", key="k", branch=ForkPoint(session.id, 1)))
        with pytest.raises(NodeReaped):
            await store.begin_turn(request(node, key="k", answer_existing=True, regenerates=(2,)))


# --- again ----------------------------------------------------------------------------------------


async def test_what_is_answered_again_loses_its_old_reply_which_stays_readable(
    store: Store, node: Node, second_store: Store
) -> None:
    session = (await say(store, node, "a", "A", key="k")).session
    await say(store, node, "b", "B", key="k")
    begun = await begin(store, node, key="k", answer_existing=True, regenerates=(4,))
    assert (begun.session.id, begun.session.last_seq) == (session.id, 4)
    assert await context_of(second_store, session.id) == ["a", "A", "b"]
    await store.commit_reply(begun.lease, [to_message("C", "assistant")])
    assert await context_of(second_store, session.id) == ["a", "A", "b", "C"]
    assert await contents(second_store, session.conversation_id) == ["a", "A", "b", "B", "C"]
    assert await shown(second_store, session.conversation_id) == ["a", "A", "b", "C"]
    (event,) = [event for event in await all_events(store) if event.type == "message.excluded"]
    assert event.data == {"seq": 4, "reason": "answered again"}


@pytest.mark.parametrize("reason", ["closed", "new", "idle"])
async def test_a_message_answered_again_after_its_session_ended_is_in_the_context(
    store: Store, node: Node, reason: str
) -> None:
    old = await ended(store, node, reason, key="k")
    begun = await begin(store, node, key="k", answer_existing=True, regenerates=(2,))
    assert begun.session.id != old.id
    assert await context_of(store, begun.session.id) == ["hello"]


@pytest.mark.parametrize("reason", ["closed", "new", "idle"])
@pytest.mark.parametrize("opened", [False, True])
async def test_a_question_without_an_answer_is_in_the_context_of_a_later_session(
    store: Store, node: Node, reason: str, opened: bool
) -> None:
    """A client that sends a failed request again adds no message. The model must not be called with nothing,
    whether the fresh session is opened by this turn or was before."""
    await say(store, node, "a", "A", key="k")
    begun = await begin(store, node, "b", "c", key="k")
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
    await store.end_session(None, begun.session.id, reason)
    if opened:
        await store.open_session(OWNER, Address(key="k"), node.id)
    for _ in range(2):  # the second time, the turn before it brought no message
        again = await begin(store, node, key="k", answer_existing=True)
        before = ["a", "A"] if reason == "closed" else []
        assert await context_of(store, again.session.id) == [*before, "b", "c"]
        await store.settle_turn(again.lease, TurnFailure(TurnStatus.FAILED))
        await store.end_session(None, again.session.id, reason)
    assert await contents(store, again.session.conversation_id) == ["a", "A", "b", "c"]


async def test_an_answer_tried_again_by_its_key_after_a_reset_has_its_question(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node, "a", key="k")
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
    key = RequestKey("chat", "1", b"1")
    failed = await begin(store, node, key="k", answer_existing=True, request_key=key)
    await store.settle_turn(failed.lease, TurnFailure(TurnStatus.FAILED))
    await store.end_session(None, failed.session.id, "new")
    again = await begin(store, node, key="k", answer_existing=True, request_key=key)
    assert again.turn.id == failed.turn.id
    assert await context_of(store, again.session.id) == ["a"]


@pytest.mark.parametrize("opened", [False, True])
async def test_results_answered_again_after_a_reset_have_their_calls_and_their_question(
    store: Store, node: Node, opened: bool
) -> None:
    await say(store, node, "a", calling("c"), key="k")
    session = (await say(store, node, to_message(result("c")), "B", key="k")).session
    await store.end_session(None, session.id, "new")
    if opened:
        await store.open_session(OWNER, Address(key="k"), node.id)
    begun = await begin(store, node, key="k", answer_existing=True, regenerates=(4,))
    context = (await store.context(None, begun.session.id)).messages()
    assert [message["role"] for message in context] == ["user", "assistant", "tool"]


async def test_a_message_nobody_has_answered_is_answered_without_being_said_again(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node, "a", key="k")
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
    again = await begin(store, node, key="k", answer_existing=True)
    assert (again.turn.first_seq, again.session.last_seq) == (2, 1)
    assert await context_of(store, again.session.id) == ["a"]
    await store.commit_reply(again.lease, [to_message("A", "assistant")])
    assert await contents(store, again.session.conversation_id) == ["a", "A"]
    assert [m.content()["content"] for m in await store.turn_messages(again.turn.id)] == ["A"]


async def test_a_turn_that_neither_says_nor_answers_anything_is_refused(store: Store, node: Node) -> None:
    await say(store, node, key="k")
    empty = replace(request(node, key="k", answer_existing=True), answer_existing=False)
    async with unchanged(store):
        with pytest.raises(BadInput):
            await store.begin_turn(empty)


# --- responses and answers ------------------------------------------------------------------------


async def test_a_response_is_written_with_its_turn_and_leads_to_it(
    store: Store, node: Node, second_store: Store
) -> None:
    new = NewResponse(new_id("resp"), b'{"input":"hello"}', previous_id="resp_before", background=True)
    begun = await begin(store, node, "a", "b", response=new)
    assert begun.turn.response_id == new.id
    found = await second_store.response(OWNER, new.id)
    assert (found.turn.id, found.request, found.background) == (begun.turn.id, new.request, True)
    assert (found.previous_id, found.brought) == ("resp_before", 2)
    assert (await second_store.resolve(OWNER, Address(id=new.id))).tip.id == begun.session.id
    for owner, id_ in ((OTHER, new.id), (OWNER, new_id("resp"))):
        with pytest.raises(NotFound):
            await second_store.response(owner, id_)
        with pytest.raises(NotFound):
            await second_store.resolve(owner, Address(id=id_))


async def test_a_response_whose_turn_did_not_begin_does_not_exist(store: Store, node: Node) -> None:
    await begin(store, node, key="k")
    new = NewResponse(new_id("resp"), b"{}")
    assert isinstance(await store.begin_turn(request(node, key="k", response=new)), TurnWaits)
    with pytest.raises(NotFound):
        await store.response(OWNER, new.id)


async def test_what_the_answer_carried_is_kept_with_the_turn(
    store: Store, node: Node, second_store: Store
) -> None:
    begun = await begin(store, node)
    assert await second_store.turn_answer(begun.turn.id) is None
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")], answer=b'{"id":"x","choices":[]}')
    assert await second_store.turn_answer(begun.turn.id) == b'{"id":"x","choices":[]}'
    assert await second_store.turn_answer(new_id("turn")) is None


async def test_an_answer_that_came_too_late_is_not_kept(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "stop")
    with pytest.raises(LeaseLost):
        await store.commit_reply(begun.lease, answer=b"{}", history=CHAIN)
    assert await store.turn_answer(begun.turn.id) is None
    assert (await conversation_of(store, begun.session.id)).history is None


# --- what is shown --------------------------------------------------------------------------------


async def test_what_is_shown_is_neither_excluded_nor_deleted_and_the_newest_of_it(
    store: Store, node: Node, second_store: Store
) -> None:
    session = (await say(store, node, "a", "A", key="k")).session
    await say(store, node, "b", "B", key="k")
    await store.end_session(OWNER, session.id, "new")
    await say(store, node, "c", "C", key="k")
    id_ = session.conversation_id
    assert await shown(second_store, id_) == ["a", "A", "b", "B", "c", "C"]
    await store.exclude(OWNER, id_, [2], "wrong")
    await store.delete_message(OWNER, id_, 5)
    assert await shown(second_store, id_) == ["a", "b", "B", "C"]
    assert await shown(second_store, id_, limit=2) == ["B", "C"]
    assert [message.seq for message in await second_store.visible(OWNER, id_)] == [1, 3, 4, 6]
    for owner, other in ((OTHER, id_), (OWNER, new_id("conv"))):
        with pytest.raises(NotFound):
            await second_store.visible(owner, other)


async def test_what_a_node_holds_is_told_without_a_beat(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    begun = await begin(store, node)
    await begin(second_store, second_node)
    async with unchanged(store):
        held = await second_store.held(node.id)
    assert held.leases == {begun.lease.conversation_id: begun.turn.id}
    await store.commit_reply(begun.lease)
    assert (await store.held(node.id)).leases == {}
    assert (await store.held(new_id("node"))).leases == {}


# --- chains ---------------------------------------------------------------------------------------


async def test_a_history_is_known_while_nothing_else_is_shown(
    store: Store, node: Node, second_store: Store
) -> None:
    session = (await chained(store, node, key="k")).session
    assert (await conversation_of(second_store, session.id)).history == CHAIN
    begun = await begin(store, node, key="k")
    assert begun.history == CHAIN
    assert (await conversation_of(second_store, session.id)).history is None, "more is being said"
    longer = extended(CHAIN, [b"three"])
    await store.commit_reply(begun.lease, history=longer)
    assert (await conversation_of(second_store, session.id)).history == longer
    assert (await begin(store, node)).history == EMPTY, "a new conversation has shown nothing"


async def add(store: Store, node: Node, session_id: str) -> None:
    await store.add_messages(
        OWNER, (await conversation_of(store, session_id)).id, node.id, [to_message("by the way")]
    )


async def cancel(store: Store, node: Node, session_id: str) -> None:
    begun = await begin(store, node, id=session_id)
    await store.append_draft(begun.lease, draft(0, "I was"))
    await store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "stop")


async def leave(store: Store, node: Node, session_id: str) -> None:
    await begin(store, node, id=session_id)
    await store.leave(node.id, "closed")


@pytest.mark.parametrize("change", [speak, exclude, delete, fail, answer_again, add, cancel, leave])
async def test_a_history_that_has_changed_is_not_known(
    store: Store, node: Node, change: Callable[[Store, Node, str], Awaitable[None]]
) -> None:
    session = (await chained(store, node, anonymous=True)).session
    await change(store, node, session.id)
    assert (await conversation_of(store, session.id)).history is None
    assert await store.conversations_with_history(OWNER, CHAIN) == []


@pytest.mark.parametrize("change", [exclude, delete])
async def test_what_is_taken_out_while_a_turn_runs_is_not_in_the_history_it_claims(
    store: Store, node: Node, second_store: Store, change: Callable[[Store, Node, str], Awaitable[None]]
) -> None:
    session = (await chained(store, node, anonymous=True)).session
    begun = await begin(store, node, id=session.id)
    await change(second_store, node, session.id)
    assert (await conversation_of(store, session.id)).history is None
    await store.commit_reply(begun.lease, history=CHAIN)
    assert (await conversation_of(store, session.id)).history is None
    again = await begin(store, node, id=session.id)
    assert again.history is None
    await store.commit_reply(again.lease, history=CHAIN)
    assert (await conversation_of(store, session.id)).history == CHAIN, "the next turn has seen it"


async def test_a_turn_taken_up_or_answering_again_or_branching_does_not_know_what_is_shown(
    store: Store, node: Node
) -> None:
    session = (await chained(store, node, key="k")).session
    again = await begin(store, node, key="k", answer_existing=True, regenerates=(2,))
    assert again.history is None
    await store.commit_reply(again.lease, history=CHAIN)
    branch = await begin(store, node, key="k", branch=ForkPoint(session.id, 1))
    assert branch.history is None
    key = RequestKey("r", "k1", b"hash")
    failed = await begin(store, node, key="k", request_key=key)
    await store.settle_turn(failed.lease, TurnFailure(TurnStatus.FAILED))
    taken_up = await begin(store, node, key="k", request_key=key)
    assert taken_up.taken_up and taken_up.history is None


async def test_a_conversation_begun_without_a_name_is_found_by_its_whole_history(
    store: Store, node: Node, second_store: Store
) -> None:
    found = (await chained(store, node, anonymous=True)).session
    await chained(store, node, key="k")
    await chained(store, node, anonymous=True, owner=OTHER)
    await chained(store, node, extended(CHAIN, [b"more"]), anonymous=True)
    (only,) = await second_store.conversations_with_history(OWNER, CHAIN)
    assert only == await conversation_of(store, found.id)
    assert await second_store.conversations_with_history(OWNER, EMPTY) == []


async def test_a_conversation_that_is_held_is_not_found_by_its_history(store: Store, node: Node) -> None:
    session = (await chained(store, node, anonymous=True)).session
    begun = await begin(store, node, id=session.id)
    assert await store.conversations_with_history(OWNER, CHAIN) == []
    await store.commit_reply(begun.lease, history=CHAIN)
    assert len(await store.conversations_with_history(OWNER, CHAIN)) == 1


async def test_a_fork_is_found_by_its_whole_history_behind_its_source_only(store: Store, node: Node) -> None:
    source = (await chained(store, node, key="k")).session
    branch = await begin(store, node, key="k", branch=ForkPoint(source.id, 1))
    here = source.conversation_id
    assert await store.conversations_with_history(OWNER, CHAIN, forked_from=here) == []
    await store.commit_reply(branch.lease, history=CHAIN)
    (only,) = await store.conversations_with_history(OWNER, CHAIN, forked_from=here)
    assert only.id == branch.session.conversation_id
    assert await store.conversations_with_history(OTHER, CHAIN, forked_from=here) == []
    assert await store.conversations_with_history(OWNER, EMPTY, forked_from=here) == []
    assert await store.conversations_with_history(OWNER, CHAIN, forked_from=only.id) == []


async def test_of_many_with_the_same_history_two_are_told(store: Store, node: Node) -> None:
    for _ in range(4):
        await chained(store, node, anonymous=True)
    assert len(await store.conversations_with_history(OWNER, CHAIN)) == 2


async def test_the_chain_of_what_is_shown_is_what_a_client_would_count(store: Store, node: Node) -> None:
    session = (await say(store, node, "a", "A")).session
    prints = [fingerprint_of_body(m.body) for m in await store.visible(OWNER, session.conversation_id)]
    assert len(set(prints)) == 2
    assert extended(EMPTY, prints) == extended(extended(EMPTY, prints[:1]), prints[1:])
