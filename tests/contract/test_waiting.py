"""Detecting commits, of this process or another."""

import asyncio

import pytest

from holdfast.domain.nodes import Node
from holdfast.errors import HoldfastError
from holdfast.store.store import Store
from tests.contract.steps import begin, request, say


async def test_the_version_stands_while_nothing_is_written(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    version = store.version()
    await store.context(None, session.id)
    with pytest.raises(HoldfastError):
        await store.begin_turn(request(node, id="sess_unknown"))
    assert store.version() == version
    assert not await store.changed(version, 0)
    assert not await store.changed(version, 0.05)


async def test_the_version_moves_with_every_write_here_or_elsewhere(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for here, who, elsewhere in [(store, node, second_store), (second_store, second_node, store)] * 2:
        versions = here.version(), elsewhere.version()
        await say(here, who)
        assert here.version() != versions[0]
        assert await elsewhere.changed(versions[1], 5)
        assert elsewhere.version() != versions[1]


async def test_what_was_written_before_waiting_is_not_waited_for(
    store: Store, node: Node, second_store: Store
) -> None:
    since, own = second_store.version(), store.version()
    await say(store, node)
    assert await store.changed(own, 0)
    assert await second_store.changed(since, 5)
    assert await second_store.changed(since, 0)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_waiter_wakes_soon_after_a_write(
    store: Store, node: Node, second_store: Store, where: str
) -> None:
    waiting = store if where == "here" else second_store
    since = waiting.version()
    waiters = [asyncio.create_task(waiting.changed(since, 300)) for _ in range(5)]
    await asyncio.sleep(0)
    await begin(store, node)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*waiters) == [True] * 5


async def test_a_waiter_that_gives_up_leaves_the_others_waiting(store: Store, node: Node) -> None:
    since = store.version()
    impatient = asyncio.create_task(store.changed(since, 30))
    patient = asyncio.create_task(store.changed(since, 30))
    await asyncio.sleep(0)
    impatient.cancel()
    await say(store, node)
    assert await patient
    with pytest.raises(asyncio.CancelledError):
        await impatient
