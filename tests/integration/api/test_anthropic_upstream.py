"""`[model] kind = "anthropic"`: a server that speaks Anthropic's API as the model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from holdfast.models.anthropic import AnthropicUpstream
from holdfast.models.choose import choose
from tests.integration.api import chatting
from tests.integration.api.anthropic_chat import TOOLS, blocks_of, create, events_in, ours, post, sdk
from tests.integration.api.chatting import by_key, user
from tests.integration.api.conftest import Running, StartServer

THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "sig=="}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "rain"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
USAGE = {
    "input_tokens": 5,
    "cache_read_input_tokens": 3,
    "cache_creation_input_tokens": 2,
    "output_tokens": 4,
}


class Claude:
    """A server of Anthropic's API that answers with the next of its `answers`: lists of content blocks."""

    url = ""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Any] = []

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            error = {"type": "invalid_request_error", "message": "prompt is wrong"}
            return web.json_response({"type": "error", "error": error}, status=answer)
        reason = "tool_use" if any(block["type"] == "tool_use" for block in answer) else "end_turn"
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": answer,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": USAGE,
        }
        if not body["stream"]:
            return web.json_response(message)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in _events(message):
            await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return response

    async def count(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        return web.json_response({"input_tokens": 42})

    async def models(self, request: web.Request) -> web.Response:
        entry = {"type": "model", "id": "claude-x", "display_name": "X", "created_at": "2026-01-01T00:00:00Z"}
        return web.json_response({"data": [entry], "has_more": False})


def _events(message: dict[str, Any]) -> Any:
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        empty = {**block, **{name: "" for name in ("text", "thinking", "signature") if name in block}}
        if "input" in block:
            empty["input"] = {}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        deltas: list[dict[str, Any]] = [
            {"type": f"{name}_delta", name: block[name]}
            for name in ("text", "thinking", "signature")
            if name in block
        ]
        if "input" in block:
            text = json.dumps(block["input"])
            deltas += [{"type": "input_json_delta", "partial_json": part} for part in (text[:4], text[4:])]
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 4}}
    yield {"type": "message_stop"}


@pytest.fixture
async def claude() -> AsyncIterator[Claude]:
    found = Claude()
    app = web.Application()
    app.router.add_post("/v1/messages", found.messages)
    app.router.add_post("/v1/messages/count_tokens", found.count)
    app.router.add_get("/v1/models", found.models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield found
    await runner.cleanup()


async def served(start_server: StartServer, claude: Claude, *answers: Any, **settings: Any) -> Running:
    claude.answers = list(answers)
    model = await choose("anthropic", claude.url, "claude-x", "secret-key")
    assert isinstance(model, AnthropicUpstream)
    return await start_server(model, **settings)


TEXT = {"type": "text", "text": "Wet."}


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_of_the_same_api_is_served_without_translation(
    start_server: StartServer, claude: Claude, streams: bool
) -> None:
    server = await served(start_server, claude, [THOUGHT, SEARCH, FOUND, USE], [TEXT])
    marked = {"cache_control": {"type": "ephemeral"}}
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: 1"},
        {"type": "text", "text": "S", **marked},
    ]
    tools = [{**TOOLS[0], "defer_loading": True}, {"type": "web_search_20250305", "name": "web_search"}]
    fields = {
        "system": system,
        "tools": tools,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 128_000,
        "stream": streams,
        "metadata": {"user_id": "u"},
        "top_k": 3,
        "tool_choice": {"type": "auto"},
        "context_management": {"edits": []},
    }
    first = {"role": "user", "content": [{"type": "text", "text": "go", **marked}]}
    headers = {"anthropic_beta": "b1,b2", "anthropic_version": "2023-06-01"}
    one = await post(server, {**fields, "messages": [first]}, **headers)
    assert one.status_code == 200, one.text
    sent = claude.requests[0]
    assert sent == {**fields, "model": "claude-x", "messages": [first]}
    assert claude.headers[0]["anthropic-beta"] == "b1,b2"
    assert claude.headers[0]["x-api-key"] == "secret-key"
    assert "Authorization" not in claude.headers[0]
    if streams:
        kinds = [data["content_block"]["type"] for name, data in events_in(one.text) if "block_start" in name]
        end = events_in(one.text)[-2][1]
        assert end["delta"]["stop_reason"] == "tool_use"
        assert end["usage"] == USAGE
        signs = [data["delta"] for _, data in events_in(one.text) if "signature" in str(data.get("delta"))]
        assert signs == [{"type": "signature_delta", "signature": "sig=="}]
    else:
        kinds = [block["type"] for block in one.json()["content"]]
        assert one.json()["content"] == [THOUGHT, SEARCH, FOUND, USE]
        assert one.json()["usage"] == USAGE
    assert kinds == ["thinking", "server_tool_use", "web_search_tool_result", "tool_use"]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain", "is_error": True, **marked}
    said = {"role": "assistant", "content": [THOUGHT, SEARCH, FOUND, USE]}
    history = [first, said, {"role": "user", "content": [result]}]
    two = await post(server, {**fields, "messages": history}, **headers)
    assert two.status_code == 200, two.text
    assert claude.requests[1]["messages"] == history
    assert two.headers["x-holdfast-conversation-id"] == one.headers["x-holdfast-conversation-id"]


async def test_a_chat_client_is_translated(start_server: StartServer, claude: Claude) -> None:
    server = await served(start_server, claude, [THOUGHT, {"type": "text", "text": "Hm: "}, USE], [TEXT])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    system = {"role": "system", "content": "Be kind."}
    first = await chatting.ask(
        server,
        [system, user([{"type": "text", "text": "?"}, image])],
        by_key("k"),
        tools=chatting.TOOLS,
        tool_choice="required",
        stop="END",
        max_completion_tokens=7,
    )
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert first["usage"]["prompt_tokens"] == 10
    (sent,) = claude.requests
    assert sent == {
        "model": "claude-x",
        "stream": False,
        "system": [{"type": "text", "text": "Be kind."}],
        "max_tokens": 7,
        "stop_sequences": ["END"],
        "tool_choice": {"type": "any"},
        "tools": TOOLS,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "?"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
                    },
                ],
            }
        ],
    }
    second = await chatting.ask(server, [chatting.result("toolu_1", "rain")], by_key("k"))
    assert chatting.text_of(second) == "Wet."
    assert claude.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Hm: "}, USE]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "rain"}],
                }
            ],
        },
    ]


async def test_a_conversation_begun_by_chat_goes_on_in_this_api(
    start_server: StartServer, claude: Claude
) -> None:
    server = await served(start_server, claude, [TEXT], [TEXT])
    await chatting.ask(server, "hello", by_key("k"))
    answer = await create(sdk(server), [user("more")], extra_headers=by_key("k"))
    assert blocks_of(answer) == [{"type": "text", "text": "Wet."}]
    assert [message["role"] for message in claude.requests[1]["messages"]] == ["user", "assistant", "user"]
    assert ours(answer)["turn_id"].startswith("turn_")


async def test_the_server_counts_tokens_and_lists_its_models(
    start_server: StartServer, claude: Claude
) -> None:
    server = await served(start_server, claude)
    counted = await sdk(server).messages.count_tokens(model="claude-x", messages=[user("hello")])
    assert counted.input_tokens == 42
    assert claude.requests == [{"model": "claude-x", "messages": [user("hello")]}]
    assert (await server.client.get("/v1/models")).json()["data"][0]["created"] > 0
    assert await server.services.model.window("claude-x") == 200_000


async def test_a_refusal_is_passed_on_in_either_shape(start_server: StartServer, claude: Claude) -> None:
    server = await served(start_server, claude, 400, 400)
    chat = await chatting.post(server, [user("x")])
    message = await post(server, {"messages": [user("x")]})
    assert (chat.status_code, message.status_code) == (400, 400)
    assert "prompt is wrong" in chat.json()["error"]["message"]
    assert message.json()["error"]["type"] == "invalid_request_error"
