"""A session's context, as messages and as joined bytes, also from a cache."""

import msgspec
import pytest

from holdfast.domain.context_size import weight_of
from holdfast.domain.contexts import INTERRUPTED, NO_RESULT, OUTCOME_UNKNOWN
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import NotFound
from holdfast.store.store import Store
from tests.contract.conftest import Opener
from tests.contract.steps import (
    OTHER,
    OWNER,
    begin,
    calling,
    context_of,
    draft,
    ended,
    messages,
    result,
    say,
    to_message,
)


async def test_a_context_is_what_was_said_byte_for_byte(store: Store, node: Node) -> None:
    said = to_message({"role": "user", "content": "ü", "unknown": [1, {"a": None}]})
    replies = [to_message(calling("a")), to_message(result("a")), to_message("done", "assistant")]
    begun = await say(store, node, said, *replies)
    context = await store.context(OWNER, begun.session.id)
    assert context.json() == b"[" + b",".join(message.body for message in (said, *replies)) + b"]"
    assert context.messages() == msgspec.json.decode(context.json())
    assert (context.last_seq, context.awaited) == (4, ())


async def test_the_size_of_a_context_that_grows_in_the_cache_is_that_of_its_messages(
    store: Store, node: Node
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400}}
    seen = to_message({"role": "user", "content": [image]})
    begun = await say(store, node, to_message("hello"), to_message("hi", "assistant"), key="cli:ada")
    for _ in range(40):  # more than the chunks that are kept apart
        begun = await say(store, node, seen, to_message("a cat", "assistant"), key="cli:ada")
        assert begun.context is not None
        assert begun.context.size == weight_of(begun.context.chunks)
    assert begun.context is not None
    assert begun.context.weight().parts == 40 * 1000


async def test_an_empty_session_has_an_empty_context(store: Store, node: Node) -> None:
    old = await ended(store, node, "new", key="cli:ada")
    fresh = await store.resume_session(OWNER, old.id, node.id)
    await store.end_session(OWNER, fresh.id, "new")
    begun = await begin(store, node, key="cli:ada")
    await store.exclude(OWNER, begun.session.conversation_id, [3], "in the way")
    context = await store.context(OWNER, begun.session.id)
    assert (context.json(), context.messages()) == (b"[]", [])


async def test_a_context_is_its_owners(store: Store, node: Node) -> None:
    begun = await say(store, node)
    with pytest.raises(NotFound) as of_another:
        await store.context(OTHER, begun.session.id)
    assert str(of_another.value) == f"no session {begun.session.id!r}"
    with pytest.raises(NotFound):
        await store.context(OWNER, new_id("sess"))
    assert await context_of(store, begun.session.id) == ["hello", "hi"]


async def test_an_ended_session_keeps_the_context_it_ended_with(store: Store, node: Node) -> None:
    old = await ended(store, node, "closed", key="cli:ada")
    tip = (await say(store, node, "more", "indeed", key="cli:ada")).session
    assert await context_of(store, old.id) == ["hello", "hi"]
    assert await context_of(store, tip.id) == ["hello", "hi", "more", "indeed"]


async def test_an_excluded_message_leaves_every_context_and_stays_readable(store: Store, node: Node) -> None:
    old = await ended(store, node, "closed", key="cli:ada")
    tip = (await say(store, node, "more", "indeed", key="cli:ada")).session
    assert await context_of(store, tip.id) == ["hello", "hi", "more", "indeed"]
    assert await store.exclude(OWNER, tip.conversation_id, [2, 3], "wrong") == 2
    assert await context_of(store, old.id) == ["hello"]
    assert await context_of(store, tip.id) == ["hello", "indeed"]
    assert len(await messages(store, tip.conversation_id)) == 4


async def test_excluding_tells_how_many_were_not_out_yet(store: Store, node: Node) -> None:
    conversation = (await say(store, node)).session.conversation_id
    assert await store.exclude(OWNER, conversation, [1], "wrong") == 1
    assert await store.exclude(OWNER, conversation, [1, 2], "wrong again") == 1
    assert await store.exclude(OWNER, conversation, [2, 2], "wrong again") == 0
    assert await store.exclude(OWNER, conversation, [], "nothing") == 0


async def test_a_deleted_message_leaves_every_context(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    assert await context_of(store, session.id) == ["hello", "hi"]
    await store.delete_message(OWNER, session.conversation_id, 1)
    assert await context_of(store, session.id) == ["hi"]


async def test_an_interrupted_reply_says_so_in_the_context_but_not_in_the_list(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "I was"))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    assert await context_of(store, begun.session.id) == ["hello", f"I was\n\n{INTERRUPTED}"]
    assert (await messages(store, begun.session.conversation_id))[1].content()["content"] == "I was"


async def test_calls_of_the_newest_message_are_awaited(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b"))).session
    context = await store.context(OWNER, session.id)
    assert context.awaited == ("a", "b")
    assert len(context.messages()) == 2
    begun = await begin(store, node, result("b"), id=session.id)
    context = await store.context(OWNER, session.id)
    assert context.awaited == ("a",)
    assert len(context.messages()) == 3
    await store.append(begun.lease, [to_message(result("a"))])
    assert (await store.context(OWNER, session.id)).awaited == ()


async def test_a_call_that_was_never_answered_is_rendered_as_no_result(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b"))).session
    await say(store, node, "never mind", "fine", id=session.id)
    context = await store.context(OWNER, session.id)
    assert context.messages()[2:4] == [result("a", NO_RESULT), result("b", NO_RESULT)]
    assert context.messages()[4:] == [
        {"role": "user", "content": "never mind"},
        {"role": "assistant", "content": "fine"},
    ]
    assert context.awaited == ()
    assert len(await messages(store, session.conversation_id)) == 4


async def test_a_result_that_comes_too_late_is_left_out(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a"))).session
    await say(store, node, "never mind", "fine", id=session.id)
    await say(store, node, result("a", "too late"), "I see", id=session.id)
    assert await context_of(store, session.id) == ["look", None, NO_RESULT, "never mind", "fine", "I see"]


async def test_a_result_without_a_call_is_left_out(store: Store, node: Node) -> None:
    session = (await say(store, node, result("never called"), "hm")).session
    assert await context_of(store, session.id) == ["hm"]


async def test_a_result_sent_twice_hides_no_other(store: Store, node: Node) -> None:
    session = (await say(store, node, "look", calling("a", "b"))).session
    begun = await begin(store, node, result("a"), result("a"), result("b", "seen"), id=session.id)
    await store.commit_reply(begun.lease, [to_message("done", "assistant")])
    assert await context_of(store, session.id) == ["look", None, "42", "seen", "done"]


async def test_results_follow_their_call_though_what_stood_between_was_excluded(
    store: Store, node: Node
) -> None:
    session = (await say(store, node, "look", calling("a"), "thinking", result("a"), "seen")).session
    assert await context_of(store, session.id) == ["look", None, NO_RESULT, "thinking", "seen"]
    await store.exclude(OWNER, session.conversation_id, [3], "in the way")
    assert await context_of(store, session.id) == ["look", None, "42", "seen"]


@pytest.mark.parametrize("how", ["exclude", "delete"])
async def test_results_of_a_call_that_left_the_context_leave_with_it(
    store: Store, node: Node, how: str
) -> None:
    session = (await say(store, node, "look", calling("a"), result("a"), "seen")).session
    if how == "exclude":
        await store.exclude(OWNER, session.conversation_id, [2], "wrong")
    else:
        await store.delete_message(OWNER, session.conversation_id, 2)
    assert await context_of(store, session.id) == ["look", "seen"]


@pytest.mark.parametrize("how", ["exclude", "delete"])
async def test_a_call_whose_result_left_the_context_is_rendered_as_no_result(
    store: Store, node: Node, how: str
) -> None:
    session = (await say(store, node, "look", calling("a"), result("a"), "seen")).session
    if how == "exclude":
        await store.exclude(OWNER, session.conversation_id, [3], "wrong")
    else:
        await store.delete_message(OWNER, session.conversation_id, 3)
    assert await context_of(store, session.id) == ["look", None, NO_RESULT, "seen"]


async def test_results_may_come_in_the_session_that_goes_on(store: Store, node: Node) -> None:
    old = (await say(store, node, "look", calling("a"))).session
    await store.end_session(OWNER, old.id, "closed")
    tip = (await say(store, node, result("a"), "seen", id=old.id)).session
    assert tip.id != old.id
    assert await context_of(store, tip.id) == ["look", None, "42", "seen"]
    assert (await store.context(OWNER, old.id)).awaited == ("a",)


async def test_results_may_come_in_a_session_resumed_past_others(store: Store, node: Node) -> None:
    old = (await say(store, node, "look", calling("a"), key="cli:ada")).session
    await store.end_session(OWNER, old.id, "new")
    await say(store, node, "other matters", "indeed", key="cli:ada")
    resumed = await store.resume_session(OWNER, old.id, node.id)
    assert (await store.context(OWNER, resumed.id)).awaited == ("a",)
    begun = await begin(store, node, result("a"), key="cli:ada")
    assert begun.session.id == resumed.id
    await store.commit_reply(begun.lease, [to_message("seen", "assistant")])
    assert await context_of(store, resumed.id) == ["look", None, "42", "seen"]


async def test_an_outcome_unknown_is_told_to_the_model(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append(begun.lease, [to_message(calling("a"))])
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    assert await context_of(store, begun.session.id) == ["hello", None, OUTCOME_UNKNOWN]


# --- the cache must never be seen ------------------------------------------------------------------


async def same_everywhere(session_id: str, first: Store, *others: Store) -> list[object]:
    """The context as each of these sees it, twice, which must be the same; the last is fresh."""
    told = (await first.context(OWNER, session_id)).json()
    for store in (first, *others, *others):
        context = await store.context(OWNER, session_id)
        assert context.json() == told
        assert msgspec.json.decode(context.json()) == context.messages()
    return msgspec.json.decode(told)  # type: ignore[no-any-return]


async def test_a_context_is_right_after_everything_that_may_change_it_here_or_elsewhere(
    store: Store, node: Node, second_store: Store, second_node: Node, open_another: Opener
) -> None:
    session = (await say(store, node, key="cli:ada")).session
    conversation = session.conversation_id
    both = [(store, node), (second_store, second_node)]
    for number in range(20):
        by, who = both[number % 2]
        await say(by, who, f"q{number}", calling("a"), result("a"), f"a{number}", key="cli:ada")
        await same_everywhere(session.id, store, second_store)
    await second_store.exclude(OWNER, conversation, [3, 7], "wrong")
    await same_everywhere(session.id, store, second_store)
    await second_store.delete_message(OWNER, conversation, 11)
    await same_everywhere(session.id, second_store, store)
    begun = await begin(second_store, second_node, "cut short", key="cli:ada")
    await second_store.append(begun.lease, [to_message(calling("x", "y"))])
    await same_everywhere(session.id, store, second_store)
    await second_store.append_draft(begun.lease, draft(0, "I was"))
    await second_store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    before = await same_everywhere(session.id, store, second_store, await open_another())
    await store.end_session(OWNER, session.id, "new")
    resumed = await second_store.resume_session(OWNER, session.id, second_node.id)
    assert await same_everywhere(resumed.id, store, second_store, await open_another()) == before
    await say(store, node, "more", key="cli:ada")
    after = await same_everywhere(resumed.id, second_store, store, await open_another())
    assert len(after) == len(before) + 2
    assert await same_everywhere(session.id, store, second_store) == before


async def test_a_cached_context_takes_an_awaited_result_in(
    store: Store, node: Node, second_store: Store, second_node: Node, open_another: Opener
) -> None:
    session = (await say(store, node, "look", calling("a", "b"))).session
    await same_everywhere(session.id, store, second_store)
    begun = await begin(second_store, second_node, result("b"), id=session.id)
    await same_everywhere(session.id, store, second_store)
    await second_store.commit_reply(begun.lease, [to_message("without a, then", "assistant")])
    told = await same_everywhere(session.id, store, second_store, await open_another())
    assert [m["content"] for m in told] == ["look", None, NO_RESULT, "42", "without a, then"]  # type: ignore[index]


async def test_the_contexts_of_a_retried_turn_are_right_in_every_store(
    store: Store, node: Node, second_store: Store, second_node: Node, open_another: Opener
) -> None:
    key = RequestKey("/r", "k", b"h")
    begun = await begin(store, node, key="cli:ada", request_key=key)
    await store.append_draft(begun.lease, draft(0, "I was"))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
    assert len(await same_everywhere(begun.session.id, store, second_store)) == 2
    again = await begin(second_store, second_node, key="cli:ada", request_key=key)
    assert len(await same_everywhere(begun.session.id, store, second_store)) == 1
    await second_store.commit_reply(again.lease, [to_message("I am", "assistant")])
    assert len(await same_everywhere(begun.session.id, store, second_store, await open_another())) == 2


async def test_a_deleted_conversations_context_is_gone_for_every_store(
    store: Store, node: Node, second_store: Store
) -> None:
    session = (await say(store, node)).session
    await same_everywhere(session.id, store, second_store)
    await store.delete_conversation(OWNER, session.conversation_id)
    for by in (store, second_store):
        with pytest.raises(NotFound):
            await by.context(OWNER, session.id)


async def test_a_turn_knows_its_context_without_asking_as_long_as_that_is_what_it_would_be_told(
    store: Store, node: Node
) -> None:
    async def same(begun: TurnBegun) -> bool:
        if begun.context is None:
            return False
        assert begun.context.json() == (await store.context(None, begun.session.id)).json()
        return True

    begun = await begin(store, node, key="cli:ada")
    assert await same(begun)
    await store.commit_reply(begun.lease, [to_message({"role": "assistant", "content": "Hello"})])
    begun = await begin(store, node, key="cli:ada")
    assert await same(begun)
    await store.append(begun.lease, [to_message({"role": "assistant", "content": "by the way"})])
    await store.commit_reply(begun.lease, [to_message({"role": "assistant", "content": "bye"})])
    begun = await begin(store, node, key="cli:ada")
    await same(begun)
    await store.commit_reply(begun.lease)
    await store.exclude(None, begun.session.conversation_id, [2], "not wanted")
    begun = await begin(store, node, key="cli:ada")
    await same(begun)
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    await store.commit_reply(begun.lease, [to_message({"role": "assistant", "tool_calls": calls})])
    begun = await begin(store, node, key="cli:ada")
    await same(begun)
    assert b"No result was given" in (await store.context(None, begun.session.id)).json()
