"""The webhook that knows what became of an open call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest
from aiohttp import web

from holdfast.runtime.tools.open_calls import ReconcileWebhook
from holdfast.runtime.tools.toolbox import ToolCall

CALL = ToolCall("c", "terminal", "{}", "ada", "conv_1", "sess_1", "turn_1", "turn_1.2.0", frozenset())


@asynccontextmanager
async def serving(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The address of a webhook that answers so."""
    app = web.Application()
    app.router.add_post("/hook", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "known"),
    [
        (200, b'{"result": "it was paid"}', "it was paid"),
        (200, b"{}", None),
        (200, b"not JSON", None),
        (200, b'{"result": 7}', None),
        (200, b"", None),
        (204, b"", None),
        (404, b'{"result": "no"}', None),
        (500, b"", None),
    ],
)
async def test_it_gets_the_call_and_answers_with_its_result(
    status: int, body: bytes, known: str | None
) -> None:
    got: list[tuple[str | None, object]] = []

    async def handle(request: web.Request) -> web.Response:
        got.append((request.headers.get("Idempotency-Key"), msgspec.json.decode(await request.read())))
        return web.Response(status=status, body=body)

    async with serving(handle) as url:
        assert await ReconcileWebhook(url)(CALL) == known
    ((key, asked),) = got
    assert key == "turn_1.2.0"
    assert isinstance(asked, dict)
    assert (asked["id"], asked["name"], asked["turn_id"]) == ("turn_1.2.0", "terminal", "turn_1")
    assert await ReconcileWebhook(url)(CALL) is None


async def test_an_answer_may_arrive_in_pieces() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b'{"result": ', b'"it was ', b'paid"}'):
            await response.write(piece)
            await asyncio.sleep(0.05)
        return response

    async with serving(handle) as url:
        assert await ReconcileWebhook(url)(CALL) == "it was paid"


async def test_calls_of_several_turns_are_asked_for_at_the_same_time() -> None:
    first_is_answered, both_ask = asyncio.Event(), asyncio.Barrier(2)

    async def handle(request: web.Request) -> web.Response:
        key = request.headers["Idempotency-Key"]
        await both_ask.wait()
        if key != "first":
            await first_is_answered.wait()
        return web.Response(body=msgspec.json.encode({"result": key}))

    async with serving(handle) as url, asyncio.timeout(60):
        hook = ReconcileWebhook(url)
        second = asyncio.create_task(hook(replace(CALL, key="second")))
        assert await hook(replace(CALL, key="first")) == "first"
        first_is_answered.set()
        assert await second == "second"
