"""Messages outside of turns: append by name, remove, replace, clear; state of a conversation."""

import json
from dataclasses import replace

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.events import EventType
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node
from holdfast.domain.session_messages import Named
from holdfast.errors import BadInput, Conflict, ConversationBusy, NotFound
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, begin, say, to_message


async def opened(store: Store, node: Node, *texts: str, key: str = "k") -> str:
    session = await store.open_session(OWNER, Address(key=key), node.id)
    if texts:
        await store.add_messages(OWNER, session.conversation_id, node.id, [to_message(t) for t in texts])
    return session.conversation_id


async def texts(store: Store, key: str = "k", limit: int | None = None) -> list[str]:
    context = await store.in_context(OWNER, Address(key=key), limit=limit)
    assert context is not None
    return [message.content()["content"] for message in context.messages]


async def test_the_context_is_read_in_order_and_by_its_newest(store: Store, node: Node) -> None:
    await opened(store, node, "one", "two", "three")
    assert await texts(store) == ["one", "two", "three"]
    assert await texts(store, limit=2) == ["two", "three"]
    assert await texts(store, limit=0) == []
    assert await store.in_context(OWNER, Address(key="unknown")) is None
    assert await store.in_context(OTHER, Address(key="k")) is None


async def test_a_named_message_is_stored_once(store: Store, second_store: Store, node: Node) -> None:
    conversation = await opened(store, node)
    batch = [Named(to_message("a"), "1"), Named(to_message("b"), "2"), Named(to_message("b"), "2")]
    assert await store.append_named(OWNER, conversation, node.id, batch) == 2
    more = [*batch, Named(to_message("c"), "3"), Named(to_message("d")), Named(to_message("d"))]
    assert await second_store.append_named(OWNER, conversation, node.id, more) == 3
    assert await texts(store) == ["a", "b", "c", "d", "d"]
    with pytest.raises(NotFound):
        await store.append_named(OTHER, conversation, node.id, batch)


async def test_removed_messages_leave_the_context_and_stay_readable(store: Store, node: Node) -> None:
    conversation = await opened(store, node, "one", "two", "three")
    removed = await store.remove_last(OWNER, conversation, 2)
    assert [message.content()["content"] for message in removed] == ["two", "three"]
    assert await texts(store) == ["one"]
    context = await store.context(OWNER, (await store.resolve(OWNER, Address(key="k"))).tip.id)
    assert [message["content"] for message in context.messages()] == ["one"]
    page = await store.messages(OWNER, conversation)
    assert len(page.items) == 3
    assert [message.seq for message in await store.remove_last(OWNER, conversation, 5)] == [1]
    assert await store.remove_last(OWNER, conversation, 1) == []
    events = [event for event in await store.events(owner=OWNER) if event.type == EventType.MESSAGES_REMOVED]
    assert [(event.data["first"], event.data["last"]) for event in events] == [(2, 3), (1, 1)]
    with pytest.raises(BadInput):
        await store.remove_last(OWNER, conversation, -1)


async def test_a_replaced_suffix_is_one_step(store: Store, node: Node) -> None:
    conversation = await opened(store, node, "one", "two", "three")
    new = [to_message("short")]
    last = await store.replace_messages(OWNER, conversation, node.id, since=2, messages=new, last_seq=3)
    assert last == 4
    assert await texts(store) == ["one", "short"]
    with pytest.raises(Conflict):
        await store.replace_messages(OWNER, conversation, node.id, since=1, messages=new, last_seq=3)
    assert await texts(store) == ["one", "short"]


async def test_older_messages_may_go_with_the_suffix(store: Store, node: Node) -> None:
    conversation = await opened(store, node, "one", "two", "three", "four", "five")
    await store.replace_messages(
        OWNER, conversation, node.id, since=5, messages=[to_message("end")], also={1, 3, 99}
    )
    assert await texts(store) == ["two", "four", "end"]


async def test_a_cleared_context_is_empty_and_goes_on(store: Store, node: Node) -> None:
    conversation = await opened(store, node, "one", "two")
    await store.replace_messages(OWNER, conversation, node.id, since=1, messages=[])
    assert await texts(store) == []
    await store.add_messages(OWNER, conversation, node.id, [to_message("three")])
    assert await texts(store) == ["three"]
    turn = await say(store, node, "four", "five", key="k")
    context = await store.context(OWNER, turn.session.id)
    assert [message["content"] for message in context.messages()] == ["three", "four", "five"]
    assert len((await store.messages(OWNER, conversation)).items) == 5
    await store.replace_messages(OWNER, conversation, node.id, since=0, messages=[to_message("new")])
    assert await texts(store) == ["new"]


async def test_what_a_running_turn_holds_is_not_changed(store: Store, node: Node) -> None:
    conversation = await opened(store, node, "one")
    await begin(store, node, "two", key="k")
    named = [Named(to_message("three"), "3")]
    with pytest.raises(ConversationBusy):
        await store.append_named(OWNER, conversation, node.id, named)
    with pytest.raises(ConversationBusy):
        await store.remove_last(OWNER, conversation, 1)
    with pytest.raises(ConversationBusy):
        await store.replace_messages(OWNER, conversation, node.id, since=1, messages=[])
    assert await texts(store) == ["one", "two"]


async def test_extra_data_is_kept_with_the_message_and_not_sent(store: Store, node: Node) -> None:
    conversation = await opened(store, node)
    many = [Named(replace(to_message(f"text {i}"), extra=json.dumps({"item": i}))) for i in range(8)]
    await store.append_named(OWNER, conversation, node.id, many[:1])
    await store.append_named(OWNER, conversation, node.id, many[1:])
    context = await store.in_context(OWNER, Address(key="k"))
    assert context is not None
    assert [message.carried() for message in context.messages] == [{"item": i} for i in range(8)]
    sent = await store.context(OWNER, (await store.resolve(OWNER, Address(key="k"))).tip.id)
    assert b"item" not in sent.json()


async def test_state_is_merged_and_goes_with_its_conversation(
    store: Store, second_store: Store, node: Node
) -> None:
    conversation = await opened(store, node)
    assert await store.state(OWNER, conversation) == {}
    await store.update_state(OWNER, conversation, {"a": 1, "b": {"c": [2]}})
    merged = await second_store.update_state(OWNER, conversation, {"d": None}, ["a", "unknown"])
    assert merged == {"b": {"c": [2]}, "d": None} == await store.state(OWNER, conversation)
    with pytest.raises(NotFound):
        await store.update_state(OTHER, conversation, {"a": 1})
    await store.delete_conversation(OWNER, conversation)
    assert await store.state(OWNER, conversation) == {}
    with pytest.raises(NotFound):
        await store.update_state(OWNER, new_id("conv"), {"a": 1})
