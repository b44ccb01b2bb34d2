"""Tools of the Responses API that a chat model does not know: namespaces, custom tools, hosted tools."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import call, heard, user
from tests.integration.api.conftest import Running, StartServer

CLOSE = {"type": "function", "name": "close", "parameters": {"type": "object", "properties": {}}}
EXEC = {"type": "custom", "name": "exec", "description": "Run JavaScript"}
SPACE = {"type": "namespace", "name": "agents", "description": "Agents", "tools": [CLOSE, EXEC]}
HOSTED = [
    {"type": "web_search", "external_web_access": False},
    {"type": "tool_search", "execution": "client"},
]
CODEX = {"thread-id": "t"}
CALLS = {
    "tool_calls": [
        call("call_1", "agents__close", '{"id":1}'),
        call("call_2", "agents__exec", '{"input":"1+1"}'),
    ]
}


async def respond(server: Running, value: Any, **fields: Any) -> Any:
    response = await server.client.post("/v1/responses", json={"input": value, **fields}, headers=CODEX)
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("as_item", [False, True])
async def test_tools_of_a_namespace_are_called_and_answered_in_their_own_form(
    start_server: StartServer, as_item: bool
) -> None:
    server = await start_server(ScriptedModel([CALLS, "Closed."]))
    brought = {"type": "additional_tools", "role": "developer", "tools": [SPACE]}
    head = [brought] if as_item else []
    fields: dict[str, Any] = {"store": False} if as_item else {"store": False, "tools": [SPACE, *HOSTED]}
    first = await respond(server, [*head, user("close it")], **fields)
    offered = [tool["function"]["name"] for tool in server.model.requests[0].options["tools"]]
    assert offered == ["agents__close", "agents__exec"]
    output = first.json()["output"]
    assert [(item["type"], item["namespace"], item["name"]) for item in output] == [
        ("function_call", "agents", "close"),
        ("custom_tool_call", "agents", "exec"),
    ]
    assert output[1]["input"] == "1+1"
    results = [
        {"type": "function_call_output", "call_id": "call_1", "output": "ok"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "2"},
    ]
    second = await respond(server, [*head, user("close it"), *output, *results], **fields)
    assert second.headers["x-holdfast-conversation-id"] == first.headers["x-holdfast-conversation-id"]
    assert [message["role"] for message in heard(server)] == ["user", "assistant", "tool", "tool"]
    stored = await server.client.get(f"/v1/responses/{first.json()['id']}")
    assert stored.json()["output"] == output


async def test_tools_that_run_at_openai_are_left_out_and_named(server: Running) -> None:
    response = await respond(server, "hello", tools=[*HOSTED, CLOSE])
    assert response.headers["x-holdfast-tools-left-out"] == "web_search, tool_search"
    assert [tool["function"]["name"] for tool in server.model.requests[0].options["tools"]] == ["close"]
    assert "x-holdfast-tools-left-out" not in (await respond(server, "again", tools=[CLOSE])).headers


async def test_a_stream_ends_with_done_live_stored_and_unkept(server: Running) -> None:
    live = await respond(server, "hello", stream=True)
    unkept = await server.client.post("/v1/responses", json={"input": "x", "stream": True, "store": False})
    response_id = live.text.split('"id":"resp_')[1].split('"')[0]
    stored = await server.client.get(f"/v1/responses/resp_{response_id}?stream=true")
    for answer in (live, stored, unkept):
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.text.count("[DONE]") == 1
        assert "response.completed" in answer.text
