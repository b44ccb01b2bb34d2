"""A process that may be stopped by Ctrl-Z is inside no transaction: others go on writing."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from holdfast.domain.conversations import Address
from holdfast.store.store import Store

from .steps import OWNER, new_node, say


async def test_while_a_store_is_paused_it_writes_nothing_and_others_do(
    store: Store, second_store: Store
) -> None:
    node, other = await new_node(store), await new_node(second_store)
    await say(store, node, "hello", key="a")
    here = Address(key="a")
    conversation = (await store.resolve(OWNER, here)).conversation.id
    with store.paused(60):
        titled = asyncio.create_task(store.set_title(OWNER, conversation, "held back"))
        await say(second_store, other, "from elsewhere", key="b")
        assert not titled.done()
    await titled
    assert (await store.resolve(OWNER, here)).conversation.title == "held back"


async def test_a_pause_waits_for_the_transaction_under_way_but_not_for_ever(store: Store) -> None:
    inside, may_end = threading.Event(), threading.Event()

    def slow(_tx: Any) -> None:
        inside.set()
        may_end.wait(60)

    writing = asyncio.create_task(store._write(slow))
    assert await asyncio.to_thread(inside.wait, 60)
    started = time.monotonic()
    with store.paused(0.2):  # it cannot be had
        assert time.monotonic() - started >= 0.2
    paused = asyncio.create_task(asyncio.to_thread(_pause, store))
    assert not paused.done()
    may_end.set()
    await writing
    await paused


def _pause(store: Store) -> None:
    with store.paused(60):
        pass
