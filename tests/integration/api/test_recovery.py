"""The stored request: a turn that is retried asks the model what its client asked."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast.errors import ModelError
from holdfast.models.base import ModelRequest
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import until
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import asked

FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {}}}


def _chat() -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "temperature": 0.25,
        "tools": [{"type": "function", "function": FUNCTION}],
        "x_unknown": {"kept": True},
    }


def _response() -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {
        "model": "m",
        "instructions": "be brief",
        "input": [
            {"role": "developer", "content": "and kind"},
            {"role": "user", "content": "hello"},
        ],
        "temperature": 0.25,
        "max_output_tokens": 77,
        "tools": [{"type": "function", **FUNCTION}],
        "x_unknown": {"kept": True},
    }


def _message() -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {
        "model": "m",
        "max_tokens": 77,
        "system": "be brief",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.25,
        "stop_sequences": ["END"],
        "tools": [{"name": "look", "input_schema": {"type": "object", "properties": {}}}],
    }


def _told(request: ModelRequest) -> dict[str, Any]:
    return {
        "messages": msgspec.json.decode(request.messages),
        "model": request.model,
        "options": dict(request.options),
        "native": {name: value for name, value in request.native.body.items() if name != "messages"}
        if request.native
        else None,
        "headers": request.native.headers if request.native else None,
    }


@pytest.mark.parametrize("ask", [_chat, _response, _message])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_by_hand_asks_the_model_what_the_client_asked(
    start_server: StartServer, ask: Any, stream: bool
) -> None:
    model = ScriptedModel([ModelError("overloaded", 503), "hi"])
    server = await start_server(model, agent={"system_prompt": "house rules"})
    path, body = ask()
    answer = await server.client.post(
        path, json={**body, "stream": stream}, headers={"anthropic-version": "2023-06-01"}
    )
    assert answer.status_code == 502
    turn_id = answer.headers["x-holdfast-turn-id"]
    turn = await asked(server, "POST", f"/api/turns/{turn_id}/retry")
    assert turn["status"] == "completed"
    first, second = map(_told, model.requests)
    assert second == first
    assert first["messages"][0] == {"role": "system", "content": "house rules"}
    assert await server.store.stored_request(None, turn_id) is None


async def test_no_key_is_in_the_stored_request(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([ModelError("no", 400)]))
    path, body = _response()
    body["tools"] += [{"type": "mcp", "server_label": "x", "authorization": "sk-of-another-service"}]
    answer = await server.client.post(path, json=body)
    stored = await _stored(server, answer.headers["x-holdfast-turn-id"])
    assert "sk-of-another-service" not in stored
    assert server.admin_key not in stored
    assert json.loads(stored)["key_id"].startswith("key_")


async def _stored(server: Running, turn_id: str) -> str:
    stored = await server.store.stored_request(None, turn_id)
    assert stored is not None
    return stored.decode()


async def test_every_reader_sees_that_a_turn_waits_and_why(start_server: StartServer) -> None:
    """Turn, response, activity, health, metrics, events and a second request, until it is answered."""
    model = ScriptedModel([ModelError("too many requests", 429, retry_after=3600), "hi"])
    server = await start_server(model)
    named = {"x-holdfast-session-key": "cli:ada"}
    begun = await server.client.post(
        "/v1/responses", json={"input": "hello", "background": True}, headers=named
    )
    response_id, turn_id = begun.json()["id"], begun.headers["x-holdfast-turn-id"]

    async def waits() -> bool:
        return bool((await server.client.get("/healthz")).json()["waiting_turns"] == 1)

    await until(waits, "it waits")
    turn = await asked(server, "GET", f"/api/turns/{turn_id}")
    assert (turn["status"], turn["doing"], turn["attempt"]) == ("running", "waiting", 1)
    assert turn["why"].startswith("The model refused: ")
    assert "(refused 1 time since" in turn["why"]
    response = await asked(server, "GET", f"/v1/responses/{response_id}")
    assert (response["status"], response["error"], response["output"]) == ("queued", None, [])
    activity = await asked(server, "GET", "/api/activity")
    (session,) = activity["data"]
    assert (session["state"], session["doing"]) == ("active", "waiting")
    events = [each for each in await server.store.events(owner=None) if each.type == "turn.waiting"]
    assert [each.data["why"] for each in events] == ["model"]
    metrics = (await server.client.get("/metrics")).text
    assert "holdfast_turns_waiting 1.0" in metrics
    busy = await server.client.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "and?"}]},
        headers={**named, "x-holdfast-when-busy": "reject"},
    )
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "conversation_locked")
    assert turn_id in busy.json()["error"]["message"]
    assert "/cancel" in busy.json()["error"]["message"]
    answered = await asked(server, "POST", f"/api/turns/{turn_id}/retry")
    assert (answered["status"], answered["attempt"], answered["why"]) == ("completed", 2, None)
    late = await server.client.get(f"/v1/responses/{response_id}")
    assert (late.json()["status"], late.json()["holdfast"]["attempt"]) == ("completed", 2)
    assert not await waits()


async def test_a_given_up_turn_is_failed_with_its_sentence_everywhere(start_server: StartServer) -> None:
    model = ScriptedModel([ModelError("too many requests", 429, retry_after=1)] * 3)
    server = await start_server(model, turns={"retry_hours": 0.0001})
    begun = (await server.client.post("/v1/responses", json={"input": "hello", "background": True})).json()

    async def failed() -> bool:
        assert server.services.holdfast.recoverer is not None
        await server.services.holdfast.recoverer.recover_once()
        found = (await server.client.get(f"/v1/responses/{begun['id']}")).json()
        return bool(found["status"] == "failed")

    await until(failed, "it is given up")
    response = await asked(server, "GET", f"/v1/responses/{begun['id']}")
    assert response["error"]["code"] == "server_error"
    assert response["error"]["message"].startswith("Given up: the model has refused for ")
    turn = await asked(server, "GET", f"/api/turns/{begun['holdfast']['turn_id']}")
    assert (turn["status"], turn["why"]) == ("failed", response["error"]["message"])
    (event,) = [each for each in await server.store.events(owner=None) if each.type == "turn.given_up"]
    assert (event.data["why"], event.turn_id) == (turn["why"], turn["id"])
    metrics = (await server.client.get("/metrics")).text
    assert "holdfast_turns_given_up_total 1.0" in metrics
