"""The official Python SDK with only its base URL changed: blocking and asynchronous, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import conversation_of, conversations, said, sdk, stored, user
from tests.integration.api.conftest import Running, StartServer


async def test_a_script_that_reads_its_environment_works_unchanged(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", server.admin_key)

    def script() -> list[str]:
        client = openai.OpenAI(max_retries=0, timeout=60)
        messages: list[Any] = [{"role": "system", "content": "be kind"}]
        said_back = []
        for text in ("hello", "how are you?", "goodbye"):
            messages.append(user(text))
            answer = client.chat.completions.create(model="gpt-5", messages=messages)
            messages.append(answer.choices[0].message)
            said_back.append(answer.choices[0].message.content or "")
        client.close()
        return said_back

    assert await asyncio.to_thread(script) == [
        "You said: hello",
        "You said: how are you?",
        "You said: goodbye",
    ]
    assert await conversations(server) == 1
    assert (await server.store.statistics(None)).messages == 6


async def test_a_blocking_stream_is_a_conversation_too(server: Running) -> None:
    def script() -> tuple[str, Any]:
        client = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key=server.admin_key, max_retries=0, timeout=60
        )
        with client.chat.completions.create(model="m", messages=[user("hello there")], stream=True) as stream:
            chunks = list(stream)
        client.close()
        assert chunks[-1].model_extra is not None
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        return text, chunks[-1].model_extra

    text, last = await asyncio.to_thread(script)
    assert text == "You said: hello there"
    assert await said(server, conversation_of(last)) == [
        "user: hello there",
        "assistant: You said: hello there",
    ]


async def test_the_sdks_stream_helper_and_raw_responses_work(server: Running) -> None:
    client = sdk(server)
    async with client.chat.completions.stream(model="m", messages=[user("one two")]) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == "You said: one two"
    async with client.chat.completions.with_streaming_response.create(
        model="m", messages=[user("raw")]
    ) as response:
        assert response.headers["x-holdfast-session-id"].startswith("sess_")
        assert conversation_of(await response.parse()).startswith("conv_")


async def test_a_message_object_of_the_sdk_is_its_own_history(start_server: StartServer) -> None:
    """With every null field that the SDK's dump carries."""
    server = await start_server(ScriptedModel(["hello", "fine"]))
    client = sdk(server)
    first = await client.chat.completions.create(model="m", messages=[user("hi")])
    dumped: Any = first.choices[0].message.model_dump()
    assert None in dumped.values()
    second = await client.chat.completions.create(
        model="m", messages=[user("hi"), dumped, user("how are you?")]
    )
    assert conversation_of(second) == conversation_of(first)
    assert len(await stored(server, conversation_of(first))) == 4


async def test_models_are_listed_and_the_requests_own_is_passed_on(server: Running) -> None:
    client = sdk(server)
    assert [model.id async for model in client.models.list()] == ["scripted"]
    answer = await client.chat.completions.create(model="another", messages=[user("hi")])
    assert server.model.requests[-1].model == "another"
    assert answer.model == "another"


async def test_many_clients_at_once_each_have_their_own(server: Running) -> None:
    client = sdk(server)

    async def talk(name: str) -> str:
        messages: list[Any] = []
        for number in range(3):
            messages.append(user(f"{name} {number}"))
            stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in stream])
            assert text == f"You said: {name} {number}"
            messages.append({"role": "assistant", "content": text})
        return stream.response.headers["x-holdfast-conversation-id"]

    found = await asyncio.gather(*(talk(f"client {n}") for n in range(12)))
    assert len(set(found)) == 12
    assert await conversations(server) == 12


async def test_the_sdks_time_out_and_its_retry_are_one_turn(start_server: StartServer) -> None:
    """A slow model, an impatient client: its second try joins the first."""
    server = await start_server(ScriptedModel(["one two three four five"], delay=0.1))
    client = sdk(server, max_retries=40).with_options(timeout=0.3)
    answer = await client.chat.completions.create(model="m", messages=[user("count")])
    assert answer.choices[0].message.content == "one two three four five"
    assert server.model.calls == 1
    assert len(await stored(server, conversation_of(answer))) == 2


async def test_the_sdk_gets_usage_where_openai_would_send_it(server: Running) -> None:
    client = sdk(server)
    whole = await client.chat.completions.create(model="m", messages=[user("one two")])
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    for store in (True, False):
        without = await client.chat.completions.create(
            model="m", messages=[user("one two")], stream=True, store=store
        )
        assert [chunk.usage async for chunk in without if chunk.usage] == []
        asked = await client.chat.completions.create(
            model="m",
            messages=[user("one two")],
            stream=True,
            store=store,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in asked]
        assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1].choices == []
        assert chunks[-1].usage == whole.usage
