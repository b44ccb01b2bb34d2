"""Drafts: a partial reply survives a crash."""

import contextlib

import pytest

from holdfast.domain.drafts import Draft
from holdfast.domain.ids import new_id
from holdfast.domain.messages import MessageStatus
from holdfast.domain.nodes import Node
from holdfast.domain.turns import TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import BadInput
from holdfast.store.store import Store
from tests.contract.steps import (
    OWNER,
    begin,
    calling,
    contents,
    draft,
    messages,
    reap,
    request,
    result,
    sweep,
    to_message,
    unchanged,
)


async def crash(store: Store, node: Node) -> None:
    """The node dies in the middle of whatever it was doing, and a sweep follows."""
    await reap(store, node)
    await sweep(store)


async def test_a_crash_keeps_what_was_said_as_an_interrupted_reply(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "The tide "))
    await store.append_draft(begun.lease, draft(1, "comes "))
    await store.append_draft(begun.lease, draft(2, "in", reasoning="moon"))
    await crash(store, node)
    said, reply = await messages(store, begun.session.conversation_id)
    assert said.status is MessageStatus.COMPLETED
    assert (reply.status, reply.role, reply.turn_id) == (
        MessageStatus.INTERRUPTED,
        "assistant",
        begun.turn.id,
    )
    assert reply.content() == {"role": "assistant", "content": "The tide comes in", "reasoning": "moon"}
    assert (await store.turn(OWNER, begun.turn.id)).status is TurnStatus.INTERRUPTED


async def test_a_crash_before_a_word_was_said_leaves_no_reply(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, Draft(0, 3, b"data: {}\n\n"))
    await crash(store, node)
    assert await contents(store, begun.session.conversation_id) == ["hello"]


async def test_what_was_appended_since_makes_an_older_draft_void(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "Let me look"))
    await store.append(begun.lease, [to_message(calling("a", content="Let me look"))])
    await store.append(begun.lease, [to_message(result("a"))])
    await crash(store, node)
    assert await contents(store, begun.session.conversation_id) == ["hello", "Let me look", "42"]


async def test_only_the_reply_after_the_last_append_is_kept(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "Let me look"))
    await store.append(begun.lease, [to_message(calling("a", content="Let me look"))])
    await store.append(begun.lease, [to_message(result("a"))])
    await store.append_draft(begun.lease, draft(1, "It is "))
    await store.append_draft(begun.lease, draft(2, "forty"))
    await crash(store, node)
    told = await contents(store, begun.session.conversation_id)
    assert told == ["hello", "Let me look", "42", "It is forty"]


async def test_a_reply_that_began_anew_is_kept_from_there(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "first try"))
    await store.append_draft(begun.lease, draft(1, "second ", restarts=True))
    await store.append_draft(begun.lease, draft(2, "try"))
    await crash(store, node)
    assert await contents(store, begun.session.conversation_id) == ["hello", "second try"]


async def test_a_committed_reply_stands_alone(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "The tide"))
    await store.commit_reply(begun.lease, [to_message("The tide comes in", "assistant")])
    await crash(store, node)
    assert await contents(store, begun.session.conversation_id) == ["hello", "The tide comes in"]


async def test_a_settled_turn_that_brings_its_own_words_does_not_repeat_its_draft(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "The tide"))
    await store.settle_turn(
        begun.lease, TurnFailure(TurnStatus.CANCELLED, (to_message("The tide comes", "assistant"),))
    )
    assert await contents(store, begun.session.conversation_id) == ["hello", "The tide comes"]


async def test_results_of_open_calls_come_before_the_interrupted_reply(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append(begun.lease, [to_message(calling("a"))])
    await store.append_draft(begun.lease, draft(0, "While it runs:"))
    await crash(store, node)
    stored = await messages(store, begun.session.conversation_id)
    assert [message.role for message in stored] == ["user", "assistant", "tool", "assistant"]
    assert stored[-1].status is MessageStatus.INTERRUPTED


async def test_checkpoints_are_told_after_a_cursor_with_their_events(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    kept = [
        Draft(0, 2, b"events 0-2", {"content": "a"}),
        Draft(3, 3, b"event 3", {}, restarts=True),
        Draft(4, 9, b"events 4-9", {"content": "b", "reasoning": "\U0001f41a"}),
    ]
    for checkpoint in kept:
        await store.append_draft(begun.lease, checkpoint)
    assert await store.drafts(begun.turn.id) == kept
    assert await store.drafts(begun.turn.id, after_event=1) == kept
    assert await store.drafts(begun.turn.id, after_event=2) == kept[1:]
    assert await store.drafts(begun.turn.id, after_event=8) == kept[2:]
    assert await store.drafts(begun.turn.id, after_event=9) == []
    assert await store.drafts(new_id("turn")) == []


async def test_checkpoints_stay_readable_after_the_turn_has_ended(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "The tide"))
    await store.commit_reply(begun.lease, [to_message("The tide comes in", "assistant")])
    assert await store.drafts(begun.turn.id) == [draft(0, "The tide")]


async def test_a_checkpoint_does_not_count_as_activity_or_as_a_message(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    before = await store.session(OWNER, begun.session.id)
    await store.append_draft(begun.lease, draft(0, "The tide"))
    assert await store.session(OWNER, begun.session.id) == before


async def test_event_numbers_rise_in_a_turn(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, Draft(5, 9, b"", {"content": "The tide"}))
    async with unchanged(store):
        for first, last in [(5, 9), (5, 20), (0, 3), (7, 20), (9, 9)]:
            with pytest.raises(BadInput):
                await store.append_draft(begun.lease, Draft(first, last, b"", {"content": "once more"}))
    await store.append_draft(begun.lease, Draft(10, 10, b"", {"content": " comes in"}))
    await store.commit_reply(begun.lease)


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
async def test_a_model_that_says_what_cannot_be_stored_does_not_block_its_conversation(
    store: Store, node: Node, text: str
) -> None:
    begun = await begin(store, node)
    with contextlib.suppress(BadInput):  # refused when it came: then nothing of it is there to be kept
        await store.append_draft(begun.lease, draft(0, text))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    assert isinstance(await store.begin_turn(request(node, id=begun.session.id)), TurnBegun)


async def test_the_same_checkpoint_written_again_is_stored_once(store: Store, node: Node) -> None:
    """Its writer lost the connection in the commit, and does not know."""
    begun = await begin(store, node, "hello", key="a")
    await store.append_draft(begun.lease, draft(0, "The tide"))
    await store.append_draft(begun.lease, draft(0, "The tide"))
    with pytest.raises(BadInput, match="not above"):
        await store.append_draft(begun.lease, draft(0, "Something else"))
    assert [each.adds for each in await store.drafts(begun.turn.id)] == [{"content": "The tide"}]
