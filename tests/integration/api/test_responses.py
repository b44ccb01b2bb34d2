"""`/v1/responses`: made, looked at, cancelled and deleted by the official SDK; refused when it must be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel

from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import Words, calls, conversations, heard, said, sdk, turns, until
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.responding import (
    FIELDS,
    PATH,
    events_of,
    finished,
    get,
    post,
    respond,
    same_response,
    spoken,
    streamed,
)

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


# --- made ---------------------------------------------------------------------------


async def test_a_text_is_answered_and_the_answer_names_where_it_is_kept(server: Running) -> None:
    raw = await sdk(server).responses.with_raw_response.create(
        model="m", input="hello", instructions="Be kind.", metadata={"colour": "blue"}, temperature=0.5
    )
    response = raw.parse()
    assert response.output_text == "You said: hello"
    assert (response.status, response.model, response.instructions) == ("completed", "m", "Be kind.")
    assert (response.metadata, response.temperature) == ({"colour": "blue"}, 0.5)
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.model_extra is not None
    ours = response.model_extra["holdfast"]
    assert set(ours) == FIELDS
    assert response.conversation is not None
    assert response.conversation.id == ours["conversation_id"] == raw.headers["x-holdfast-conversation-id"]
    assert raw.headers["x-holdfast-session-id"] == raw.headers["x-hermes-session-id"] == ours["session_id"]
    assert raw.headers["x-holdfast-turn-id"] == ours["turn_id"]
    assert heard(server) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
    ]
    assert server.model.requests[-1].options["temperature"] == 0.5
    (turn,) = await turns(server, ours["conversation_id"])
    assert (turn.id, turn.response_id) == (ours["turn_id"], response.id)


async def test_the_blocking_sdk_is_served_too(server: Running) -> None:
    def act() -> None:
        with openai.OpenAI(
            base_url=f"{server.url}/v1", api_key=server.admin_key, max_retries=0, timeout=60
        ) as client:
            first = client.responses.create(model="m", input="one")
            assert first.output_text == "You said: one"
            with client.responses.stream(model="m", input="two", previous_response_id=first.id) as stream:
                kinds = [event.type for event in stream]
                final = stream.get_final_response()
            assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
            assert final.output_text == "You said: two"
            assert client.responses.retrieve(final.id).output_text == "You said: two"
            with client.responses.stream(response_id=final.id, starting_after=5) as stream:
                assert min(event.sequence_number for event in stream) == 6
                assert stream.get_final_response().output_text == "You said: two"
            assert [item.type for item in client.responses.input_items.list(final.id)] == ["message"]
            client.responses.delete(final.id)
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(final.id)

    await asyncio.to_thread(act)


async def test_items_of_every_kind_reach_the_model_as_chat_messages(server: Running) -> None:
    await sdk(server).responses.create(
        model="m",
        input=[
            {"role": "developer", "content": "Answer in French."},
            {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "and this?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                ],
            },
        ],
    )
    messages = heard(server)
    assert [message["role"] for message in messages] == ["developer", "user", "assistant", "tool", "user"]
    assert messages[2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
    assert messages[3] == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    assert messages[4]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"},
    }


async def test_a_schema_reaches_the_model_and_the_sdk_parses_what_it_says(start_server: StartServer) -> None:
    class Event(BaseModel):
        name: str
        people: list[str]

    server = await start_server(ScriptedModel(['{"name": "tea", "people": ["Ada"]}']))
    response = await sdk(server).responses.parse(model="m", input="who comes?", text_format=Event)
    assert response.output_parsed == Event(name="tea", people=["Ada"])
    asked = server.model.requests[0].options["response_format"]
    assert (asked["type"], asked["json_schema"]["name"]) == ("json_schema", "Event")


@pytest.mark.parametrize("by", ["previous_response_id", "conversation"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_function_is_called_over_two_requests(
    start_server: StartServer, by: str, stream: bool
) -> None:
    server = await start_server(ScriptedModel([calls("call_1", "call_2"), "It is sunny."]))
    client = sdk(server)

    async def create(**fields: Any) -> Response:
        if not stream:
            answer: Response = await client.responses.create(model="m", tools=[TOOL], **fields)
            return answer
        async with client.responses.stream(model="m", tools=[TOOL], **fields) as events:
            return await events.get_final_response()

    first = await create(input="weather in Paris?")
    asked = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    assert [(item.call_id, item.name, item.arguments) for item in asked] == [
        ("call_1", "weather", '{"city": "Paris"}'),
        ("call_2", "weather", '{"city": "Paris"}'),
    ]
    assert first.conversation is not None
    named = {by: first.id if by == "previous_response_id" else first.conversation.id}
    outputs = [
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {
            "type": "function_call_output",
            "call_id": "call_2",
            "output": [{"type": "input_text", "text": "!"}],
        },
    ]
    second = await create(input=outputs, **named)
    assert second.output_text == "It is sunny."
    assert second.conversation == first.conversation
    assert [message["role"] for message in heard(server)] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in heard(server)[1]["tool_calls"]] == ["call_1", "call_2"]
    tools = server.model.requests[0].options["tools"]
    assert tools[0]["function"]["name"] == "weather"
    listed = [item async for item in client.responses.input_items.list(second.id, order="asc")]
    assert [item.type for item in listed] == ["function_call_output", "function_call_output"]


async def test_a_result_that_nobody_asked_for_is_refused_and_one_that_came_too_late_is_told_so(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), "never mind", "back"]))
    first = await respond(server, "weather?", tools=[TOOL])
    output = {"type": "function_call_output", "call_id": "call_9", "output": "sunny"}
    refused = await post(server, {"input": [output], "previous_response_id": first["id"]})
    assert refused.status_code == 400
    second = await respond(server, "leave it", previous_response_id=first["id"])
    output["call_id"] = "call_1"
    late = await post(server, {"input": [output], "previous_response_id": second["id"]})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "tool_call_closed")
    # Behind the response that asked for it, it is still welcome: in a conversation of its own.
    fork = await respond(server, [output], previous_response_id=first["id"])
    assert spoken(fork) == "back"
    assert fork["conversation"] != first["conversation"]
    output["call_id"] = "call_9"
    refused = await post(server, {"input": [output], "previous_response_id": first["id"]})
    assert refused.status_code == 400, refused.text


async def test_a_custom_tool_is_called_with_text(start_server: StartServer) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "shell", "arguments": json.dumps({"input": "ls -l"})},
    }
    server = await start_server(ScriptedModel([{"tool_calls": [call]}, "done"]))
    tools = [{"type": "custom", "name": "shell", "description": "Runs a command."}]
    first = await respond(server, "list", tools=tools)
    (item,) = first["output"]
    assert (item["type"], item["name"], item["input"], item["call_id"]) == (
        "custom_tool_call", "shell", "ls -l", "call_1",
    )  # fmt: skip
    assert (await get(server, first["id"]))["output"] == [item]
    output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "total 0"}
    second = await respond(server, [output], previous_response_id=first["id"], tools=tools)
    assert spoken(second) == "done"
    assert heard(server)[-1] == {"role": "tool", "tool_call_id": "call_1", "content": "total 0"}


async def test_a_model_that_stops_for_want_of_tokens_leaves_an_incomplete_response(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([{"content": "and so", "finish_reason": "length"}] * 2))
    whole = await respond(server, "go", max_output_tokens=2)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    same_response(await get(server, whole["id"]), whole)
    events = await streamed(server, {"input": "go", "max_output_tokens": 2})
    assert events[-1]["type"] == "response.incomplete"
    assert server.model.requests[0].options["max_completion_tokens"] == 2


# --- looked at ---------------------------------------------------------------------------


async def test_a_response_is_the_same_when_it_is_looked_at_later(server: Running) -> None:
    fields: dict[str, Any] = {
        "metadata": {"a": "b"},
        "tools": [TOOL],
        "reasoning": {"effort": "low"},
        "model": "m",
    }
    whole = await respond(server, "hello", **fields)
    same_response(await get(server, whole["id"]), whole)
    last = (await streamed(server, {"input": "hello", **fields}))[-1]["response"]
    same_response(await get(server, last["id"]), last)
    retrieved = await sdk(server).responses.retrieve(last["id"])
    assert retrieved.output_text == "You said: hello"


async def test_input_items_are_listed_newest_first_page_by_page(server: Running) -> None:
    client = sdk(server)
    texts = [f"message {n}" for n in range(7)]
    response = await client.responses.create(
        model="m", input=[{"role": "user", "content": text} for text in texts]
    )

    async def listed(**query: Any) -> list[str]:
        items = [item.to_dict() async for item in client.responses.input_items.list(response.id, **query)]
        return [item["content"][0]["text"] for item in items]  # type: ignore[index]

    assert await listed() == texts[::-1]
    assert await listed(order="asc") == texts
    assert await listed(limit=2) == texts[::-1]
    assert await listed(limit=3, order="asc") == texts
    page = await client.responses.input_items.list(response.id, limit=2, order="asc")
    assert (len(page.data), page.has_more) == (2, True)
    plain = (await server.client.get(f"{PATH}/{response.id}/input_items?limit=7")).json()
    assert plain["object"] == "list" and plain["has_more"] is False
    assert (plain["first_id"], plain["last_id"]) == (plain["data"][0]["id"], plain["data"][-1]["id"])
    assert len({item["id"] for item in plain["data"]}) == 7
    second = await client.responses.create(model="m", input="more", previous_response_id=response.id)
    assert [item["content"][0]["text"] for item in await _items(server, second.id)] == ["more"]


async def _items(server: Running, response_id: str) -> list[dict[str, Any]]:
    found = (await server.client.get(f"{PATH}/{response_id}/input_items")).json()["data"]
    assert isinstance(found, list)
    return found


async def test_a_page_that_cannot_be_meant_is_refused(server: Running) -> None:
    response = await respond(server)
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_nothing"):
        refused = await server.client.get(f"{PATH}/{response['id']}/input_items?{query}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, query.partition("=")[0])


async def test_a_deleted_response_is_gone_and_what_was_said_stays(server: Running) -> None:
    client = sdk(server)
    first = await client.responses.create(model="m", input="one")
    second = await client.responses.create(model="m", input="two", previous_response_id=first.id)
    plain = await server.client.delete(f"{PATH}/{second.id}")
    assert plain.json() == {"id": second.id, "object": "response", "deleted": True}
    for request in (
        server.client.get(f"{PATH}/{second.id}"),
        server.client.get(f"{PATH}/{second.id}?stream=true"),
        server.client.get(f"{PATH}/{second.id}/input_items"),
        server.client.post(f"{PATH}/{second.id}/cancel"),
        server.client.delete(f"{PATH}/{second.id}"),
        post(server, {"input": "three", "previous_response_id": second.id}),
    ):
        gone = await request
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")
    assert first.conversation is not None
    assert len(await said(server, first.conversation.id)) == 4
    third = await respond(server, "three", conversation=first.conversation.id)
    assert third["conversation"]["id"] == first.conversation.id


# --- cancelled ---------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
async def test_a_running_response_is_cancelled_and_what_it_said_is_kept(
    start_server: StartServer, background: bool
) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words, "next"]))
    body = {"input": "count", "model": "m", "stream": True, "background": background}
    words.say("one", " two")
    async with server.client.stream("POST", PATH, json=body) as answer:
        events = []
        async for event in events_of(answer):
            events.append(event)
            if event["type"] == "response.output_text.delta" and event["delta"] == " two":
                cancelled = await sdk(server).responses.cancel(events[0]["response"]["id"])
                assert cancelled.status == "cancelled"
                assert cancelled.output_text == "one two"
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["status"] == "cancelled"
    response_id = events[0]["response"]["id"]
    assert spoken(events[-1]["response"]) == "one two"
    later = await get(server, response_id)
    assert later == events[-1]["response"]
    assert later["output"][-1]["status"] == "incomplete"
    (turn,) = await turns(server, later["conversation"]["id"])
    assert turn.status is TurnStatus.CANCELLED
    assert await said(server, later["conversation"]["id"]) == ["user: count", "assistant: one two…"]
    assert spoken(await respond(server, "go on", previous_response_id=response_id)) == "next"


async def test_cancelling_what_is_done_changes_nothing(server: Running) -> None:
    whole = await respond(server)
    assert (await server.client.post(f"{PATH}/{whole['id']}/cancel")).json() == whole


async def test_deleting_a_running_response_stops_it(start_server: StartServer) -> None:
    words = Words()
    server = await start_server(ScriptedModel([words]))
    response = await respond(server, "count", background=True)
    assert response["status"] == "in_progress"
    await words.asked.wait()
    words.say("one")
    assert (await server.client.delete(f"{PATH}/{response['id']}")).status_code == 200
    (turn,) = await turns(server, response["conversation"]["id"])
    assert turn.status is TurnStatus.CANCELLED


# --- refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_refuses_before_its_first_word_is_an_error_of_the_request(
    start_server: StartServer, stream: bool
) -> None:
    refusal = ModelError("too much", status=413, said="too much", code="too_much")
    server = await start_server(ScriptedModel([refusal, "here"]))
    answer = await post(server, {"input": "hi", "model": "m", "stream": stream})
    assert answer.status_code == 413
    assert answer.json()["error"] == {
        "message": "too much", "type": "invalid_request_error", "param": None, "code": "too_much",
    }  # fmt: skip
    conversation = answer.headers["x-holdfast-conversation-id"]
    assert answer.json()["holdfast"]["conversation_id"] == conversation
    (turn,) = await turns(server, conversation)
    assert turn.status is TurnStatus.FAILED
    assert await said(server, conversation) == ["user: hi"]
    assert turn.response_id is not None
    failed = await get(server, turn.response_id)
    assert (failed["status"], failed["output"]) == ("failed", [])
    assert "too much" in failed["error"]["message"]
    again = await respond(server, "are you there?", previous_response_id=turn.response_id)
    assert spoken(again) == "here"


async def test_a_model_that_breaks_off_ends_the_stream_as_failed(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([("one two", ModelError("the line went dead"))]))
    events = await streamed(server, {"input": "count", "model": "m"})
    assert events[-1]["type"] == "response.failed"
    last = events[-1]["response"]
    assert last["error"]["code"] == "server_error" and "the line went dead" in last["error"]["message"]
    assert set(last["holdfast"]) == FIELDS
    assert spoken(last) == "one two"
    same_response(await get(server, last["id"]), last)
    (turn,) = await turns(server, last["conversation"]["id"])
    assert turn.status is TurnStatus.FAILED
    assert await said(server, last["conversation"]["id"]) == ["user: count", "assistant: one two…"]


async def test_the_model_s_own_error_is_told_in_the_background_too(start_server: StartServer) -> None:
    refusal = ModelError("slow down", status=429, said="slow down", code="rate_limit_exceeded")
    server = await start_server(ScriptedModel([refusal, refusal]), turns={"retry_model": False})
    response = await respond(server, "hi", background=True)
    failed = await finished(server, response["id"], "failed")
    assert "slow down" in failed["error"]["message"]
    events = await streamed(server, {"input": "hi", "background": True})
    assert [event["type"] for event in events] == [
        "response.created", "response.in_progress", "response.failed",
    ]  # fmt: skip


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 7}, "input"),
    ({"input": {"role": "user"}}, "input"),
    ({"input": ["hello"]}, "input[0]"),
    ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"type": "no_such_call", "id": "ws_1"}]}, "input[0].type"),
    ({"input": [{"type": 7}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": 3, "output": ""}]}, "input[0].call_id"),
    ({"input": [{"role": "developer", "content": "only this"}]}, "input"),
    ({"model": 7}, "model"),
    ({"instructions": ["x"]}, "instructions"),
    ({"stream": "yes"}, "stream"),
    ({"store": 1}, "store"),
    ({"background": "no"}, "background"),
    ({"background": True, "store": False}, "background"),
    ({"previous_response_id": 7}, "previous_response_id"),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
    ({"conversation": 7}, "conversation"),
    ({"conversation": {}}, "conversation.id"),
    ({"conversation": ""}, "conversation"),
    ({"conversation": "c" * 5000}, "conversation"),
    ({"previous_response_id": "r" * 5000}, "previous_response_id"),
    ({"previous_response_id": ""}, "previous_response_id"),
    ({"metadata": "x"}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"include": "x"}, "include"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
    (
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
        "tools[0].tools[0].name",
    ),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tool_choice": "always"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
    ({"parallel_tool_calls": "x"}, "parallel_tool_calls"),
    ({"text": "x"}, "text"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "1"}, "max_output_tokens"),
    ({"max_tool_calls": -1}, "max_tool_calls"),
    ({"reasoning": "hard"}, "reasoning"),
    ({"reasoning": {"effort": 1}}, "reasoning.effort"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": []}, "top_p"),
    ({"top_logprobs": "x"}, "top_logprobs"),
    ({"user": 1}, "user"),
    ({"safety_identifier": 1}, "safety_identifier"),
    ({"service_tier": 1}, "service_tier"),
    ({"prompt_cache_key": 1}, "prompt_cache_key"),
    ({"truncation": "some"}, "truncation"),
    ({"stream_options": 1}, "stream_options"),
    ({"context_management": 1}, "context_management"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"messages": []}, "messages"),
    ({"n": 2}, "n"),
]


async def test_what_cannot_be_used_is_refused_by_name_and_nothing_is_stored(server: Running) -> None:
    for fields, param in WRONG:
        body = fields if "input" in fields or not fields else {"input": "hi", **fields}
        refused = await post(server, body)
        assert refused.status_code == 400, (fields, refused.text)
        error = refused.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["param"], error["type"]) == (param, "invalid_request_error"), (fields, error)
        assert error["message"].startswith(param)
    assert await conversations(server) == 0
    assert server.model.calls == 0


NO_REQUESTS = (
    b"", b"{", b"[]", b'"x"', b"\xff", b'{"input": "\\u0000"}', b'{"input": "\\ud800"}', b"[" * 100_000,
    b'{"input": ' + b"[" * 3000 + b"]" * 3000 + b"}",
)  # fmt: skip


async def test_a_body_that_is_no_request_is_refused(server: Running) -> None:
    for body in NO_REQUESTS:
        refused = await server.client.post(PATH, content=body)
        assert refused.status_code == 400, (body[:40], refused.text)
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
    assert await conversations(server) == 0


async def test_an_id_that_never_was_is_not_found(server: Running) -> None:
    for response_id in ("resp_" + "0" * 32, "resp_x", "conv_1", "%00", "x" * 3000, "%ff", "😀"):
        for method, path in (
            ("GET", ""),
            ("GET", "?stream=true"),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
        ):
            gone = await server.client.request(method, f"{PATH}/{response_id}{path}")
            assert gone.status_code == 404, (response_id, gone.text)
            assert set(gone.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_place_in_a_stream_that_cannot_be_is_refused(server: Running) -> None:
    response = await respond(server)
    wrong: list[tuple[str, dict[str, str]]] = [
        ("stream=perhaps", {}),
        ("stream=true&starting_after=-1", {}),
        ("stream=true&starting_after=x", {}),
        ("stream=true&starting_after=" + "9" * 30, {}),
        ("stream=true", {"last-event-id": "x"}),
        ("stream=true", {"last-event-id": "9" * 30}),
    ]
    for query, headers in wrong:
        refused = await server.client.get(f"{PATH}/{response['id']}?{query}", headers=headers)
        assert refused.status_code == 400, (query, headers, refused.text)


async def test_a_revoked_or_missing_key_gets_nothing(server: Running) -> None:
    response = await respond(server)
    stranger = await server.with_token(None)
    for request in (stranger.get(f"{PATH}/{response['id']}"), stranger.post(PATH, json={"input": "hi"})):
        assert (await request).status_code == 401


# --- not kept ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_with_store_false_nothing_at_all_is_stored(server: Running, stream: bool) -> None:
    before = await server.store.event_bounds()
    client = sdk(server)
    if stream:
        async with client.responses.stream(model="m", input="hello", store=False) as events:
            response: Response = await events.get_final_response()
    else:
        response = await client.responses.create(
            model="m", input="hello", store=False, instructions="Be brief."
        )
        assert heard(server)[0] == {"role": "system", "content": "Be brief."}
    assert response.output_text == "You said: hello"
    assert (response.status, response.conversation) == ("completed", None)
    assert response.usage is not None
    assert await conversations(server) == 0
    assert await server.store.event_bounds() == before
    assert (await server.client.get(f"{PATH}/{response.id}")).status_code == 404
    assert (await post(server, {"input": "x", "previous_response_id": response.id})).status_code == 404


async def test_store_false_with_a_conversation_is_kept_there(server: Running) -> None:
    first = await respond(server, "one")
    named = {"conversation": first["conversation"]["id"]}
    second = await respond(server, "two", store=False, **named)
    assert second["store"] is False
    assert second["conversation"] == first["conversation"]
    third = await respond(server, "three", {"x-holdfast-session-key": "cli:ada"}, store=False)
    assert await said(server, third["conversation"]["id"]) == ["user: three", "assistant: You said: three"]
    assert len(await said(server, named["conversation"])) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_with_store_false_the_model_s_refusal_is_the_answer(
    start_server: StartServer, stream: bool
) -> None:
    server = await start_server(ScriptedModel([ModelError("no", status=429, said="slow down")]))
    answer = await post(server, {"input": "hi", "store": False, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["message"]) == (429, "slow down")


async def test_with_store_false_a_model_that_breaks_off_has_failed(start_server: StartServer) -> None:
    broken = ("one two", ModelError("the line went dead"))
    cut = {"content": "one two", "finish_reason": None}
    server = await start_server(ScriptedModel([broken, broken, cut, cut]))
    for _ in range(2):
        events = await streamed(server, {"input": "count", "store": False})
        assert events[-1]["type"] == "response.failed"
        assert spoken(events[-1]["response"]) == "one two"
        whole = await post(server, {"input": "count", "store": False})
        assert whole.status_code == 502


async def test_with_store_false_a_client_that_leaves_ends_the_model_s_work(start_server: StartServer) -> None:
    words = Words()
    ended = asyncio.Event()

    async def watched(messages: Any, purpose: Any) -> Any:
        async def spoken() -> Any:
            try:
                async for word in words(messages, purpose):
                    yield word
            finally:
                ended.set()

        return spoken()

    server = await start_server(ScriptedModel([watched]))
    body = {"input": "count", "store": False, "stream": True}
    words.say("one")
    async with server.client.stream("POST", PATH, json=body) as answer:
        async for event in events_of(answer):
            if event["type"] == "response.output_text.delta":
                break
    await until(ended.is_set, "the model was let go")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_of_a_response_is_the_same_second_when_it_is_read_later(
    server: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    commit = server.store.commit_reply

    async def slowly(*arguments: Any, **named: Any) -> int:
        await asyncio.sleep(1.1)
        return await commit(*arguments, **named)

    monkeypatch.setattr(server.store, "commit_reply", slowly)
    if stream:
        received = (await streamed(server, {"input": "hello"}))[-1]["response"]
    else:
        received = (await post(server, {"input": "hello"})).json()
    assert received["completed_at"] == (await get(server, received["id"]))["completed_at"]
