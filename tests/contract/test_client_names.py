"""What a store keeps of agent programs: sub-agents as conversations, side requests beside them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.domain.nodes import Node
from holdfast.domain.quotas import Quotas
from holdfast.domain.sessions import Edge
from holdfast.domain.side_requests import MOST_KEPT, side_text
from holdfast.errors import NotFound
from holdfast.store.store import Store
from holdfast.store.values import Retention
from tests.contract.steps import OTHER, OWNER, Clock, all_events, begin, limit, say


async def test_a_sub_agent_begins_a_conversation_beside_its_busy_parent(store: Store, node: Node) -> None:
    parent = await begin(store, node, "hello", id="session")
    child = await say(store, node, "help", id="session:agent", parent="session")
    assert child.session.conversation_id != parent.session.conversation_id
    assert (child.session.edge, child.session.parent_id) == (Edge.SUBAGENT, parent.session.id)
    again = await say(store, node, "more", id="session:agent", parent="session")
    assert again.session.id == child.session.id
    assert len((await store.context(OWNER, child.session.id)).messages()) == 4


async def test_a_parent_that_is_unknown_or_anothers_leaves_no_edge(store: Store, node: Node) -> None:
    await say(store, node, "hello", id="theirs", owner=OTHER)
    for parent in ("unknown", "theirs"):
        begun = await say(store, node, "help", id=f"child of {parent}", parent=parent)
        assert (begun.session.edge, begun.session.parent_id) == (None, None)


async def test_a_side_request_is_an_event_of_its_conversation(store: Store, node: Node) -> None:
    await store.note_side_request(OWNER, "session", "title", {"model": "m"})
    begun = await say(store, node, "hello", id="session")
    await store.note_side_request(OWNER, "session", "title", {"model": "m"})
    found = [event for event in await all_events(store) if event.type == "request.side"]
    assert [event.conversation_id for event in found] == [None, begun.session.conversation_id]
    assert found[0].data == {"name": "session", "kind": "title", "model": "m"}


# --- the text of side requests ---------------------------------------------------------------------------

FACTS = {"model": "m", "input_tokens": 3, "output_tokens": 1}


async def note(store: Store, text: str, *, name: str = "session", owner: str = OWNER) -> None:
    asked = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": text}]
    await store.note_side_request(owner, name, "title", FACTS, side_text(asked, f"About {text}"))


async def replies(store: Store, conversation_id: str) -> list[str]:
    return [each.text.reply for each in (await store.side_requests(OWNER, conversation_id)).items]


async def test_side_requests_are_listed_with_their_conversation(store: Store, node: Node) -> None:
    await note(store, "kelp")
    begun = await say(store, node, "hello", id="session")
    conversation = begun.session.conversation_id
    await note(store, "tides")
    await note(store, "not ours", owner=OTHER)
    await note(store, "not this", name="another")
    assert await replies(store, conversation) == ["About kelp", "About tides"]
    assert await store.count_side_requests(OWNER, conversation) == 2
    page = await store.side_requests(OWNER, conversation, limit=1)
    (first,) = page.items
    assert page.has_more
    assert (first.name, first.conversation_id, first.kind) == ("session", None, "title")
    assert (first.model, first.input_tokens, first.output_tokens) == ("m", 3, 1)
    assert first.text.messages[1] == {"role": "user", "content": "kelp"}
    page = await store.side_requests(OWNER, conversation, after=first.id)
    assert [each.conversation_id for each in page.items] == [conversation]
    assert not page.has_more
    assert (await store.statistics(OWNER)).messages == 2
    with pytest.raises(NotFound):
        await store.side_requests(OWNER, conversation, after="side_unknown")


async def test_without_text_only_the_event_is_kept(store: Store, node: Node) -> None:
    begun = await say(store, node, "hello", id="session")
    await store.note_side_request(OWNER, "session", "title", FACTS)
    assert await store.count_side_requests(OWNER, begun.session.conversation_id) == 0


async def test_side_requests_are_deleted_with_their_conversation(store: Store, node: Node) -> None:
    await note(store, "before")
    begun = await say(store, node, "hello", id="session")
    await note(store, "after")
    await note(store, "stays", name="another")
    await store.delete_conversation(OWNER, begun.session.conversation_id)
    again = await say(store, node, "hello", id="session")
    assert await replies(store, again.session.conversation_id) == []
    other = await say(store, node, "hello", id="another")
    assert await replies(store, other.session.conversation_id) == ["About stays"]


async def test_a_deleted_message_takes_the_side_requests_along(store: Store, node: Node) -> None:
    await note(store, "before")
    begun = await say(store, node, "hello", id="session")
    await note(store, "after")
    await store.delete_message(OWNER, begun.session.conversation_id, 1)
    assert await replies(store, begun.session.conversation_id) == []


async def test_side_requests_are_forgotten_after_their_retention(
    store: Store, node: Node, clock: Clock
) -> None:
    day = timedelta(days=1)
    begun = await say(store, node, "hello", id="session")
    await note(store, "old")
    clock.move(hours=48)
    await note(store, "new")
    pruned = await store.prune(Retention(drafts=9 * day, events=9 * day, requests=day))
    assert pruned.requests == 1
    assert await replies(store, begun.session.conversation_id) == ["About new"]


async def test_a_name_keeps_only_its_newest_side_requests(store: Store, node: Node) -> None:
    begun = await say(store, node, "hello", id="session")
    for number in range(MOST_KEPT + 2):
        await note(store, str(number))
    page = await store.side_requests(OWNER, begun.session.conversation_id, limit=1000)
    assert len(page.items) == MOST_KEPT
    assert (page.items[0].text.reply, page.items[-1].text.reply) == ("About 2", f"About {MOST_KEPT + 1}")


async def test_an_owner_who_is_full_keeps_no_further_text(store: Store, node: Node) -> None:
    begun = await say(store, node, "hello", id="session")
    limit(store, Quotas(owner_bytes=10_000))
    await note(store, "kept")
    limit(store, Quotas(owner_bytes=10))
    await note(store, "not kept")
    assert await replies(store, begun.session.conversation_id) == ["About kept"]
    noted = [event for event in await all_events(store) if event.type == "request.side"]
    assert len(noted) == 2, "the event is recorded all the same"


async def test_text_and_counts_of_a_model_are_made_storable(store: Store, node: Node) -> None:
    begun = await say(store, node, "hello", id="session")
    text = side_text([{"role": "user", "content": "a\x00b"}], "c\x00d\ud800")
    facts = {"model": "m", "input_tokens": "many", "output_tokens": -1}
    await store.note_side_request(OWNER, "session", "title", facts, text)
    (kept,) = (await store.side_requests(OWNER, begun.session.conversation_id)).items
    assert (kept.text.messages[0]["content"], kept.text.reply) == ("a\ufffdb", "c\ufffdd?")
    assert (kept.input_tokens, kept.output_tokens) == (None, None)
