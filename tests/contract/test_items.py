"""Items: JSON values by space, namespace and name, with an optional time to live."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.items import Item, PutItem
from holdfast.domain.nodes import Node
from holdfast.domain.session_messages import Named
from holdfast.errors import BadInput, Conflict, NotFound
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, Clock, to_message

SPACE = "test"


def put(namespace: str, name: str, value: str | None, **more: object) -> PutItem:
    return PutItem(SPACE, namespace, name, value, **more)  # type: ignore[arg-type]


async def names(store: Store, prefix: str) -> list[tuple[str, str]]:
    return [(item.namespace, item.name) for item in await store.items_under(OWNER, SPACE, prefix)]


async def test_an_item_is_put_read_replaced_and_deleted(store: Store, clock: Clock) -> None:
    await store.put_items(OWNER, [put("a.b", "x", '{"n":1}')])
    first = await store.item(OWNER, SPACE, "a.b", "x")
    clock.move(seconds=5)
    await store.put_items(OWNER, [put("a.b", "x", '{"n":2}')])
    second = await store.item(OWNER, SPACE, "a.b", "x")
    assert first is not None and second is not None
    assert (first.decoded(), second.decoded()) == ({"n": 1}, {"n": 2})
    assert second.created_at == first.created_at
    assert second.updated_at - first.updated_at == timedelta(seconds=5)
    for other in ((OTHER, SPACE, "a.b"), (OWNER, "else", "a.b"), (OWNER, SPACE, "a")):
        assert await store.item(*other, "x") is None
    await store.put_items(OWNER, [put("a.b", "x", None), put("a.b", "unknown", None)])
    assert await store.item(OWNER, SPACE, "a.b", "x") is None


async def test_a_prefix_finds_its_namespace_and_those_below(store: Store, clock: Clock) -> None:
    for namespace in ("a", "a.b", "a.b.c", "a-b", "ab", "b"):
        await store.put_items(OWNER, [put(namespace, "x", "1")])
        clock.move(seconds=1)
    assert await names(store, "a") == [("a.b.c", "x"), ("a.b", "x"), ("a", "x")]
    assert await names(store, "a.b") == [("a.b.c", "x"), ("a.b", "x")]
    assert len(await names(store, "")) == 6
    assert await store.item_namespaces(OWNER, SPACE) == ["a", "a-b", "a.b", "a.b.c", "ab", "b"]


async def test_an_expired_item_is_gone_unless_refreshed(store: Store, clock: Clock) -> None:
    ttl = timedelta(minutes=1)
    changes = [put("a", "x", "1", ttl=ttl), put("a", "y", "2", ttl=ttl), put("a", "z", "3")]
    await store.put_items(OWNER, changes)
    clock.move(seconds=40)
    await store.refresh_items(OWNER, SPACE, [("a", "x"), ("a", "z"), ("a", "unknown")])
    clock.move(seconds=40)
    assert await store.item(OWNER, SPACE, "a", "y") is None
    assert sorted(name for _, name in await names(store, "a")) == ["x", "z"]
    assert await store.drop_expired_items(10) == 1
    assert await store.drop_expired_items(10) == 0


async def test_an_item_of_a_conversation_goes_with_it(store: Store, node: Node) -> None:
    session = await store.open_session(OWNER, Address(key="k"), node.id)
    change = put("a", "x", "1", conversation_id=session.conversation_id)
    with pytest.raises(NotFound):
        await store.put_items(OTHER, [change])
    await store.put_items(OWNER, [change])
    await store.delete_conversation(OWNER, session.conversation_id)
    assert await store.item(OWNER, SPACE, "a", "x") is None


async def test_changes_are_made_all_or_none(store: Store) -> None:
    with pytest.raises(BadInput):
        await store.put_items(OWNER, [put("a", "x", "1"), put("a", "", "2")])
    assert await names(store, "a") == []


async def test_of_several_that_create_one_item_at_once_one_does(
    store: Store, second_store: Store, node: Node
) -> None:
    session = await store.open_session(OWNER, Address(key="k"), node.id)

    async def create(where: Store, number: int) -> int | None:
        own = put("a", "x", str(number), conversation_id=session.conversation_id)
        beside = put("b", str(number), "1")
        try:
            await where.put_items(OWNER, [own, beside], absent=(SPACE, "a", "x"))
        except Conflict:
            return None
        return number

    made = await asyncio.gather(*(create(store if n % 2 else second_store, n) for n in range(10)))
    (number,) = [each for each in made if each is not None]
    found = await store.item(OWNER, SPACE, "a", "x")
    assert found is not None and found.decoded() == number
    assert await names(store, "b") == [("b", str(number))]


async def test_items_change_with_the_messages_that_are_new(
    store: Store, second_store: Store, node: Node
) -> None:
    session = await store.open_session(OWNER, Address(key="k"), node.id)
    conversation = session.conversation_id

    def counted(found: Sequence[Item | None]) -> list[PutItem]:
        before = found[0].decoded() if found[0] is not None else 0
        return [put("a", "count", str(before + 1), conversation_id=conversation)]

    async def append(where: Store, name: str) -> int:
        named = [Named(to_message(name), name)]
        return await where.append_with_items(
            OWNER, conversation, node.id, named, [(SPACE, "a", "count")], counted
        )

    numbers = await asyncio.gather(*(append(store if i % 2 else second_store, str(i)) for i in range(10)))
    assert sum(numbers) == 10
    assert await append(store, "3") == 0, "known: nothing changes"
    found = await store.item(OWNER, SPACE, "a", "count")
    assert found is not None and found.decoded() == 10
    with pytest.raises(NotFound):
        await store.append_with_items(OTHER, conversation, node.id, [Named(to_message("x"))], [], counted)
