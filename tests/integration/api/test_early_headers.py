"""A stream's headers and first event go out when the model's status is known, not at its first word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from holdfast.models.upstream import Upstream
from holdfast.server import streams
from holdfast.server.openai import stateless
from tests.integration.api.chatting import user
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.responding import events_of

WORD = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
)
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
REFUSAL = b'data: {"error":{"message":"too long","code":"context_length_exceeded","status":400}}\n\n'
PATIENCE = 60.0


class Thinker:
    """An upstream that answers its headers at once, and its first word when it is let go."""

    def __init__(self) -> None:
        self.think = asyncio.Event()
        self.headers = asyncio.Event()
        self.headers.set()
        self.status = 200
        self.body = WORD + END
        self.url = ""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        await self.headers.wait()
        if self.status != 200:
            return web.json_response({"error": {"message": "no such model"}}, status=self.status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await self.think.wait()
        await response.write(self.body)
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny"}]})


@pytest.fixture
async def thinker() -> AsyncIterator[Thinker]:
    thinker = Thinker()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", thinker.complete)
    app.router.add_get("/v1/models", thinker.models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    thinker.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield thinker
    thinker.think.set()
    thinker.headers.set()
    await runner.cleanup()


@pytest.fixture
async def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the model's status may let a test go on."""
    for module in (streams, stateless):
        monkeypatch.setattr(module, "HEADERS_SECONDS", 3600.0)


@pytest.fixture
async def server(start_server: StartServer, thinker: Thinker) -> AsyncIterator[Running]:
    model = Upstream(thinker.url)
    yield await start_server(model)
    await model.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("store", [True, False])
async def test_a_response_is_named_while_the_model_thinks(
    server: Running, thinker: Thinker, store: bool
) -> None:
    body = {"input": "hi", "stream": True, "store": store}
    async with asyncio.timeout(PATIENCE), server.client.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200
        events = aiter(events_of(answer))
        created = await anext(events)
        assert created["type"] == "response.created"
        response_id = created["response"]["id"]
        if store:
            assert (await server.client.get(f"/v1/responses/{response_id}")).json()["status"] == "in_progress"
        thinker.think.set()
        rest = [event async for event in events]
    assert rest[-1]["type"] == "response.completed"
    assert rest[-1]["response"]["id"] == response_id


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("store", [True, False])
async def test_the_headers_of_a_chat_stream_come_while_the_model_thinks(
    server: Running, thinker: Thinker, store: bool
) -> None:
    body = {"messages": [user("hi")], "stream": True, "store": store}
    async with (
        asyncio.timeout(PATIENCE),
        server.client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        assert ("x-holdfast-session-id" in answer.headers) is store
        thinker.think.set()
        assert b'"content":"hi"' in await answer.aread()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
@pytest.mark.parametrize("store", [True, False])
async def test_a_refusal_is_still_the_status_of_the_request(
    server: Running, thinker: Thinker, path: str, store: bool
) -> None:
    """Headers do not go out before the model's own status is known."""
    thinker.status = 404
    thinker.headers.clear()
    said: dict[str, Any] = {"input": "hi"} if path == "/v1/responses" else {"messages": [user("hi")]}
    asking = asyncio.create_task(server.client.post(path, json={**said, "stream": True, "store": store}))
    done, _ = await asyncio.wait({asking}, timeout=0.3)
    assert not done
    thinker.headers.set()
    assert (await asking).status_code == 404


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("store", [True, False])
async def test_a_model_that_refuses_with_its_first_event_refuses_the_request(
    server: Running, thinker: Thinker, monkeypatch: pytest.MonkeyPatch, store: bool
) -> None:
    """Some servers answer 200 and then say no."""
    for module in (streams, stateless):
        monkeypatch.setattr(module, "STATUS_SECONDS", PATIENCE)
    thinker.body = REFUSAL
    thinker.think.set()
    answer = await server.client.post("/v1/responses", json={"input": "hi", "stream": True, "store": store})
    assert answer.status_code == 400


async def test_a_silent_model_keeps_nobody_waiting_for_more_than_ten_seconds(
    server: Running, thinker: Thinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (streams, stateless):
        assert module.HEADERS_SECONDS < 10
        monkeypatch.setattr(module, "HEADERS_SECONDS", 0.1)
    thinker.headers.clear()
    for store in (True, False):
        body = {"input": "hi", "stream": True, "store": store}
        async with server.client.stream("POST", "/v1/responses", json=body) as answer:
            assert (await anext(aiter(events_of(answer))))["type"] == "response.created"


async def test_where_the_model_is_stays_with_the_operator(
    server: Running, thinker: Thinker, caplog: pytest.LogCaptureFixture
) -> None:
    thinker.status = 302
    port = thinker.url.split(":")[2].split("/")[0]
    for body in ({"input": "hi"}, {"input": "hi", "store": False}):
        answer = await server.client.post("/v1/responses", json=body)
        assert answer.status_code == 502
        assert "redirect" in answer.json()["error"]["message"]
        assert port not in answer.text
    turns = (await server.client.get("/api/sessions")).json()["data"]
    listed = await server.client.get(f"/api/sessions/{turns[0]['id']}/turns")
    assert "redirect" in listed.text
    assert port not in listed.text
    assert port in caplog.text
