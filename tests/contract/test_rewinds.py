"""A conversation is rewound to one of its messages, and forwards again; nothing is lost."""

from dataclasses import replace

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.events import EventType
from holdfast.domain.fingerprints import EMPTY, extended, fingerprint_of
from holdfast.domain.ids import message_id, new_id
from holdfast.domain.new_messages import tool_result
from holdfast.domain.nodes import Node
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnFailure, TurnRepeated, TurnStatus
from holdfast.errors import BadInput, Conflict, ConversationBusy, NotFound, TurnSuperseded
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, begin, calling, context_of, request, say, to_message
from tests.contract.test_compaction import compacted, talked


async def context(store: Store, key: str = "k") -> list[str]:
    tip = (await store.resolve(OWNER, Address(key=key))).tip
    return [str(each["content"]) for each in (await store.context(OWNER, tip.id)).messages()]


async def three_turns(store: Store, node: Node) -> list[str]:
    """Ids of the turns; messages 1 to 6."""
    return [(await say(store, node, f"q{n}", f"a{n}", key="k")).turn.id for n in (1, 2, 3)]


async def test_what_follows_leaves_the_context_and_stays_readable(store: Store, node: Node) -> None:
    turns = await three_turns(store, node)
    conversation = (await store.resolve(OWNER, Address(key="k"))).conversation.id
    assert await context(store) == ["q1", "a1", "q2", "a2", "q3", "a3"]
    done = await store.rewind(OWNER, conversation, turns[0])
    assert (done.to, done.left, done.restored) == (2, 4, 0)
    assert await context(store) == ["q1", "a1"]
    assert len((await store.messages(OWNER, conversation)).items) == 6
    assert [each.seq for each in await store.visible(OWNER, conversation)] == [1, 2]
    (event,) = [e for e in await store.events(owner=OWNER) if e.type == EventType.CONVERSATION_REWOUND]
    assert event.data == {"to": 2, "left": 4, "restored": 0}
    await say(store, node, "q4", "a4", key="k")
    assert await context(store) == ["q1", "a1", "q4", "a4"]


async def test_rewinding_forward_undoes_it_on_either_path(store: Store, node: Node) -> None:
    await three_turns(store, node)
    conversation = (await store.resolve(OWNER, Address(key="k"))).conversation.id
    await store.rewind(OWNER, conversation, message_id(conversation, 2))
    done = await store.rewind(OWNER, conversation, message_id(conversation, 6))
    assert (done.left, done.restored) == (0, 4)
    assert await context(store) == ["q1", "a1", "q2", "a2", "q3", "a3"]
    await store.rewind(OWNER, conversation, 2)
    await say(store, node, "q4", "a4", key="k")
    await store.rewind(OWNER, conversation, 6)
    assert await context(store) == ["q1", "a1", "q2", "a2", "q3", "a3"]
    await store.rewind(OWNER, conversation, 8)
    assert await context(store) == ["q1", "a1", "q4", "a4"]
    await store.rewind(OWNER, conversation, 3)
    assert await context(store) == ["q1", "a1", "q2"]
    await store.rewind(OWNER, conversation, 0)
    assert await context(store) == []
    await say(store, node, "q5", "a5", key="k")
    assert await context(store) == ["q5", "a5"]
    await store.rewind(OWNER, conversation, 4)
    assert await context(store) == ["q1", "a1", "q2", "a2"]


async def test_it_is_refused_while_a_turn_runs(store: Store, second_store: Store, node: Node) -> None:
    await three_turns(store, node)
    begun = await begin(store, node, "q4", key="k")
    conversation = begun.session.conversation_id
    with pytest.raises(ConversationBusy, match=begun.turn.id):
        await second_store.rewind(OWNER, conversation, 2)
    await store.commit_reply(begun.lease, [to_message("a4", "assistant")])
    assert (await context(store))[-1] == "a4"


@pytest.mark.parametrize("to", ["nonsense", "sess_1", ""])
async def test_other_names_are_no_messages(store: Store, node: Node, to: str) -> None:
    begun = await say(store, node, key="k")
    with pytest.raises(BadInput):
        await store.rewind(OWNER, begun.session.conversation_id, to)


async def test_only_messages_and_turns_of_this_conversation(store: Store, node: Node) -> None:
    begun, other = await say(store, node, key="k"), await say(store, node, key="other")
    conversation = begun.session.conversation_id
    there = other.session.conversation_id
    unknown = (new_id("turn"), "msg_unknown", "msg__1", f"{message_id(conversation, 1)}{'0' * 5_000}")
    for to in (3, -1, message_id(there, 1), message_id(conversation, 3), other.turn.id, *unknown):
        with pytest.raises(NotFound):
            await store.rewind(OWNER, conversation, to)
    with pytest.raises(NotFound):
        await store.rewind(OTHER, conversation, 1)
    assert await context(store) == ["hello", "hi"]


async def test_a_call_of_the_server_stays_with_its_result(store: Store, node: Node) -> None:
    begun = await begin(store, node, "q1", key="k")
    step = replace(to_message(calling("c1")), inner=True, own_calls=("c1",))
    await store.append(begun.lease, [step])
    await store.append(begun.lease, [tool_result("c1", "42", inner=True)])
    await store.commit_reply(begun.lease, [to_message("a1", "assistant")])
    done = await store.rewind(OWNER, begun.session.conversation_id, 2)
    assert done.to == 3
    assert (await context(store))[-1] == "42"


async def test_a_reply_that_was_answered_again_is_no_target(store: Store, node: Node) -> None:
    begun = await say(store, node, "q1", "a1", key="k")
    conversation = begun.session.conversation_id
    await store.exclude(OWNER, conversation, [2], "answered again")
    with pytest.raises(BadInput, match="answered again"):
        await store.rewind(OWNER, conversation, 2)
    await store.rewind(OWNER, conversation, 1)
    assert await context(store) == ["q1"]


async def test_rewinding_before_a_compaction_restores_that_context(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    conversation = parent.conversation_id
    child = await compacted(store, node, parent)
    summarised = await context_of(store, child.id)
    begun = await begin(store, node, "11", id=conversation)
    await store.commit_reply(begun.lease, [to_message("12", "assistant")])
    done = await store.rewind(OWNER, conversation, 4)
    assert done.session.id not in (parent.id, child.id)
    assert await context_of(store, done.session.id) == ["1", "2", "3", "4"]
    forward = await store.rewind(OWNER, conversation, 12)
    assert await context_of(store, forward.session.id) == [*summarised, "11", "12"]


async def test_rewinding_a_fork_before_its_summary_leaves_the_summary(store: Store, node: Node) -> None:
    fork = await store.fork(OWNER, (await compacted(store, node, await talked(store, node))).id, node.id)
    copied = await context_of(store, fork.id)
    assert len(copied) == 5 and copied[2].endswith("gist"), "two messages, the summary, two messages"
    lengths = {0: 0, 1: 1, 2: 2, 3: 4, 4: 5}
    for to in (2, 3, 1, 4, 0, 4):
        done = await store.rewind(OWNER, fork.conversation_id, to)
        assert await context_of(store, done.session.id) == copied[: lengths[to]], to
    await store.rewind(OWNER, fork.conversation_id, 2)
    begun = await begin(store, node, "other", id=fork.conversation_id)
    assert await context_of(store, begun.session.id) == [*copied[:2], "other"]


async def test_rewinding_before_a_reset_restores_that_context(store: Store, node: Node) -> None:
    await three_turns(store, node)
    tip = (await store.resolve(OWNER, Address(key="k"))).tip
    await store.end_session(OWNER, tip.id, "new")
    await say(store, node, "q4", "a4", key="k")
    assert await context(store) == ["q4", "a4"]
    await store.rewind(OWNER, tip.conversation_id, 4)
    assert await context(store) == ["q1", "a1", "q2", "a2"]
    await say(store, node, "q5", "a5", key="k")
    assert await context(store) == ["q1", "a1", "q2", "a2", "q5", "a5"]
    await store.rewind(OWNER, tip.conversation_id, 8)
    assert await context(store) == ["q4", "a4"]


async def test_a_rewound_turn_is_not_taken_up_again(store: Store, node: Node) -> None:
    await say(store, node, "q1", "a1", key="k")
    key = RequestKey("/v1/chat/completions", "once", b"hash")
    begun = await begin(store, node, "q2", key="k", request_key=key)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED, error="it broke"))
    await store.rewind(OWNER, begun.session.conversation_id, 2)
    with pytest.raises(TurnSuperseded):
        await store.begin_turn(request(node, "q2", key="k", request_key=key))
    await store.rewind(OWNER, begun.session.conversation_id, 3)
    again = await begin(store, node, "q2", key="k", request_key=key)
    assert again.taken_up


async def test_the_same_words_after_a_rewind_are_a_new_request(store: Store, node: Node) -> None:
    await say(store, node, "q1", "a1", key="k")
    key = RequestKey("/v1/chat/completions", "implied", b"hash", implied=True)
    begun = await begin(store, node, "q2", key="k", request_key=key)
    await store.commit_reply(begun.lease, [to_message("a2", "assistant")])
    assert isinstance(await store.begin_turn(request(node, "q2", key="k", request_key=key)), TurnRepeated)
    await store.rewind(OWNER, begun.session.conversation_id, 2)
    again = await begin(store, node, "q2", key="k", request_key=key)
    assert again.turn.id != begun.turn.id
    assert await store.newest_turn(OWNER, begun.session.conversation_id) == again.turn.id


async def test_the_newest_turn_is_the_newest_that_counts(store: Store, node: Node) -> None:
    turns = await three_turns(store, node)
    conversation = (await store.resolve(OWNER, Address(key="k"))).conversation.id
    assert await store.newest_turn(OWNER, conversation) == turns[2]
    await store.rewind(OWNER, conversation, turns[1])
    assert await store.newest_turn(OWNER, conversation) == turns[1]
    with pytest.raises(NotFound):
        await store.newest_turn(OTHER, conversation)
    with pytest.raises(Conflict, match="rewind"):
        tip = (await store.resolve(OWNER, Address(key="k"))).tip
        await store.fork(OWNER, tip.id, node.id, up_to=5)


async def test_a_client_that_dropped_the_same_messages_continues(store: Store, node: Node) -> None:
    await three_turns(store, node)
    place = await store.resolve(OWNER, Address(key="k"))
    await store.rewind(OWNER, place.conversation.id, 2)
    said = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}]
    chain = extended(EMPTY, [fingerprint_of(each) for each in said])
    assert (await store.resolve(OWNER, Address(key="k"))).conversation.history == chain
