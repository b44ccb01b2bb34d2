"""Quotas: no new data beyond them, and nothing else is ever blocked by them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.domain.checkpoints import CheckpointWrite, NewCheckpoint
from holdfast.domain.conversations import Address
from holdfast.domain.items import PutItem
from holdfast.domain.memories import MemoryOrigin
from holdfast.domain.messages import NewMessage, size_of
from holdfast.domain.new_messages import new_message
from holdfast.domain.nodes import Node
from holdfast.domain.quotas import Quotas
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.session_messages import Named
from holdfast.domain.turns import TurnFailure, TurnStatus
from holdfast.errors import QuotaExceeded
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    begin,
    calling,
    contents,
    draft,
    limit,
    request,
    result,
    say,
    to_message,
    unchanged,
)

LARGE = "kelp " * 200


def size(*said: Any) -> int:
    return size_of(to_message(each) for each in said)


async def held(store: Store, owner: str = OWNER) -> int:
    (usage,) = await store.usage(owner)
    return usage.bytes


async def refused(store: Store, work: Awaitable[Any], setting: str) -> QuotaExceeded:
    async with unchanged(store):
        with pytest.raises(QuotaExceeded) as refusal:
            await work
    assert refusal.value.setting == setting
    assert f"[limits] {setting}" in str(refusal.value)
    return refusal.value


async def test_a_conversation_knows_its_bytes_whatever_is_done_to_it(store: Store, node: Node) -> None:
    """After each step `store.check` would find a size that is not the sum of the messages."""

    async def is_true() -> None:
        assert await store.check() == []

    begun = await begin(store, node, "ebb", calling("a"), result("a"), key="k")
    await is_true()
    await store.append(begun.lease, [to_message("flow", "assistant"), to_message("and", "assistant")])
    await store.append_draft(begun.lease, draft(0, "half a repl"))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    await is_true()
    await say(store, node, "again", "and again", key="k")
    conversation = begun.session.conversation_id
    added = new_message(
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    )
    seq = await store.add_messages(OWNER, conversation, node.id, [added])
    await is_true()
    rest = new_message({"role": "user", "content": [{"type": "text", "text": "a"}]})
    await store.reduce_message(OWNER, conversation, seq, rest)
    await is_true()
    before = await held(store)
    await store.delete_message(OWNER, conversation, 1)
    assert await held(store) == before - size("ebb")
    await is_true()
    forked = await store.fork(OWNER, (await store.resolve(OWNER, Address(key="k"))).tip.id, node.id)
    await is_true()
    made = await store.create_conversation(OWNER, node.id, messages=[to_message("one"), to_message("two")])
    await is_true()
    for conversation_id in (conversation, forked.conversation_id):
        await store.delete_conversation(OWNER, conversation_id)
    assert await held(store) == size("one", "two")
    await store.delete_conversation(OWNER, made.id)
    assert await store.usage(OWNER) == []


async def test_a_full_conversation_takes_no_further_turn_and_no_item(store: Store, node: Node) -> None:
    session = (await say(store, node, LARGE, key="k")).session
    limit(store, Quotas(conversation_bytes=await held(store) + size("hello") - 1))
    refusal = await refused(store, store.begin_turn(request(node, "hello", key="k")), "conversation_mb")
    assert (refusal.used, refusal.limit) == (await held(store), await held(store) + size("hello") - 1)
    assert session.conversation_id in str(refusal)
    items = [to_message("hello")]
    await refused(
        store, store.add_messages(OWNER, session.conversation_id, node.id, items), "conversation_mb"
    )
    await refused(store, store.begin_turn(request(node, LARGE * 2)), "conversation_mb")
    await refused(
        store, store.create_conversation(OWNER, node.id, messages=[to_message(LARGE * 2)]), "conversation_mb"
    )
    await say(store, node, "hello")  # elsewhere there is room


async def test_a_limit_may_be_reached_exactly(store: Store, node: Node) -> None:
    await say(store, node, LARGE, key="k")
    limit(store, Quotas(conversation_bytes=await held(store) + size("hello")))
    await begin(store, node, "hello", key="k")


async def test_a_reply_that_has_begun_is_committed_whatever_its_size(store: Store, node: Node) -> None:
    begun = await begin(store, node, "hello", key="k")
    limit(store, Quotas(conversation_bytes=10, owner_bytes=10, owner_conversations=1))
    await store.append(begun.lease, [to_message(calling("a")), to_message(result("a", LARGE))])
    await store.append_draft(begun.lease, draft(0, LARGE))
    await store.commit_reply(begun.lease, [to_message(LARGE, "assistant")])
    assert (await contents(store, begun.session.conversation_id))[-1] == LARGE


async def test_a_turn_that_was_cut_short_is_kept_and_taken_up_whatever_its_size(
    store: Store, node: Node
) -> None:
    key = RequestKey("/v1/chat/completions", "once", b"body")
    begun = await begin(store, node, "hello", key="k", request_key=key)
    limit(store, Quotas(conversation_bytes=10, owner_bytes=10))
    await store.append_draft(begun.lease, draft(0, LARGE))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED))
    assert (await contents(store, begun.session.conversation_id))[-1] == LARGE
    again = await begin(store, node, "hello", key="k", request_key=key)
    assert again.taken_up
    await store.commit_reply(again.lease, [to_message(LARGE, "assistant")])


async def test_what_is_full_can_be_read_searched_ended_and_deleted(store: Store, node: Node) -> None:
    session = (await say(store, node, LARGE, "kelp noted", key="k")).session
    limit(store, Quotas(conversation_bytes=10, owner_bytes=10, owner_conversations=1))
    assert len((await store.messages(OWNER, session.conversation_id)).items) == 2
    assert (await store.context(OWNER, session.id)).messages()
    assert len(await store.search(OWNER, "kelp")) == 2
    await store.set_title(OWNER, session.conversation_id, "Full")
    assert await store.end_session(OWNER, session.id, "closed")
    resumed = await store.resume_session(OWNER, session.id, node.id)
    assert resumed.conversation_id == session.conversation_id
    await store.delete_message(OWNER, session.conversation_id, 1)
    await store.delete_conversation(OWNER, session.conversation_id)


async def test_deleting_makes_room(store: Store, node: Node) -> None:
    session = (await say(store, node, LARGE, key="k")).session
    limit(store, Quotas(conversation_bytes=size(LARGE), owner_bytes=size(LARGE), owner_conversations=1))
    await refused(store, store.begin_turn(request(node, "hello", key="k")), "conversation_mb")
    await store.delete_message(OWNER, session.conversation_id, 1)
    await say(store, node, "hello", key="k")
    await refused(store, store.begin_turn(request(node, "hello")), "owner_conversations")
    await store.delete_conversation(OWNER, session.conversation_id)
    await say(store, node, "hello")


async def test_an_owner_has_so_many_bytes_over_all_conversations(store: Store, node: Node) -> None:
    session = (await say(store, node, LARGE, key="one")).session
    await say(store, node, LARGE, key="two")
    await say(store, node, LARGE * 5, key="one", owner=OTHER)
    limit(store, Quotas(owner_bytes=await held(store)))
    adds: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.begin_turn(request(node, "hello", key="one")),
        lambda: store.begin_turn(request(node, "hello", key="three")),
        lambda: store.add_messages(OWNER, session.conversation_id, node.id, [to_message("hello")]),
        lambda: store.create_conversation(OWNER, node.id, messages=[to_message("hello")]),
        lambda: store.fork(OWNER, session.id, node.id),
    ]
    for add in adds:
        refusal = await refused(store, add(), "owner_mb")
        assert refusal.used == refusal.limit == await held(store)
    limit(store, Quotas(owner_bytes=await held(store) + size("hello")))
    await begin(store, node, "hello", key="one")


async def test_an_owner_has_so_many_conversations(store: Store, node: Node) -> None:
    session = (await say(store, node, "hello", key="one")).session
    await say(store, node, "hello", key="two")
    await say(store, node, "hello", owner=OTHER)
    limit(store, Quotas(owner_conversations=2))
    for add in (
        lambda: store.begin_turn(request(node, "hello", key="three")),
        lambda: store.create_conversation(OWNER, node.id),
        lambda: store.open_session(OWNER, Address(key="three"), node.id),
        lambda: store.fork(OWNER, session.id, node.id),
    ):
        refusal = await refused(store, add(), "owner_conversations")
        assert (refusal.used, refusal.limit) == (2, 2)
    await say(store, node, "hello", key="one")
    await say(store, node, "hello", owner=OTHER)


async def test_two_nodes_that_speak_at_once_do_not_pass_a_conversations_limit(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = (await say(store, node, "hello", key="k")).session
    room = 5
    for each in (store, second_store):
        limit(each, Quotas(conversation_bytes=await held(store) + room * size(LARGE)))

    async def add(by: Store, who: Node) -> int:
        try:
            return await by.add_messages(OWNER, session.conversation_id, who.id, [to_message(LARGE)])
        except QuotaExceeded:
            return 0

    done = await asyncio.gather(
        *(add(store, node) for _ in range(room)), *(add(second_store, second_node) for _ in range(room))
    )
    assert sum(seq > 0 for seq in done) == room


async def test_usage_names_owners_with_the_most_first(store: Store, node: Node) -> None:
    assert await store.usage(None) == []
    await say(store, node, "hello", "hi")
    await say(store, node, LARGE, "hi", owner=OTHER)
    await say(store, node, "hello", "hi", owner=OTHER)
    found = [(each.owner, each.conversations, each.bytes) for each in await store.usage(None)]
    hi = size(NewMessage("assistant", to_message("hi", "assistant").body))
    assert found == [(OTHER, 2, size(LARGE, "hello") + 2 * hi), (OWNER, 1, size("hello") + hi)]
    assert [each.owner for each in await store.usage(None, limit=1)] == [OTHER]
    assert [each.owner for each in await store.usage(OWNER)] == [OWNER]


def step(number: int, body: bytes = b"state") -> NewCheckpoint:
    return NewCheckpoint("", f"{number}", None, None, "json", "{}", body)


async def test_what_tasks_of_a_graph_write_counts(store: Store, node: Node) -> None:
    async def put(key: str, ordinal: int, body: bytes, *, replaces: bool = False) -> None:
        write = CheckpointWrite("task", ordinal, "channel", "", "json", body, replaces)
        await store.put_checkpoint_writes(OWNER, key, "langgraph", "", "1", [write])

    async def is_held(number: int) -> None:
        assert await held(store) == number
        assert await store.check() == []

    await store.put_checkpoint(OWNER, "k", "langgraph", node.id, step(1), [])
    await put("k", 0, b"first")
    await put("k", 0, b"again, and longer")  # the first counts
    await is_held(len(b"state") + len(b"first"))
    await put("k", -1, b"error", replaces=True)
    await put("k", -1, b"another error", replaces=True)
    await is_held(len(b"state") + len(b"first") + len(b"another error"))
    limit(store, Quotas(conversation_bytes=await held(store) + 5))
    await refused(store, put("k", 1, b"123456"), "conversation_mb")
    await refused(store, put("new", 1, bytes(1000)), "conversation_mb")
    await put("k", 1, b"12345")
    limit(store, Quotas(owner_bytes=await held(store)))
    await refused(store, put("k", 2, b"1"), "owner_mb")
    await put("k", 1, b"12345")  # stored already
    assert await store.checkpoint(OWNER, "k", "", None) is not None
    await store.delete_checkpoints(OWNER, "k", [("", "1")])
    await is_held(0)


async def test_a_replaced_checkpoint_and_a_copy_are_counted(store: Store, node: Node) -> None:
    await store.put_checkpoint(OWNER, "k", "langgraph", node.id, step(1), [])
    await store.put_checkpoint(OWNER, "k", "langgraph", node.id, step(1, b"longer state"), [])
    write = CheckpointWrite("task", 0, "channel", "", "json", b"done")
    await store.put_checkpoint_writes(OWNER, "k", "langgraph", "", "1", [write])
    assert await held(store) == len(b"longer state") + len(b"done")
    await store.copy_checkpoints(OWNER, "k", "copy", node.id)
    assert await held(store) == 2 * (len(b"longer state") + len(b"done"))
    assert await store.check() == []


async def test_items_count_for_their_conversation_and_their_owner(store: Store, node: Node) -> None:
    session = (await say(store, node, "hello", key="k")).session
    before = await held(store)
    conversation = session.conversation_id

    async def put(name: str, value: str | None, conversation_id: str | None = None) -> None:
        await store.put_items(OWNER, [PutItem("space", "", name, value, conversation_id=conversation_id)])

    async def is_held(number: int) -> None:
        assert await held(store) == before + number
        assert await store.check() == []

    await put("own", '"é"', conversation)
    await is_held(4)
    await put("own", '"longer"', conversation)
    await put("free", '"1234"')
    await is_held(8 + 6)
    await put("own", '"longer"')  # no longer the conversation's
    await put("own", '"longer"', conversation)
    await is_held(8 + 6)
    await store.update_state(OWNER, conversation, {"name": "value"})
    await is_held(8 + 6 + len('{"name":"value"}'))
    await put("free", None)
    limit(store, Quotas(conversation_bytes=await held(store) + 3, owner_bytes=await held(store) + 5))
    await refused(store, put("own", '"longer 1234"', conversation), "conversation_mb")
    await refused(store, put("free", '"12345"'), "owner_mb")
    await put("own", '"longer123"', conversation)
    await put("free", '""')
    await put("own", '"short"', conversation)
    limit(store, Quotas(conversation_bytes=1, owner_bytes=1))
    assert await store.item(OWNER, "space", "", "own") is not None
    await put("own", '"less"', conversation)
    await put("own", None, conversation)
    await put("free", None)
    await store.delete_conversation(OWNER, conversation)


async def test_an_event_whose_state_does_not_fit_is_not_stored(store: Store, node: Node) -> None:
    session = (await say(store, node, "hello", key="k")).session
    conversation = session.conversation_id
    place = ("space", "", "state")

    async def append(value: str) -> int:
        return await store.append_with_items(
            OWNER,
            conversation,
            node.id,
            [Named(to_message("event"))],
            [place],
            lambda _: [PutItem(*place, value, conversation_id=conversation)],
        )

    limit(store, Quotas(conversation_bytes=await held(store) + size("event") + 4))
    await refused(store, append('"123"'), "conversation_mb")
    assert await append('"12"') == 1
    assert await store.check() == []


async def test_memories_of_a_person_count_for_the_conversation_they_are_added_to(
    store: Store, node: Node
) -> None:
    where = (await say(store, node)).session.conversation_id
    limit(store, Quotas(conversation_bytes=await held(store) + 2_000))
    await store.remember(OWNER, where, "x" * 1_500)
    await refused(store, store.remember(OWNER, where, "ü" * 300), "conversation_mb")
    await store.remember(OWNER, where, "noted by the model", origin=MemoryOrigin.TOOL)
    (memory, _) = (await store.memories(OWNER)).items[::-1]
    await store.forget_memory(OWNER, memory.id)
    await store.remember(OWNER, where, "ü" * 300)
    limit(store, Quotas(owner_bytes=await held(store)))
    await refused(store, store.remember(OWNER, where, "x"), "owner_mb")
    assert await store.check() == []
