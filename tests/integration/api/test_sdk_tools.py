"""Client-side tools over two requests, as the official SDK uses them: plain, streamed, parallel, late."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from holdfast.domain.conversations import Address
from holdfast.errors import ModelError
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import (
    TOOLS,
    ask,
    by_id,
    by_key,
    call,
    calls,
    conversation_of,
    conversations,
    heard,
    once,
    post,
    result,
    said,
    sdk,
    session_of,
    stored,
    text_of,
    turns,
    user,
)
from tests.integration.api.conftest import StartServer


async def test_a_tool_is_called_and_its_result_is_brought_by_the_next_request(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), "It rains in Paris."]))
    client = sdk(server)
    first = await client.chat.completions.create(
        model="m", messages=[user("weather in Paris?")], tools=TOOLS, extra_headers=by_key("k")
    )
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (wanted,) = choice.message.tool_calls
    assert wanted.type == "function"
    assert (wanted.id, wanted.function.name) == ("call_1", "weather")
    assert server.model.requests[0].options["tools"] == TOOLS
    history = [user("weather in Paris?"), choice.message.model_dump(), result("call_1", "rain")]
    second = await client.chat.completions.create(
        model="m", messages=history, tools=TOOLS, extra_headers=by_key("k")
    )
    assert second.choices[0].message.content == "It rains in Paris."
    assert conversation_of(second) == conversation_of(first)
    assert [message["role"] for message in heard(server)] == ["user", "assistant", "tool"]
    assert heard(server)[2] == result("call_1", "rain")
    assert [m.role for m in await stored(server, conversation_of(first))] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [turn.status.value for turn in await turns(server, conversation_of(first))] == ["completed"] * 2


async def test_a_client_may_bring_nothing_but_the_result(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), "Rain."]))
    first = await ask(server, "weather?", by_key("k"))
    second = await ask(server, [result("call_1", "rain")], by_id(session_of(first)))
    assert text_of(second) == "Rain."
    assert [message["role"] for message in heard(server)] == ["user", "assistant", "tool"]


async def test_a_streamed_call_is_put_together_by_the_sdk_and_stored_whole(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1", "call_2"), "Both are wet."]))
    client = sdk(server)
    async with client.chat.completions.stream(
        model="m", messages=[user("weather?")], tools=TOOLS, extra_headers=by_key("k")
    ) as stream:
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert message.tool_calls is not None
    assert [each.id for each in message.tool_calls] == ["call_1", "call_2"]
    history: list[Any] = [
        user("weather?"),
        message.model_dump(exclude_none=True),
        result("call_2", "hail"),
        result("call_1", "rain"),
    ]
    async with client.chat.completions.stream(
        model="m", messages=history, tools=TOOLS, extra_headers=by_key("k")
    ) as stream:
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "Both are wet."
    place = await server.store.resolve(None, Address(key="k"))
    kept = [m.content() for m in await stored(server, place.conversation.id)]
    assert kept[1]["tool_calls"] == [call("call_1"), call("call_2")]
    assert [message.get("tool_call_id") for message in kept[2:4]] == ["call_2", "call_1"]
    assert await conversations(server) == 1


async def test_without_a_name_a_tool_loop_is_one_conversation(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), calls("call_2"), "Done."]))
    client = sdk(server)
    messages: list[Any] = [{"role": "system", "content": "use tools"}, user("go")]
    for _ in range(3):
        answer = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        for each in message.tool_calls or ():
            messages.append(result(each.id, f"result of {each.id}"))
    assert messages[-1].content == "Done."
    assert await conversations(server) == 1
    assert len(await stored(server, conversation_of(answer))) == 6


async def test_a_call_without_a_result_is_told_so_to_the_model_and_not_stored(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([calls("call_1", "call_2"), "Never mind.", "Fine."]))
    first = await ask(server, "weather?", by_key("k"))
    await ask(server, [result("call_1", "rain"), user("forget the other")], by_key("k"))
    roles = [message["role"] for message in heard(server)]
    assert roles.count("tool") == 2
    given = {m["tool_call_id"]: m["content"] for m in heard(server) if m["role"] == "tool"}
    assert given["call_1"] == "rain"
    assert "no result was given" in given["call_2"].lower()
    assert not any("No result" in line for line in await said(server, conversation_of(first)))
    await ask(server, "go on", by_key("k"))
    assert [m["role"] for m in heard(server)][:4] == ["user", "assistant", "tool", "tool"]


async def test_a_user_message_in_place_of_every_result_closes_the_calls(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), "Alright."]))
    await ask(server, "weather?", by_key("k"))
    await ask(server, "never mind", by_key("k"))
    assert [message["role"] for message in heard(server)] == ["user", "assistant", "tool", "user"]
    assert "no result was given" in heard(server)[2]["content"].lower()


async def test_a_late_result_is_refused_as_closed_and_the_sdk_does_not_retry(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), "Alright."]))
    first = await ask(server, "weather?", by_key("k"))
    await ask(server, "never mind", by_key("k"))
    client = sdk(server, max_retries=3)
    with pytest.raises(openai.ConflictError) as refused:
        await client.chat.completions.create(
            model="m", messages=[result("call_1", "rain")], extra_headers=by_key("k")
        )
    assert refused.value.code == "tool_call_closed"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert refused.value.request.headers["x-stainless-retry-count"] == "0"
    assert len(await stored(server, conversation_of(first))) == 4
    assert server.model.calls == 2


async def test_a_result_for_a_call_nobody_made_is_refused(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel(["hello"]))
    first = await ask(server, "hi", by_key("k"))
    response = await post(server, [result("call_unknown", "rain")], by_key("k"))
    assert response.status_code == 400
    assert "call_unknown" in response.json()["error"]["message"]
    assert len(await stored(server, conversation_of(first))) == 2


async def test_results_that_are_sent_again_with_their_key_get_the_same_answer(
    start_server: StartServer,
) -> None:
    """The calls they answer are closed by then: it is the key that tells."""
    server = await start_server(ScriptedModel([calls("call_1"), "Rain."]))
    await ask(server, "weather?", by_key("k"))
    headers = once("r1", **by_key("k"))
    first = await ask(server, [result("call_1", "rain")], headers)
    again = await ask(server, [result("call_1", "rain")], headers)
    assert again["holdfast"] == first["holdfast"]
    assert text_of(again) == text_of(first) == "Rain."
    assert server.model.calls == 2


async def test_results_that_the_sdk_sends_again_after_a_failure_take_the_turn_up(
    start_server: StartServer,
) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), ModelError("down", 500), "Rain."]))
    await ask(server, "weather?", by_key("k"))
    client = sdk(server, max_retries=2)
    answer = await client.chat.completions.create(
        model="m", messages=[result("call_1", "rain")], extra_headers=by_key("k")
    )
    assert answer.choices[0].message.content == "Rain."
    assert [m.role for m in await stored(server, conversation_of(answer))] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_a_history_with_its_tool_calls_is_answered_again(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), "Rain.", "It rains."]))
    first = await ask(server, "weather?", by_key("k"))
    history = [user("weather?"), first["choices"][0]["message"], result("call_1", "rain")]
    second = await ask(server, history, by_key("k"))
    again = await ask(server, history, by_key("k"))
    assert conversation_of(again) == conversation_of(second) == conversation_of(first)
    assert text_of(again) == "It rains."
    assert [m["role"] for m in heard(server)] == ["user", "assistant", "tool"]


async def test_another_result_than_the_stored_one_is_refused(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel([calls("call_1"), "Rain."]))
    first = await ask(server, "weather?", by_key("k"))
    message = first["choices"][0]["message"]
    await ask(server, [user("weather?"), message, result("call_1", "rain")], by_key("k"))
    response = await post(server, [user("weather?"), message, result("call_1", "sun")], by_key("k"))
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "tool_call_closed"
    assert (await said(server, conversation_of(first)))[-1] == "assistant: Rain."
