"""Tools of the Responses API that a chat model does not know: namespaces, custom tools, hosted tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import call, heard, user
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.responding import post, streamed

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


# --- tools that only OpenAI can run, and tools of the client without a definition ------------------------

SEARCH = {"type": "web_search", "external_web_access": False}
HELLO = [{"role": "user", "content": "hello"}]


async def test_a_response_warns_of_tools_that_were_left_out(server: Running) -> None:
    body = {"input": "hello", "tools": [SEARCH, CLOSE]}
    for store in (True, False):
        response = (await post(server, {**body, "store": store})).json()
        (warning,) = response["warnings"]
        assert (warning["code"], warning["types"]) == ("tools_left_out", ["web_search"])
        assert [tool["function"]["name"] for tool in server.model.requests[-1].options["tools"]] == ["close"]
    stored = (await server.client.get(f"/v1/responses/{(await respond(server, 'x')).json()['id']}")).json()
    assert "warnings" not in stored


async def test_hosted_tools_and_their_items_are_refused_by_a_setting(start_server: StartServer) -> None:
    server = await start_server(clients={"hosted_tools": "refuse"})
    for fields, param in (
        ({"tools": [SEARCH]}, "tools[0].type"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}, *HELLO]}, "input[0].type"),
        ({"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "tools[0].type"),
    ):
        answer = await post(server, {"input": "hello", **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_hosted_tool_may_be_allowed_but_not_forced(server: Running) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}
    assert (await post(server, {"input": "x", "tools": [SEARCH], "tool_choice": choice})).status_code == 200
    for forced in ({"type": "web_search"}, {**choice, "mode": "required"}, "required"):
        answer = await post(server, {"input": "x", "tools": [SEARCH], "tool_choice": forced})
        assert answer.status_code == 400, answer.text


async def test_items_of_hosted_tools_are_left_out(server: Running) -> None:
    items = [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, *HELLO]
    response = (await post(server, {"input": items})).json()
    assert response["warnings"][0]["types"] == ["web_search_call"]
    assert len(json.loads(server.model.requests[-1].messages)) == 1


SHELL_ACTION = {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}
EXEC_ACTION = {"type": "exec", "command": ["ls", "-l"], "env": {}}
PATCH = {"type": "create_file", "path": "a", "diff": "+b"}
RAN = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tool", "arguments", "field", "action", "output"),
    [
        ("shell", '{"commands": ["ls"]}', "action", SHELL_ACTION, {"output": RAN}),
        ("local_shell", '{"command": ["ls", "-l"]}', "action", EXEC_ACTION, {"output": "a"}),
        ("apply_patch", json.dumps(PATCH), "operation", PATCH, {"status": "completed", "output": "done"}),
    ],
)
async def test_tools_of_the_client_are_called_by_items_of_their_own(
    start_server: StartServer,
    tool: str,
    arguments: str,
    field: str,
    action: dict[str, Any],
    output: dict[str, Any],
    stream: bool,
) -> None:
    asked = {"tool_calls": [call("call_1", tool, arguments)]}
    server = await start_server(ScriptedModel([asked, "done", "done"]))
    choice: Any = "required" if tool == "local_shell" else {"type": tool}  # OpenAI's has no such choice
    body = {"input": "list", "tools": [{"type": tool}], "tool_choice": choice}
    if stream:
        events = await streamed(server, body)
        response = events[-1]["response"]
        added = [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"]
        assert added == [f"{tool}_call"]
        assert not any("arguments" in event["type"] for event in events)
    else:
        response = (await post(server, body)).json()
    (item,) = response["output"]
    assert (item["type"], item[field], item["call_id"]) == (f"{tool}_call", action, "call_1")
    assert (await server.client.get(f"/v1/responses/{response['id']}")).json()["output"] == [item]
    sent = server.model.requests[0].options
    if tool != "local_shell":
        assert sent["tool_choice"] == {"type": "function", "function": {"name": tool}}
    assert sent["tools"][0]["function"]["parameters"]["required"]

    result = {"type": f"{tool}_call_output", "call_id": "call_1", **output}
    for more in (
        {"previous_response_id": response["id"], "input": [result]},
        {"store": False, "input": [{"role": "user", "content": "list"}, item, result]},
    ):
        answer = await post(server, {"tools": [{"type": tool}], **more})
        assert answer.status_code == 200, answer.text
        told = json.loads(server.model.requests[-1].messages)
        assert json.loads(told[1]["tool_calls"][0]["function"]["arguments"]) == json.loads(arguments)
        assert told[2]["role"] == "tool" and told[2]["tool_call_id"] == "call_1" and told[2]["content"]


async def test_a_call_of_a_client_tool_with_broken_arguments_is_a_function_call(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([{"tool_calls": [call("call_1", "shell", "[ls")]}]))
    response = (await post(server, {"input": "list", "tools": [{"type": "shell"}]})).json()
    assert [(item["type"], item["name"]) for item in response["output"]] == [("function_call", "shell")]
