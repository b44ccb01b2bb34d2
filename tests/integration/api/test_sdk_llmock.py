"""In front of `llmock`, an independent mock of OpenAI's API that misbehaves on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from llmock.pytest_plugin import LLMock

from holdfast.domain.turns import TurnStatus
from holdfast.models.upstream import Upstream
from tests.integration.api.chatting import (
    TOOLS,
    by_key,
    conversation_of,
    conversations,
    result,
    said,
    sdk,
    stored,
    turns,
    user,
)
from tests.integration.api.conftest import Running, StartServer

MODEL = "gpt-4o-mini"


@pytest.fixture
async def server(
    request: pytest.FixtureRequest, start_server: StartServer, llmock: LLMock
) -> AsyncIterator[Running]:
    """Its parameter: the seconds until a silent model is given up."""
    patience = getattr(request, "param", 60)
    url = llmock.base_url("openai")
    model = Upstream(url, "sk-for-llmock", MODEL, timeout_seconds=patience, backoff=(0, 0))
    yield await start_server(model)
    await model.close()


def sent(llmock: LLMock) -> list[Any]:
    """The bodies of the chat requests it got."""
    return [record.body for record in llmock.requests if record.path.endswith("/chat/completions")]


async def test_a_conversation_of_plain_and_streamed_turns_is_kept(server: Running, llmock: LLMock) -> None:
    llmock.reply("I am a mock.").reply("Still a mock.").reply("Always.")
    client = sdk(server)
    first = await client.chat.completions.create(
        model=MODEL, messages=[user("who are you?")], extra_headers=by_key("k")
    )
    assert first.choices[0].message.content == "I am a mock."
    assert first.usage is not None
    stream = await client.chat.completions.create(
        model=MODEL, messages=[user("really?")], stream=True, extra_headers=by_key("k")
    )
    assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "Still a mock."
    await client.chat.completions.create(model=MODEL, messages=[user("for ever?")], extra_headers=by_key("k"))
    assert [message["content"] for message in sent(llmock)[-1]["messages"]] == [
        "who are you?",
        "I am a mock.",
        "really?",
        "Still a mock.",
        "for ever?",
    ]
    assert len(await stored(server, conversation_of(first))) == 6


async def test_a_tool_it_calls_by_itself_is_answered_over_two_requests(
    server: Running, llmock: LLMock
) -> None:
    client = sdk(server)
    messages: list[Any] = [user("what is the weather in Paris?")]
    for _ in range(4):
        answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += [result(each.id, "rain") for each in message.tool_calls]
    assert message.content
    assert len(messages) > 2, "it called the tool"
    assert await conversations(server) == 1
    assert [m.role for m in await stored(server, conversation_of(answer))] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


async def test_its_refusals_are_passed_on_and_the_sdk_waits_as_long_as_it_asks(
    server: Running, llmock: LLMock
) -> None:
    llmock.rate_limit(retry_after=20)
    with pytest.raises(openai.RateLimitError) as limited:
        await sdk(server).chat.completions.create(model=MODEL, messages=[user("hi")])
    assert limited.value.response.headers["retry-after"] == "20"
    llmock.context_overflow()
    with pytest.raises(openai.BadRequestError) as overflow:
        await sdk(server).chat.completions.create(model=MODEL, messages=[user("hi")])
    assert overflow.value.code == "context_length_exceeded"
    llmock.fail(401)
    with pytest.raises(openai.InternalServerError) as auth:
        await sdk(server).chat.completions.create(model=MODEL, messages=[user("hi")])
    assert auth.value.code == "upstream_auth"


async def test_an_outage_that_ends_is_one_turn_to_the_sdk(server: Running, llmock: LLMock) -> None:
    llmock.fail(500, times=2).reply("Back.")
    answer = await sdk(server, max_retries=3).chat.completions.create(model=MODEL, messages=[user("hi")])
    assert answer.choices[0].message.content == "Back."
    assert await said(server, conversation_of(answer)) == ["user: hi", "assistant: Back."]
    (turn,) = await turns(server, conversation_of(answer))
    assert (turn.status, turn.attempt) == (TurnStatus.COMPLETED, 3)


@pytest.mark.parametrize(
    ("server", "breaks"),
    [(60, "disconnect"), (60, "truncate"), (60, "corrupt"), (3, "stall")],
    indirect=["server"],
)
async def test_a_stream_it_breaks_in_any_way_is_never_passed_off_as_whole(
    server: Running, llmock: LLMock, breaks: str
) -> None:
    llmock.reply("one two three four five six seven eight nine ten")
    getattr(llmock, breaks)(after_chunks=3)
    with pytest.raises(openai.APIError):
        stream = await sdk(server).chat.completions.create(model=MODEL, messages=[user("count")], stream=True)
        [chunk async for chunk in stream]
    conversation = stream.response.headers["x-holdfast-conversation-id"]
    (turn,) = await turns(server, conversation)
    assert turn.status is TurnStatus.FAILED
    kept = await said(server, conversation)
    assert kept[0] == "user: count"
    assert kept[1].startswith("assistant: one")
    assert kept[1].endswith("…")
