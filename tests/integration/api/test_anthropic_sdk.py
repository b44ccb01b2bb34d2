"""Anthropic's API with its official SDK: plain and streamed answers, tools, thinking, errors and retries."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from tests.integration.api import chatting
from tests.integration.api.anthropic_chat import TOOLS, blocks_of, create, ours, sdk
from tests.integration.api.chatting import assistant, by_id, by_key, call, calls, heard, user
from tests.integration.api.conftest import Running, StartServer


async def test_a_plain_answer_is_stored_and_named(server: Running) -> None:
    answer = await create(sdk(server), [user("hello")], system="Be kind.")
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "end_turn")
    assert [block.text for block in answer.content] == ["You said: hello"]
    assert answer.usage.input_tokens == 3  # words of the context, as the script counts them
    assert answer.usage.output_tokens == 3
    assert heard(server) == [{"role": "system", "content": "Be kind."}, user("hello")]
    stored = await chatting.stored(server, ours(answer)["conversation_id"])
    assert [message.role for message in stored] == ["user", "assistant"]


async def test_a_stream_is_put_together_by_the_sdk(server: Running) -> None:
    async with sdk(server).messages.stream(
        model="m", max_tokens=100, messages=[user("one two three")]
    ) as stream:
        pieces = [piece async for piece in stream.text_stream]
        message = await stream.get_final_message()
    assert len(pieces) == 5
    assert "".join(pieces) == "You said: one two three"
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == 5
    assert message.usage.input_tokens == 3
    assert message.id.startswith("msg_")


@pytest.mark.parametrize("streams", [False, True])
async def test_tools_make_a_round_trip_in_one_conversation(start_server: StartServer, streams: bool) -> None:
    server = await start_server(
        ScriptedModel([{"content": "Let me look.", **calls("call_1", "call_2")}, "Both are wet."])
    )
    client = sdk(server)

    async def say(messages: list[Any]) -> Any:
        if not streams:
            return await create(client, messages, tools=TOOLS, tool_choice={"type": "any"})
        async with client.messages.stream(
            model="m", max_tokens=100, messages=messages, tools=TOOLS, tool_choice={"type": "any"}
        ) as stream:
            return await stream.get_final_message()

    first = await say([user("weather?")])
    assert first.stop_reason == "tool_use"
    assert blocks_of(first) == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": "call_2", "name": "weather", "input": {"city": "Paris"}},
    ]
    options = server.model.requests[0].options
    assert options["tool_choice"] == "required"
    assert options["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather in a city",
                "parameters": TOOLS[0]["input_schema"],
            },
        }
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"},
        {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "hail"}]},
        {"type": "text", "text": "Well?"},
    ]
    second = await say([user("weather?"), {"role": "assistant", "content": blocks_of(first)}, user(results)])
    assert blocks_of(second) == [{"type": "text", "text": "Both are wet."}]
    assert await chatting.conversations(server) == 1
    assert [message["role"] for message in heard(server)] == ["user", "assistant", "tool", "tool", "user"]
    assert [message["content"] for message in heard(server)[2:]] == ["rain", "hail", "Well?"]


async def test_a_conversation_goes_on_through_either_api(server: Running) -> None:
    first = await create(sdk(server), [user("hello")])
    messages = [user("hello"), assistant("You said: hello"), user("again")]
    second = await chatting.ask(server, messages)
    assert chatting.conversation_of(second) == ours(first)["conversation_id"]
    answer = chatting.text_of(second)
    third = await create(sdk(server), [*messages, assistant(answer), user([{"type": "text", "text": "3"}])])
    assert ours(third)["conversation_id"] == ours(first)["conversation_id"]


async def test_ids_and_keys_name_a_conversation(server: Running) -> None:
    client = sdk(server)
    first = await create(client, [user("one")], extra_headers=by_key("telegram:1"))
    second = await create(client, [user("two")], extra_headers=by_key("telegram:1"))
    third = await create(client, [user("three")], extra_headers=by_id(ours(first)["session_id"]))
    assert len({ours(each)["conversation_id"] for each in (first, second, third)}) == 1
    assert len(heard(server)) == 5


async def test_thinking_is_shown_to_a_client_that_asked_for_it(start_server: StartServer) -> None:
    line = {"reasoning_content": "Hm.", "content": "Four."}
    server = await start_server(ScriptedModel([line, line, line, line]))
    client = sdk(server)
    plain = await create(client, [user("2+2?")])
    assert [block["type"] for block in blocks_of(plain)] == ["text"]
    wants: Any = {"type": "enabled", "budget_tokens": 1024}
    asked = await create(client, [user("2+2??")], thinking=wants, max_tokens=2000)
    assert blocks_of(asked)[0] == {"type": "thinking", "thinking": "Hm.", "signature": ""}
    assert server.model.requests[-1].options["reasoning_effort"] == "low"
    async with client.messages.stream(
        model="m", max_tokens=2000, messages=[user("2+2???")], thinking=wants
    ) as stream:
        streamed = await stream.get_final_message()
    assert sorted(block["type"] for block in blocks_of(streamed)) == ["text", "thinking"]
    history = [user("2+2??"), {"role": "assistant", "content": blocks_of(asked)}, user("Sure?")]
    again = await create(client, history)
    assert ours(again)["conversation_id"] == ours(asked)["conversation_id"]


async def test_images_and_documents_reach_the_model_as_chat_parts(server: Running) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    document = {
        "type": "document",
        "title": "a.pdf",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
    }
    marked = {"type": "text", "text": "What?", "cache_control": {"type": "ephemeral"}}
    await create(sdk(server), [user([image, document, marked])])
    (message,) = heard(server)
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        {"type": "text", "text": "What?"},
    ]


async def test_the_options_are_translated(server: Running) -> None:
    options = {"temperature": 0.5, "top_p": 0.9, "stop_sequences": ["END"], "metadata": {"user_id": "u"}}
    await create(sdk(server), [user("x")], extra_body=options)
    assert server.model.requests[0].options == {
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END"],
        "stream": False,
        "max_completion_tokens": 100,
    }
    await create(sdk(server), [user("y")], max_tokens=128_000)
    assert "max_completion_tokens" not in server.model.requests[1].options


async def test_tokens_are_counted_and_nothing_is_kept(server: Running) -> None:
    client = sdk(server)
    small = await client.messages.count_tokens(model="m", messages=[user("hello")])
    large = await client.messages.count_tokens(
        model="m", messages=[user("hello " * 100)], system="Be kind.", tools=TOOLS
    )
    assert 0 < small.input_tokens < 50 < large.input_tokens
    assert server.model.calls == 0
    assert await chatting.conversations(server) == 0


async def test_models_are_listed_in_both_shapes(server: Running) -> None:
    (found,) = (await sdk(server).models.list()).data
    assert (found.type, found.id, found.display_name) == ("model", "scripted", "scripted")
    assert (await sdk(server).models.retrieve("scripted")).id == "scripted"
    with pytest.raises(anthropic.NotFoundError):
        await sdk(server).models.retrieve("unknown")
    assert (await server.client.get("/v1/models")).json()["object"] == "list"


@pytest.mark.parametrize("created", [1_767_225_600, 1_767_225_600_000, 10**30, "x", None])
async def test_a_model_is_listed_whatever_time_its_upstream_reports(
    server: Running, monkeypatch: pytest.MonkeyPatch, created: Any
) -> None:
    entry = {"id": "m", "object": "model", "created": created, "owned_by": "x"}

    async def models() -> list[dict[str, Any]]:
        return [entry]

    monkeypatch.setattr(server.services.model, "models", models)
    (found,) = (await sdk(server).models.list()).data
    assert (found.id, found.created_at.year) == ("m", 2026 if created == 1_767_225_600 else 1970)


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_both_forms_of_a_key_are_accepted(server: Running, header: str) -> None:
    client = await server.with_token(None)
    value = f"Bearer {server.admin_key}" if header == "authorization" else server.admin_key
    body = {"model": "m", "max_tokens": 9, "messages": [user("hi")]}
    assert (await client.post("/v1/messages", json=body, headers={header: value})).status_code == 200
    refused = await client.post("/v1/messages", json=body, headers={header: f"{value}x"})
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"


async def test_errors_become_the_exceptions_of_the_sdk(start_server: StartServer) -> None:
    refusals = [ModelError("no such model", status=404), ModelError("slow", status=429), ModelError("down")]
    server = await start_server(ScriptedModel(list(refusals)))
    client = sdk(server)
    with pytest.raises(anthropic.AuthenticationError):
        await create(sdk(server, "wrong"), [user("x")])
    with pytest.raises(anthropic.BadRequestError) as bad:
        await create(client, [user([{"type": "hologram"}])])
    body: Any = bad.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert "messages[0].content[0].type" in body["error"]["message"]
    assert body["request_id"] == bad.value.response.headers["request-id"]
    with pytest.raises(anthropic.NotFoundError):
        await create(client, [user("1")])
    with pytest.raises(anthropic.RateLimitError):
        await create(client, [user("2")])
    with pytest.raises(anthropic.InternalServerError):
        await create(client, [user("3")])


async def test_a_model_that_breaks_off_ends_the_stream_with_an_error(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([("Half an", ModelError("gone")), "Whole."]))
    client = sdk(server)
    with pytest.raises(anthropic.APIStatusError) as broken:
        async with client.messages.stream(model="m", max_tokens=9, messages=[user("x")]) as stream:
            await stream.get_final_message()
    body: Any = broken.value.body
    assert body["error"]["type"] == "api_error"
    assert body["holdfast"]["conversation_id"].startswith("conv_")
    stored = await chatting.stored(server, body["holdfast"]["conversation_id"])
    assert [(message.role, message.status.value) for message in stored] == [
        ("user", "completed"),
        ("assistant", "interrupted"),
    ]


async def test_the_sdk_retries_a_refusal_and_nothing_is_stored_twice(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([ModelError("down", status=503), "Up again."]))
    answer = await create(sdk(server, max_retries=2), [user("hello")], extra_headers=by_key("k"))
    assert answer.content[0].text == "Up again."
    stored = await chatting.stored(server, ours(answer)["conversation_id"])
    assert [message.role for message in stored] == ["user", "assistant"]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_with_an_idempotency_key_gets_the_same_message(
    start_server: StartServer, streams: bool
) -> None:
    server = await start_server(ScriptedModel([calls("call_1")]))
    client = sdk(server)

    async def say() -> Any:
        key = {"Idempotency-Key": "k1"}
        if not streams:
            return await create(client, [user("hello")], tools=TOOLS, extra_headers=key)
        async with client.messages.stream(
            model="m", max_tokens=100, messages=[user("hello")], tools=TOOLS, extra_headers=key
        ) as stream:
            return await stream.get_final_message()

    first, second = await say(), await say()
    assert first.to_dict() == second.to_dict()
    assert server.model.calls == 1


async def test_a_request_that_is_not_stored_is_only_answered(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel(["One.", calls("call_1")]))
    client = sdk(server)
    plain = await create(client, [user("1")], extra_body={"store": False})
    assert blocks_of(plain) == [{"type": "text", "text": "One."}]
    async with client.messages.stream(
        model="m", max_tokens=100, messages=[user("2")], tools=TOOLS, extra_body={"store": False}
    ) as stream:
        message = await stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert blocks_of(message)[0]["input"] == {"city": "Paris"}
    assert await chatting.conversations(server) == 0


async def test_arguments_that_are_no_object_still_reach_the_client(start_server: StartServer) -> None:
    broken = {"tool_calls": [call("call_1", arguments="{oops")]}
    server = await start_server(ScriptedModel([broken]))
    answer = await create(sdk(server), [user("x")], tools=TOOLS)
    assert blocks_of(answer)[0]["input"] == {"_arguments": "{oops"}
