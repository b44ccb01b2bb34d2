"""A model's name that the upstream does not have: the client is told, and nothing of it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from holdfast.domain.turns import Lease, TurnStatus
from holdfast.errors import ModelError
from holdfast.models.base import Chunk, ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.server import streams
from tests.integration.api.chatting import (
    assistant,
    by_key,
    conversations,
    ended,
    post,
    said,
    turns,
    until,
    user,
)
from tests.integration.api.conftest import Running, StartServer
from tests.integration.dashboard.test_acts import sent
from tests.integration.dashboard.test_logins import logged_in

IDS = ("x-holdfast-session-id", "x-hermes-session-id", "x-holdfast-conversation-id", "x-holdfast-turn-id")


class Choosy(ScriptedModel):
    """Has only the models `tiny` and the default one. `asked` is set when it is asked for another, which it
    refuses once `may_refuse` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.may_refuse = asyncio.Event()
        self.may_refuse.set()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        if request.model not in (None, "", "tiny"):
            self.asked.set()
            await self.may_refuse.wait()
            text = f"the model {request.model} does not exist"
            raise ModelError(text, 404, said=text, code="model_not_found", param="model")
        async for chunk in super().stream(request):
            yield chunk


@pytest.fixture
async def model() -> Choosy:
    return Choosy()


@pytest.fixture
async def server(start_server: StartServer, model: Choosy) -> Running:
    return await start_server(model)


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [user("hi")]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [user("hi")], "max_tokens": 9},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("headers", [{}, by_key("cli:ada"), {"idempotency-key": "k1"}])
async def test_a_refused_name_stores_nothing(
    server: Running, path: str, stream: bool, headers: dict[str, str]
) -> None:
    for _ in range(2):
        body = {**BODIES[path], "model": "gpt-4o-mini", "stream": stream}
        answer = await server.client.post(path, json=body, headers=headers)
        assert answer.status_code == 404 and "gpt-4o-mini does not exist" in answer.text
        assert "holdfast" not in answer.json() and not [name for name in IDS if name in answer.headers]
    assert await conversations(server) == 0
    found = (await server.client.get("/api/search", params={"q": "hi"})).json()
    assert found["data"] == []
    body = {**BODIES[path], "model": "tiny", "stream": stream}
    right = await server.client.post(path, json=body, headers={**headers, "idempotency-key": "k2"})
    assert right.status_code == 200
    assert await said(server, right.headers["x-holdfast-conversation-id"]) == [
        "user: hi",
        "assistant: You said: hi",
    ]


async def test_a_history_that_was_sent_with_it_is_not_stored_either(server: Running) -> None:
    answer = await post(server, [user("one"), assistant("two"), user("three")], model="gpt-4o-mini")
    assert answer.status_code == 404
    assert await conversations(server) == 0


async def test_in_a_conversation_that_exists_the_message_is_kept(server: Running) -> None:
    first = await post(server, [user("hi")], by_key("cli:ada"))
    conversation = first.json()["holdfast"]["conversation_id"]
    answer = await post(server, [user("more")], by_key("cli:ada"), model="gpt-4o-mini")
    assert answer.status_code == 404
    assert answer.json()["holdfast"]["conversation_id"] == conversation
    assert (await said(server, conversation))[-1] == "user: more"


@pytest.mark.parametrize("added", ["a queued message", "a title"])
async def test_what_was_added_meanwhile_keeps_the_conversation(
    server: Running, model: Choosy, added: str
) -> None:
    """It was acknowledged before the model refused."""
    model.may_refuse.clear()
    refused = asyncio.create_task(post(server, [user("hi")], by_key("cli:ada"), model="gpt-4o-mini"))
    await asyncio.wait_for(model.asked.wait(), 60)
    if added == "a title":
        (session,) = (await server.client.get("/api/sessions")).json()["data"]
        path = f"/api/sessions/{session['id']}/title"
        assert (await server.client.post(path, json={"title": "Mine"})).status_code == 200
    else:
        headers = {**by_key("cli:ada"), "x-holdfast-when-busy": "queue"}
        assert (await post(server, [user("and this")], headers)).status_code == 202
    model.may_refuse.set()
    answer = await refused
    assert answer.status_code == 404
    conversation = answer.json()["holdfast"]["conversation_id"]
    assert (await turns(server, conversation))[0].status is TurnStatus.FAILED
    if added == "a queued message":
        await ended(server, conversation, TurnStatus.COMPLETED)
        assert (await said(server, conversation))[-2:] == ["user: and this", "assistant: You said: and this"]


async def test_another_request_that_waited_begins_anew(server: Running, model: Choosy) -> None:
    model.may_refuse.clear()
    refused = asyncio.create_task(post(server, [user("hi")], by_key("cli:ada"), model="gpt-4o-mini"))
    await asyncio.wait_for(model.asked.wait(), 60)
    waits = asyncio.create_task(post(server, [user("hello")], by_key("cli:ada")))
    await asyncio.sleep(0.2)  # whether it waits by then or comes later: the outcome is the same
    model.may_refuse.set()
    assert (await refused).status_code == 404
    answered = await waits
    assert answered.status_code == 200, answered.text
    kept = await said(server, answered.json()["holdfast"]["conversation_id"])
    assert kept[-2:] == ["user: hello", "assistant: You said: hello"]


async def test_a_client_that_has_gone_finds_its_message(server: Running, model: Choosy) -> None:
    """It could not be told that the name is wrong."""
    model.may_refuse.clear()
    gone = asyncio.create_task(post(server, [user("hi")], by_key("cli:ada"), model="gpt-4o-mini"))
    await asyncio.wait_for(model.asked.wait(), 60)
    (running,) = server.services.runner.running.values()
    gone.cancel()
    await until(lambda: not running.has_listener, "the client is gone")
    model.may_refuse.set()
    await ended(server, running.turn.conversation_id, TurnStatus.FAILED)
    assert await said(server, running.turn.conversation_id) == ["user: hi"]


@pytest.mark.parametrize("path", BODIES)
async def test_what_the_headers_of_a_stream_have_acknowledged_is_kept(
    server: Running, model: Choosy, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway may take longer to say no than a client waits for headers; they carry the ids."""
    monkeypatch.setattr(streams, "HEADERS_SECONDS", 0.1)
    model.may_refuse.clear()
    body = {**BODIES[path], "model": "gpt-4o-mini", "stream": True}
    async with server.client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        conversation = answer.headers["x-holdfast-conversation-id"]
        model.may_refuse.set()
        assert "gpt-4o-mini does not exist" in (await answer.aread()).decode()
    assert await said(server, conversation) == ["user: hi"]
    assert [turn.status for turn in await turns(server, conversation)] == [TurnStatus.FAILED]


async def test_no_headers_go_out_while_a_refused_turn_is_deleted(
    server: Running, model: Choosy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEADERS_SECONDS", 0.3)
    delete = server.store.withdraw_refused

    async def slowly(lease: Lease) -> bool:
        await asyncio.sleep(1)  # the time for headers passes meanwhile
        return await delete(lease)

    monkeypatch.setattr(server.store, "withdraw_refused", slowly)
    body = {**BODIES["/v1/chat/completions"], "model": "gpt-4o-mini", "stream": True}
    answer = await server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 404 and not [name for name in IDS if name in answer.headers]
    assert await conversations(server) == 0


async def test_a_404_that_does_not_speak_of_the_name_is_a_failure_like_any_other(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([ModelError("404 page not found", 404, said="not found")]))
    answer = await post(server, [user("hi")], model="gpt-4o-mini")
    assert answer.status_code == 404
    assert await said(server, answer.json()["holdfast"]["conversation_id"]) == ["user: hi"]


async def test_a_message_typed_into_a_form_is_kept(server: Running, model: Choosy) -> None:
    """Its browser is sent to the conversation, where the error is shown."""
    client = await logged_in(server)
    answer = await sent(client, "/new", text="a long letter", model="gpt-4o-mini")
    assert answer.status_code == 303
    await until(lambda: not server.services.runner.running, "the turn has ended")
    page = await client.get(answer.headers["location"])
    assert page.status_code == 200 and "a long letter" in page.text and "does not exist" in page.text


async def test_a_background_response_is_kept_for_whoever_asks_later(server: Running) -> None:
    begun = await server.client.post(
        "/v1/responses", json={"input": "hi", "model": "gpt-4o-mini", "background": True}
    )
    assert begun.status_code == 200
    for _ in range(600):
        found = (await server.client.get(f"/v1/responses/{begun.json()['id']}")).json()
        if found["status"] == "failed":
            break
        await asyncio.sleep(0.05)
    assert found["status"] == "failed" and "does not exist" in msgspec.json.encode(found["error"]).decode()
    assert await conversations(server) == 1
