"""Anthropic's API on the wire: the exact events, and a clear refusal of every malformed request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.models.scripted import ScriptedModel
from holdfast.server.anthropic.schemas import AnthropicErrorObject, AnthropicMessageObject
from tests.integration.api import chatting
from tests.integration.api.anthropic_chat import PATH, TOOLS, events_in, post
from tests.integration.api.chatting import calls, heard, user
from tests.integration.api.conftest import Running, StartServer

USE = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}


def says(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


async def test_the_events_of_a_stream_come_in_the_documented_order(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([{"content": "Let me look.", **calls("a", "b")}]))
    response = await post(server, {"messages": [user("x")], "tools": TOOLS, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"] == response.headers["x-request-id"]
    events = events_in(response.text)
    assert [name for name, _ in events] == [
        "message_start",
        *("content_block_start", *["content_block_delta"] * 3, "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert all(data["type"] == name for name, data in events)
    starts = [data for name, data in events if name == "content_block_start"]
    assert [(each["index"], each["content_block"]["type"]) for each in starts] == [
        (0, "text"),
        (1, "tool_use"),
        (2, "tool_use"),
    ]
    assert all(each["content_block"]["input"] == {} for each in starts[1:])
    start, end = events[0][1]["message"], events[-2][1]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert end["holdfast"]["conversation_id"] == response.headers["x-holdfast-conversation-id"]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [says("user", {"type": "hologram"})]}, "messages[0].content[0].type"),
        ({"messages": [says("user", {"text": "x"})]}, "messages[0].content[0].type"),
        ({"messages": [says("user", {"type": "text", "text": 1})]}, "messages[0].content[0].text"),
        ({"messages": [says("user", USE)]}, "messages[0].content[0].type"),
        ({"messages": [user("x"), says("assistant", {"type": "image"})]}, "messages[1].content[0].type"),
        ({"messages": [says("user", {"type": "image", "source": {"type": "x"}})]}, "source.type"),
        (
            {"messages": [user("x"), says("assistant", {**USE, "input": "{}"})]},
            "messages[1].content[0].input",
        ),
        ({"messages": [user("x"), says("assistant", {**USE, "id": ""})]}, "messages[1].content[0].id"),
        ({"messages": [user("x"), says("assistant", USE), user("y")]}, "'call_1' has none"),
        ({"messages": [user("x"), says("assistant", USE), says("assistant")]}, "'call_1' has none"),
        (
            {"messages": [user("x"), says("assistant", USE), says("user", RESULT, RESULT)]},
            "two tool_result blocks",
        ),
        (
            {"messages": [user("x"), says("assistant", {"type": "text", "text": "y"}), says("user", RESULT)]},
            "not a tool_use",
        ),
        ({"messages": [says("user", RESULT)]}, "call_1"),
        ({"messages": [user("x")], "max_tokens": None}, "max_tokens"),
        ({"messages": [user("x")], "max_tokens": 0}, "max_tokens"),
        ({"messages": [user("x")], "max_tokens": "9"}, "max_tokens"),
        ({"messages": [user("x")], "stream": "yes"}, "stream"),
        ({"messages": [user("x")], "model": 3}, "model"),
        ({"messages": [user("x")], "system": {"a": 1}}, "system"),
        ({"messages": [user("x")], "system": [{"type": "image"}]}, "system[0].type"),
        ({"messages": [user("x")], "tools": [{"description": "x"}]}, "tools[0].name"),
        ({"messages": [user("x")], "tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"messages": [user("x")], "tools": TOOLS, "tool_choice": "auto"}, "tool_choice"),
        ({"messages": [user("x")], "tool_choice": {"type": "tool", "name": "y"}}, "tool_choice.name"),
        ({"messages": [user("x")], "thinking": {"type": "maybe"}}, "thinking.type"),
        ({"messages": [user("x")], "stop_sequences": [1]}, "stop_sequences[0]"),
        ({"messages": [user("a\0b")]}, "NUL"),
    ],
)
async def test_a_malformed_request_is_refused_and_nothing_is_kept(
    server: Running, body: dict[str, Any], names: str
) -> None:
    response = await post(server, body)
    assert response.status_code == 400, response.text
    refusal = response.json()
    assert refusal["type"] == "error"
    assert refusal["error"]["type"] == "invalid_request_error"
    assert names in refusal["error"]["message"]
    assert refusal["request_id"] == response.headers["request-id"]
    assert server.model.calls == 0
    assert await chatting.conversations(server) == 0


async def test_other_refusals_have_the_same_shape(start_server: StartServer) -> None:
    server = await start_server(server={"max_body_mb": 0.001})
    for response, status, kind in (
        (await server.client.post(PATH, content=b"{"), 400, "invalid_request_error"),
        (await server.client.post(PATH, content=b"[]"), 400, "invalid_request_error"),
        (await post(server, {"messages": [user("x" * 4000)]}), 413, "request_too_large"),
        (await server.client.get(PATH), 405, "invalid_request_error"),
        (await server.client.post(f"{PATH}/batches", json={}), 404, "not_found_error"),
        (
            await post(server, {"messages": [user("x")]}, x_holdfast_session_id="sess_unknown"),
            404,
            "not_found_error",
        ),
        (await (await server.with_token(None)).post(PATH, json={}), 401, "authentication_error"),
    ):
        assert response.status_code == status
        error = msgspec.convert(response.json(), AnthropicErrorObject)
        assert error.error.type == kind, response.text
        assert error.request_id == response.headers["request-id"]


async def test_an_answer_is_as_documented(server: Running) -> None:
    response = await post(server, {"messages": [user("hello")]})
    answer = msgspec.convert(response.json(), AnthropicMessageObject)
    assert set(response.json()) == set(AnthropicMessageObject.__struct_fields__)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", 3)


async def test_tools_that_run_at_anthropic_are_left_out(server: Running) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, *TOOLS]
    response = await post(server, {"messages": [user("x")], "tools": tools})
    assert response.status_code == 200
    assert [tool["function"]["name"] for tool in server.model.requests[0].options["tools"]] == ["weather"]


async def test_blocks_of_tools_that_ran_at_anthropic_are_left_out(server: Running) -> None:
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    said = {"type": "text", "text": "Found."}
    response = await post(
        server, {"messages": [user("x"), says("assistant", search, found, said), user("y")]}
    )
    assert response.status_code == 200
    assert [message["content"] for message in heard(server)] == ["x", "Found.", "y"]


async def test_a_request_like_claude_codes_is_one_conversation(start_server: StartServer) -> None:
    """Its system message stands between others, and its newest message changes its form."""
    server = await start_server(ScriptedModel([calls("call_1"), "Done.", "Bye."]))
    marked = {"cache_control": {"type": "ephemeral"}}
    first = says(
        "user", {"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "go", **marked}
    )
    env = {"role": "system", "content": [{"type": "text", "text": "env", **marked}]}
    common: dict[str, Any] = {
        "tools": [{**TOOLS[0], "defer_loading": True}],
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": []},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": "{}"},
    }
    one = await post(
        server,
        {
            **common,
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: 1"},
                {"type": "text", "text": "S"},
            ],
            "messages": [first, env],
        },
    )
    history = [
        first,
        {"role": "system", "content": "env"},
        says("assistant", USE | {"input": {"city": "Paris"}}),
    ]
    reference = {"type": "tool_reference", "tool_name": "WebFetch"}
    results = says("user", {**RESULT, "content": [reference], **marked}, {"type": "text", "text": "note"})
    two = await post(server, {**common, "messages": [*history, results]})
    done = says("assistant", {"type": "text", "text": "Done."})
    plain = says("user", {**RESULT, "content": [reference]}, {"type": "text", "text": "note"})
    three = await post(server, {**common, "messages": [*history, plain, done, user("thanks")]})
    assert {each.status_code for each in (one, two, three)} == {200}
    assert len({each.headers["x-holdfast-conversation-id"] for each in (one, two, three)}) == 1
    assert heard(server, 0)[0] == {"role": "system", "content": "S"}
    roles = [message["role"] for message in heard(server)]
    assert roles == ["user", "system", "assistant", "tool", "user", "assistant", "user"]
