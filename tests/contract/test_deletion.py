"""Deleting a message, and deleting a conversation with everything in it."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.domain.conversations import Address
from holdfast.domain.ids import message_id, new_id
from holdfast.domain.nodes import Node
from holdfast.domain.recovery import Origin, RequestToStore
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import LeaseLost, NotFound
from holdfast.store.store import Store
from holdfast.store.values import SessionFilter
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    contents,
    context_of,
    draft,
    ended,
    everything,
    messages,
    request,
    say,
    to_message,
    unchanged,
)

CANARY = "heliotrope"
QUEUED = RequestToStore(b'{"surface":"chat","body":{}}', Origin.QUEUED, True)


async def test_a_deleted_message_keeps_its_number_and_nothing_else(store: Store, node: Node) -> None:
    session = (await say(store, node, f"my {CANARY}", "noted", key="cli:ada")).session
    await store.delete_message(OWNER, session.conversation_id, 1)
    assert [message.seq for message in await messages(store, session.conversation_id)] == [2]
    assert await context_of(store, session.id) == ["noted"]
    assert await store.search(OWNER, CANARY) == []
    turn = (await store.turns(OWNER, session.conversation_id))[0]
    assert [message.seq for message in await store.turn_messages(turn.id)] == [2]
    await say(store, node, "more", "yes", key="cli:ada")
    assert [message.seq for message in await messages(store, session.conversation_id)] == [2, 3, 4]
    assert (await store.resolve(OWNER, Address(id=session.id))).conversation.last_seq == 4


async def test_a_deleted_message_is_told_by_an_event_without_its_text(store: Store, node: Node) -> None:
    session = (await say(store, node, f"my {CANARY}")).session
    await store.delete_message(OWNER, session.conversation_id, 1)
    (event,) = [event for event in await all_events(store) if event.type == "message.deleted"]
    assert (event.conversation_id, event.data) == (session.conversation_id, {"seq": 1})


async def test_a_message_is_deleted_once_and_only_by_its_owner(store: Store, node: Node) -> None:
    conversation = (await say(store, node)).session.conversation_id
    await store.delete_message(OWNER, conversation, 1)
    async with unchanged(store):
        for owner, seq in [(OWNER, 1), (OTHER, 2), (OWNER, 3), (OWNER, 0), (OWNER, -1)]:
            with pytest.raises(NotFound):
                await store.delete_message(owner, conversation, seq)
        with pytest.raises(NotFound):
            await store.delete_message(OWNER, new_id("conv"), 1)


@pytest.mark.parametrize("key", ["cli:ada", None])
async def test_a_refused_first_turn_goes_with_its_conversation(
    store: Store, node: Node, key: str | None
) -> None:
    begun = await store.begin_turn(request(node, f"my {CANARY}", key=key, owner=OWNER, model="gpt-4o-mini"))
    assert isinstance(begun, TurnBegun)
    assert await store.withdraw_refused(begun.lease)
    for look in (store.turn(OWNER, begun.turn.id), store.session(OWNER, begun.session.id)):
        with pytest.raises(NotFound):
            await look
    assert await store.search(OWNER, CANARY) == []
    assert CANARY not in str(await everything(store))
    assert (await store.check()) == []
    with pytest.raises(LeaseLost):
        await store.withdraw_refused(begun.lease)
    again = (await say(store, node, "hello", key=key)).session
    assert again.conversation_id != begun.session.conversation_id


ADDED = ("an older turn", "a reply", "a title", "metadata", "an alias", "a fork", "a queued turn", "a notice")


@pytest.mark.parametrize("added", [*ADDED, "the conversation itself"])
async def test_a_refused_turn_stays_where_anything_else_is(
    store: Store, node: Node, clock: Clock, added: str
) -> None:
    address: dict[str, Any] = {"key": "cli:ada"}
    if added == "an older turn":
        await say(store, node, **address)
    elif added == "the conversation itself":
        address = {"id": (await store.create_conversation(OWNER, node.id)).id}
    clock.move(seconds=1)
    begun = await begin(store, node, "hello", **address)
    conversation = begun.session.conversation_id
    clock.move(seconds=1)
    if added == "a reply":
        await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
        begun = await begin(store, node, "again", **address)
    elif added == "a title":
        await store.set_title(OWNER, conversation, "Mine")
    elif added == "metadata":
        await store.set_metadata(OWNER, conversation, {"a": "b"})
    elif added == "an alias":
        await store.add_alias(OWNER, "mine", conversation)
    elif added == "a fork":
        await store.fork(OWNER, begun.session.id, node.id)
    elif added == "a queued turn":
        more = replace(request(node, "more", owner=OWNER, **address), stored=QUEUED)
        assert await store.enqueue_turn(more, most=9) is not None
    elif added == "a notice":
        await store.add_notice(OWNER, conversation, "reset", "more")
    async with unchanged(store):
        assert not await store.withdraw_refused(begun.lease)


async def test_pages_of_messages_pass_over_deleted_ones(store: Store, node: Node) -> None:
    begun = await begin(store, node, *"abcdef")
    for seq in (2, 3, 5):
        await store.delete_message(OWNER, begun.session.conversation_id, seq)
    page = await store.messages(OWNER, begun.session.conversation_id, limit=2)
    assert ([message.seq for message in page.items], page.has_more) == ([1, 4], True)
    page = await store.messages(OWNER, begun.session.conversation_id, first=5, limit=2)
    assert ([message.seq for message in page.items], page.has_more) == ([6], False)


async def test_a_message_of_a_running_turn_can_be_deleted(store: Store, node: Node) -> None:
    begun = await begin(store, node)
    await store.delete_message(OWNER, begun.session.conversation_id, 1)
    await store.commit_reply(begun.lease, [to_message("what?", "assistant")])
    assert await contents(store, begun.session.conversation_id) == ["what?"]


async def test_a_deleted_conversation_leaves_one_event_and_nothing_else(store: Store, node: Node) -> None:
    await say(store, node, "stays", key="other")
    before = await everything(store)
    key = RequestKey("/r", "k", b"h")
    await ended(store, node, "new", key="cli:ada")
    begun = await begin(store, node, f"my {CANARY}", key="cli:ada", request_key=key)
    await store.append_draft(begun.lease, draft(0, CANARY))
    await store.commit_reply(begun.lease, [to_message(f"your {CANARY}", "assistant")])
    conversation = begun.session.conversation_id
    await store.add_alias(OWNER, "outside name", conversation)
    await store.set_title(OWNER, conversation, CANARY)
    await store.exclude(OWNER, conversation, [1], "wrong")
    old = (await store.line(OWNER, conversation))[0]

    assert await store.delete_conversation(OWNER, conversation) == 4
    after = await everything(store)
    (event,) = after.pop("events")[len(before.pop("events")) :]
    assert (event.type, event.owner, event.conversation_id) == ("conversation.deleted", OWNER, conversation)
    assert event.data == {"messages": 4}
    assert after == before
    for address in (
        Address(id=conversation),
        Address(id=old.id),
        Address(id=begun.session.id),
        Address(id=begun.turn.id),
        Address(id=message_id(conversation, 1)),
        Address(id="outside name"),
        Address(key="cli:ada"),
    ):
        with pytest.raises(NotFound):
            await store.resolve(OWNER, address)
    for missing in (
        store.session(OWNER, old.id),
        store.turn(OWNER, begun.turn.id),
        store.line(OWNER, conversation),
        store.messages(OWNER, conversation),
        store.context(OWNER, begun.session.id),
    ):
        with pytest.raises(NotFound):
            await missing
    assert await store.turn_messages(begun.turn.id) == []
    assert await store.drafts(begun.turn.id) == []
    assert await store.search(None, CANARY) == []
    assert CANARY not in msgspec.json.encode(await all_events(store)).decode()
    again = await store.begin_turn(request(node, key="cli:ada", request_key=key))
    assert isinstance(again, TurnBegun)
    assert again.session.conversation_id != conversation


WRITINGS = ["append", "append_draft", "commit_reply", "settle_turn"]


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_running_turn_of_a_deleted_conversation_has_lost_its_lease(
    store: Store, node: Node, second_store: Store, writing: str
) -> None:
    begun = await begin(store, node)
    await store.append_draft(begun.lease, draft(0, "I was"))
    await second_store.delete_conversation(OWNER, begun.session.conversation_id)
    async with unchanged(store):
        with pytest.raises(LeaseLost):
            if writing == "append":
                await store.append(begun.lease, [to_message("late", "assistant")])
            elif writing == "append_draft":
                await store.append_draft(begun.lease, draft(1, "late"))
            elif writing == "commit_reply":
                await store.commit_reply(begun.lease, [to_message("late", "assistant")])
            else:
                await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
    assert (await store.beat(node.id)).leases == {}


async def test_any_id_that_names_a_conversation_deletes_all_of_it(store: Store, node: Node) -> None:
    old = await ended(store, node, "new", key="cli:ada")
    tip = (await say(store, node, key="cli:ada")).session
    assert await store.delete_conversation(OWNER, old.id) == 4
    for session in (old, tip):
        with pytest.raises(NotFound):
            await store.session(OWNER, session.id)


async def test_a_conversation_is_deleted_once_and_only_by_its_owner_or_an_operator(
    store: Store, node: Node
) -> None:
    first, second = (await say(store, node)).session, (await say(store, node)).session
    async with unchanged(store):
        with pytest.raises(NotFound):
            await store.delete_conversation(OTHER, first.conversation_id)
        with pytest.raises(NotFound):
            await store.delete_conversation(OWNER, new_id("conv"))
    await store.delete_conversation(OWNER, first.conversation_id)
    with pytest.raises(NotFound):
        await store.delete_conversation(OWNER, first.conversation_id)
    await store.delete_conversation(None, second.conversation_id)
    assert (await store.sessions(SessionFilter(owner=None))).items == []
