"""Contexts larger than one value of the database, and larger than any that is returned."""

import pytest

from holdfast.domain.context_size import weight_of
from holdfast.domain.contexts import Context
from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.errors import ContextTooLarge, NotFound
from holdfast.store import context
from holdfast.store.context_cache import ContextCache
from holdfast.store.store import Store
from tests.contract.conftest import Opener
from tests.contract.steps import OWNER, begin, calling, context_of, messages, result, say, to_message

SIZES = [10, 900, 20, 30, 400, 1_500, 5, 5, 700]


def words(size: int) -> str:
    return "x" * size


@pytest.mark.parametrize("span", [1, 100, 1_000, 2_000, 4_000, 100_000])
async def test_a_context_read_in_spans_is_the_same_byte_for_byte(
    store: Store, node: Node, open_another: Opener, monkeypatch: pytest.MonkeyPatch, span: int
) -> None:
    said = [to_message(words(size), "assistant") for size in SIZES]
    tools = [to_message(calling("a")), to_message(result("a"))]
    begun = await say(store, node, words(60), *said[:4], *tools, *said[4:])
    await store.exclude(OWNER, begun.session.conversation_id, [3], "in the way")
    await store.delete_message(OWNER, begun.session.conversation_id, 9)
    whole = (await (await open_another()).context(OWNER, begun.session.id)).json()
    monkeypatch.setattr(context, "SPAN_BYTES", span)
    found = await (await open_another()).context(OWNER, begun.session.id)
    assert found.json() == whole
    assert found.size == weight_of(found.chunks), "weighed by the reader, not on the event loop"


@pytest.mark.parametrize("span", [100, 100_000])
async def test_a_context_beyond_the_limit_is_refused_with_its_size_and_all_else_goes_on(
    store: Store, node: Node, open_another: Opener, monkeypatch: pytest.MonkeyPatch, span: int
) -> None:
    session = (await say(store, node, *(words(size) for size in SIZES), key="large")).session
    small = (await say(store, node, key="small")).session
    size = sum(len(message.body) for message in await messages(store, session.conversation_id))
    monkeypatch.setattr(context, "SPAN_BYTES", span)
    monkeypatch.setattr(context, "CONTEXT_BYTES", 2_000)
    other = await open_another()
    with pytest.raises(ContextTooLarge) as refused:
        await other.context(OWNER, session.id)
    assert (refused.value.size, refused.value.limit) == (size, 2_000)
    assert f"{size:,}" in str(refused.value) and "Compact" in str(refused.value)
    # Others do not notice, and the conversation itself can be read, written, exported and deleted.
    assert await context_of(other, small.id) == ["hello", "hi"]
    assert await context_of(store, small.id) == ["hello", "hi"]
    begun = await begin(other, node, words(10), key="large")
    await other.commit_reply(begun.lease, [to_message("noted", "assistant")])
    page = await other.messages(OWNER, session.conversation_id, first=3, limit=2)
    assert [message.seq for message in page.items] == [3, 4] and page.has_more
    assert len((await other.outline(OWNER, session.id)).entries) == len(SIZES) + 2
    records = await other.message_records(session.conversation_id, first=1, last=11)
    assert len(records) == len(SIZES) + 2
    await other.delete_conversation(OWNER, session.conversation_id)
    with pytest.raises(NotFound):
        await other.context(OWNER, session.id)


async def test_what_is_added_to_a_cached_context_counts_with_it(
    store: Store, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await say(store, node, words(600), words(600), key="k")).session
    await store.context(OWNER, session.id)
    monkeypatch.setattr(context, "CONTEXT_BYTES", 2_000)
    assert await context_of(store, session.id) == [words(600)] * 2
    await say(store, node, to_message(calling("a")), to_message(result("a", words(900))), key="k")
    with pytest.raises(ContextTooLarge) as refused:
        await store.context(OWNER, session.id)
    assert refused.value.size > 2_000
    place = await store.resolve(OWNER, Address(key="k"))
    await store.exclude(OWNER, place.conversation.id, [1], "too long")
    assert len(await context_of(store, session.id)) == 3


async def test_a_large_context_does_not_evict_those_of_others(store: Store, node: Node) -> None:
    cache = ContextCache(limit=1_000)
    cache.put("small", 1, Context((b"x" * 500,), 1))
    cache.put("large", 1, Context((b"x" * 5_000,), 1))
    assert cache.get("small", 1) is not None and cache.get("large", 1) is None
