"""A key that is revoked while its request is under way: what it waited for is not done, and not told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.turns import TurnStatus
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import PATH, until, user
from tests.integration.api.conftest import Running, StartServer

KEY = {"x-holdfast-session-key": "cli:ada"}


class Gate:
    """A model that answers when it is let."""

    def __init__(self, *lines: Any) -> None:
        self._lines = list(lines)
        self.asked = 0
        self.open = asyncio.Event()

    async def __call__(self, messages: object, purpose: object) -> Any:
        self.asked += 1
        await self.open.wait()
        return self._lines.pop(0)


async def limited(server: Running, *tools: str) -> tuple[httpx.AsyncClient, str]:
    """A client and its key's id."""
    key, token = new_key("ada", Scope.CHAT, tools, server.store.now())
    await server.store.add_key(key, token.hash)
    return await server.with_token(str(token)), key.id


async def revoke(server: Running, client: httpx.AsyncClient, key_id: str) -> None:
    """Revoked, and the server has learned of it."""
    await server.store.revoke_key(key_id, None)

    async def refused() -> bool:
        return (await client.get("/api/sessions")).status_code == 401

    await until(refused, "the key opens nothing")


def say(client: httpx.AsyncClient, text: str, **fields: Any) -> asyncio.Task[httpx.Response]:
    body = {"messages": [user(text)], **fields}
    return asyncio.create_task(client.post(PATH, json=body, headers=KEY))


async def texts(server: Running) -> str:
    """All that is stored of the conversation, as JSON."""
    (session,) = (await server.client.get("/api/sessions?owner=ada")).json()["data"]
    path = f"/api/sessions/{session['id']}/messages?scope=conversation&owner=ada"
    return (await server.client.get(path)).text


@pytest.mark.parametrize("route", ["chat", "responses"])
async def test_a_request_that_waited_for_its_turn_begins_nothing(
    start_server: StartServer, route: str
) -> None:
    gate = Gate("first", "second")
    server = await start_server(ScriptedModel(gate), server={"busy_wait_seconds": 60})
    first, _ = await limited(server)
    other, key_id = await limited(server)
    holding = say(first, "hello")
    await until(lambda: gate.asked == 1, "the first turn runs")
    if route == "chat":
        waits = say(other, "do evil")
    else:
        body = {"input": "do evil", "model": "m"}
        waits = asyncio.create_task(other.post("/v1/responses", json=body, headers=KEY))
    await until(lambda: len(server.services.runner._beginning) == 1, "the second request waits")
    await revoke(server, other, key_id)
    gate.open.set()
    assert (await holding).status_code == 200
    answer = await waits
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "do evil" not in await texts(server)
    assert gate.asked == 1, "the model was not asked"


async def test_a_tool_is_not_run_for_a_revoked_key(start_server: StartServer, tmp_path: Path) -> None:
    made = tmp_path / "made"
    call = {"id": "call_1", "type": "function"}
    function = {"name": "terminal", "arguments": f'{{"command": "touch {made}"}}'}
    gate = Gate({"content": None, "tool_calls": [{**call, "function": function}]}, "done")
    server = await start_server(ScriptedModel(gate), agent={"tools": ["terminal"]})
    client, key_id = await limited(server, "terminal")
    asking = say(client, "go on")
    await until(lambda: gate.asked == 1, "the model is asked")
    await revoke(server, client, key_id)
    gate.open.set()
    answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert not made.exists()
    assert gate.asked == 1, "the model was not asked again"
    (session,) = (await server.client.get("/api/sessions?owner=ada")).json()["data"]
    turns = (await server.client.get(f"/api/sessions/{session['id']}/turns?owner=ada")).json()["data"]
    assert turns[0]["status"] == TurnStatus.FAILED
    assert "revoked" in turns[0]["error"]


@pytest.mark.parametrize("fields", [{}, {"store": False}])
async def test_an_answer_is_not_given_to_a_revoked_key(
    start_server: StartServer, fields: dict[str, Any]
) -> None:
    gate = Gate("the secret")
    server = await start_server(ScriptedModel(gate))
    client, key_id = await limited(server)
    headers = {} if fields else KEY
    body = {"messages": [user("tell me")], **fields}
    asking = asyncio.create_task(client.post(PATH, json=body, headers=headers))
    await until(lambda: gate.asked == 1, "the model is asked")
    await revoke(server, client, key_id)
    gate.open.set()
    answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert "secret" not in answer.text


@pytest.mark.parametrize("what", ["end", "items"])
async def test_an_act_that_waited_is_not_done(start_server: StartServer, what: str) -> None:
    gate = Gate("first")
    server = await start_server(ScriptedModel(gate), server={"busy_wait_seconds": 60})
    first, _ = await limited(server)
    other, key_id = await limited(server)
    holding = say(first, "hello")
    await until(lambda: gate.asked == 1, "the first turn runs")
    (session,) = (await server.client.get("/api/sessions?owner=ada")).json()["data"]
    waited = asyncio.Event()
    leases = server.services.holdfast.gate
    when_free = leases.when_free

    async def seen(act: Any, wait_seconds: float) -> Any:
        async def attempt() -> Any:
            try:
                return await act()
            finally:
                waited.set()

        return await when_free(attempt, wait_seconds)

    leases.when_free = seen  # type: ignore[method-assign]
    path: str = f"/api/sessions/{session['id']}/end"
    body: dict[str, Any] = {}
    if what == "items":
        path = f"/v1/conversations/{session['conversation_id']}/items"
        body = {"items": [user("do evil")]}
    acting = asyncio.create_task(other.post(path, json=body))
    await waited.wait()
    await revoke(server, other, key_id)
    gate.open.set()
    assert (await holding).status_code == 200
    assert (await acting).status_code == 401
    (after,) = (await server.client.get("/api/sessions?owner=ada")).json()["data"]
    assert after["ended_at"] is None
    assert "do evil" not in await texts(server)
