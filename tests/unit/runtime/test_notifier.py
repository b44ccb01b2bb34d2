"""Notices on their way to a real webhook that is down, broken, slow, and then well again: once or more, never
not at all."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from holdfast.app import Holdfast
from holdfast.domain.conversations import Address
from holdfast.domain.notices import Notice
from holdfast.runtime.agents.notifier import BATCH, CLAIMED_FOR, FIRST_PAUSE, Notifier
from holdfast.server.objects import notice as notice_object
from holdfast.settings import load
from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store
from tests.contract.steps import Clock, new_node

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Hook:
    """A webhook: what it got, by the key, and how it answers."""

    url: str = ""
    got: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    status: int = 200
    slow: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.got.append((request.headers["idempotency-key"], json.loads(await request.text())))
        self.heard.set()
        await asyncio.sleep(self.slow)
        return web.Response(status=self.status, headers=self.headers)

    @property
    def counts(self) -> Counter[str]:
        return Counter(key for key, _ in self.got)


@asynccontextmanager
async def listening(hook: Hook, port: int = 0) -> AsyncIterator[int]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", hook.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    number: int = runner.addresses[0][1]
    hook.url = f"http://127.0.0.1:{number}/hook?token=secret"
    try:
        yield number
    finally:
        await runner.cleanup()


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    store = await open_store(tmp_path / "store.db", clock=clock)
    yield store
    assert await store.check() == []
    await store.close()


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    hook = Hook()
    async with listening(hook):
        yield hook


async def make(store: Store, number: int, owner: str = "ada") -> list[Notice]:
    node = await new_node(store)
    session = await store.open_session(owner, Address(key="telegram:dm:42"), node.id)
    return [
        await store.add_notice(owner, session.conversation_id, "reset", f"number {each}")
        for each in range(number)
    ]


@asynccontextmanager
async def notifying(store: Store, hook: Hook, **options: Any) -> AsyncIterator[Notifier]:
    notifier = Notifier(store, hook.url, **options)
    yield notifier
    await notifier.stop()


async def test_each_notice_is_sent_once_as_its_object_with_its_id_as_key(store: Store, hook: Hook) -> None:
    made = await make(store, 3)
    async with notifying(store, hook) as notifier:
        assert (await notifier.notify_once()).sent == [each.id for each in made]
        assert (await notifier.notify_once()).sent == []
    shown = [msgspec.to_builtins(notice_object(each, with_owner=True)) for each in made]
    assert hook.got == [(each.id, notice) for each, notice in zip(made, shown, strict=True)]
    left = (await store.notices("ada", undelivered=True)).items
    assert [each.id for each in left] == [each.id for each in made], "sending is not delivering"
    assert all(each.sent_at is not None for each in left)


@pytest.mark.parametrize("status", [500, 503, 400, 404, 301, 307])
async def test_what_is_not_accepted_is_sent_again_later_each_time(
    store: Store, hook: Hook, clock: Clock, status: int
) -> None:
    (notice,) = await make(store, 1)
    hook.status, hook.headers = status, {"location": "/elsewhere"}
    async with notifying(store, hook) as notifier:
        for pause in (FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE):
            assert list((await notifier.notify_once()).unsent) == [notice.id]
            clock.now += pause - timedelta(seconds=1)
            assert not (await notifier.notify_once()).unsent, "it is left alone for a while"
            clock.now += timedelta(seconds=1)
        hook.status = 204
        assert (await notifier.notify_once()).sent == [notice.id]
    assert hook.counts == {notice.id: 4}, "no redirect is followed"


async def test_down_then_broken_then_slow_then_well_and_every_notice_has_come(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hook = Hook()
    async with listening(hook) as port:
        pass  # the port is known, and nobody listens
    made = {notice.id for notice in await make(store, 30)}
    async with notifying(store, hook, timeout_seconds=0.2) as notifier:

        async def some_passes(number: int) -> None:
            for _ in range(number):
                await notifier.notify_once()
                clock.move(hours=1)

        await some_passes(3)
        async with listening(hook, port):
            hook.status = 500
            await some_passes(3)
            hook.status, hook.slow = 200, 0.5
            await some_passes(2)
            hook.got.clear()
            hook.slow = 0
            await some_passes(6)
    assert set(hook.counts) == made
    assert max(hook.counts.values()) == 1
    told = [record.getMessage() for record in caplog.records if "accept" in record.getMessage()]
    assert len(told) == 2 and "does not accept" in told[0] and "again" in told[1]
    assert "secret" not in " ".join(told)


async def test_an_endpoint_that_is_down_is_not_asked_for_every_notice_that_waits(
    store: Store, hook: Hook
) -> None:
    await make(store, BATCH)
    hook.status = 503
    async with notifying(store, hook) as notifier:
        await notifier.notify_once()
    assert len(hook.got) <= 4


async def test_two_nodes_send_each_notice_once(
    store: Store, hook: Hook, tmp_path: Path, clock: Clock
) -> None:
    made = await make(store, 50)
    second = await open_store(tmp_path / "store.db", clock=clock)
    async with notifying(store, hook) as one, notifying(second, hook) as other:
        for _ in range(4):
            await asyncio.gather(one.notify_once(), other.notify_once())
    await second.close()
    assert hook.counts == {each.id: 1 for each in made}


async def test_a_node_that_dies_with_its_claim_is_followed_by_another(
    store: Store, hook: Hook, clock: Clock
) -> None:
    made = await make(store, 2)
    await store.claim_notices(10, CLAIMED_FOR, timedelta(days=7))  # and then it was killed
    async with notifying(store, hook) as notifier:
        assert (await notifier.notify_once()).sent == []
        clock.now += CLAIMED_FOR
        assert (await notifier.notify_once()).sent == [each.id for each in made]


async def test_what_is_older_than_a_week_is_not_sent_and_what_was_tried_in_vain_is_told(
    store: Store, hook: Hook, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await make(store, 3)  # long before anybody thought of a webhook
    clock.now += timedelta(days=8)
    (fresh,) = await make(store, 1, owner="bob")
    async with notifying(store, hook) as notifier:
        assert (await notifier.notify_once()).sent == [fresh.id]
        assert "given up" not in caplog.text
        (late,) = await make(store, 1, owner="eve")
        hook.status = 500
        await notifier.notify_once()
        clock.now += timedelta(days=8)
        hook.status = 200
        assert (await notifier.notify_once()).sent == []
    assert "1 notices were not accepted for a week and are given up" in caplog.text
    assert hook.counts == {fresh.id: 1, late.id: 1}


async def test_a_node_with_a_webhook_sends_by_itself_and_a_dead_one_delays_nothing(tmp_path: Path) -> None:
    hook = Hook()
    async with listening(hook) as port:
        pass
    given = {
        "store": {"url": f"sqlite:///{tmp_path / 'store.db'}"},
        "notify": {"webhook": hook.url},
        "lease": {"sweep_seconds": 0.05},
    }
    settings = load(environment={"HOLDFAST_HOME": str(tmp_path)}, given=given)
    async with Holdfast(settings, catch_signals=False) as hf:
        assert hf.notifier is not None
        hf.notifier._first_pause = timedelta(milliseconds=50)
        session = await hf.session(key="cli:ada")
        notice = await hf.store.add_notice("default", session.conversation_id, "reset", "x")
        await asyncio.sleep(0.3)
        async with session.turn("hello") as turn:
            await turn.append("hi")
        async with listening(hook, port):
            await asyncio.wait_for(hook.heard.wait(), 60)
    assert hook.counts == {notice.id: 1}


async def test_without_a_webhook_nothing_is_sent(tmp_path: Path) -> None:
    given = {"store": {"url": f"sqlite:///{tmp_path / 'store.db'}"}}
    settings = load(environment={"HOLDFAST_HOME": str(tmp_path)}, given=given)
    async with Holdfast(settings, catch_signals=False) as hf:
        assert hf.notifier is None
