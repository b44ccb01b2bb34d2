"""A model that is silent for longer than everybody's patience, under the official SDKs.

The pauses are real: keepalives and time-outs are those of a server with the defaults. The
SDKs for Node, and agent programs, are in tests/agents.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest

from holdfast.models.scripted import ScriptedModel
from holdfast.server.sse import KEEPALIVE_SECONDS
from tests.integration.api import anthropic_chat, chatting
from tests.integration.api.chatting import user
from tests.integration.api.conftest import Running, StartServer

LATE = 8.0
WORDS = ["Late", " but", " whole."]


async def words() -> AsyncIterator[str]:
    """With a pause before the first word and in the middle."""
    for n, word in enumerate(WORDS):
        if n < 2:
            await asyncio.sleep(LATE)
        yield word


async def chat(client: openai.AsyncOpenAI, key: str) -> list[str]:
    stream = await client.chat.completions.create(
        model="m", messages=[user("x")], stream=True, extra_headers={"X-Holdfast-Session-Key": key}
    )
    return [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]


async def plain_chat(client: openai.AsyncOpenAI, key: str) -> list[str]:
    answer = await client.chat.completions.create(
        model="m", messages=[user("x")], extra_headers={"X-Holdfast-Session-Key": key}
    )
    return [answer.choices[0].message.content or ""]


def responses(**options: Any) -> Callable[[openai.AsyncOpenAI, str], Awaitable[list[str]]]:
    async def ask(client: openai.AsyncOpenAI, key: str) -> list[str]:
        stream = await client.responses.create(
            model="m", input="x", stream=True, extra_headers={"X-Holdfast-Session-Key": key}, **options
        )
        events = [event async for event in stream]
        assert events[-1].type == "response.completed"
        return [event.delta for event in events if event.type == "response.output_text.delta"]

    return ask


async def messages(client: anthropic.AsyncAnthropic, key: str) -> list[str]:
    async with client.messages.stream(
        model="m", max_tokens=100, messages=[user("x")], extra_headers={"X-Holdfast-Session-Key": key}
    ) as stream:
        return [text async for text in stream.text_stream]


@pytest.mark.slow
async def test_no_client_loses_a_word_of_a_model_that_is_late(start_server: StartServer) -> None:
    """A keepalive was an event without data for OpenAI's SDK, which ended with a JSONDecodeError."""
    assert LATE > KEEPALIVE_SECONDS
    server: Running = await start_server(ScriptedModel(lambda _, __: words()))
    of_openai, of_anthropic = chatting.sdk(server), anthropic_chat.sdk(server)
    asked = {
        "chat": chat(of_openai, "k:chat"),
        "plain": plain_chat(of_openai, "k:plain"),
        "responses": responses()(of_openai, "k:responses"),
        "background": responses(background=True)(of_openai, "k:background"),
        "messages": messages(of_anthropic, "k:messages"),
    }
    heard = dict(zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True), strict=True))
    assert {
        name: said if isinstance(said, BaseException) else "".join(said) for name, said in heard.items()
    } == dict.fromkeys(asked, "".join(WORDS))
    assert server.model.calls == len(asked)


@pytest.mark.slow
async def test_nor_where_nothing_is_kept(start_server: StartServer) -> None:
    server = await start_server(ScriptedModel(lambda _, __: words()))
    stream = await chatting.sdk(server).responses.create(
        model="m", input="x", stream=True, store=False, extra_headers={"X-Holdfast-Store": "never"}
    )
    told = [event async for event in stream]
    assert "".join(event.delta for event in told if event.type == "response.output_text.delta") == "".join(
        WORDS
    )
