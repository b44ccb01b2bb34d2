"""The small local model behind the server. Skipped, saying why, where it is not installed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from openai.types.responses import ResponseCompletedEvent, ResponseIncompleteEvent

from holdfast.models.local import NAME, LocalModel, missing
from tests.integration.api.chatting import by_key, conversation_of, sdk, stored, user
from tests.integration.api.conftest import Running, StartServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@pytest.fixture
async def server(start_server: StartServer) -> AsyncIterator[Running]:
    model = LocalModel()
    yield await start_server(model)
    await model.close()


async def test_a_real_model_answers_streams_and_is_kept(server: Running) -> None:
    client = sdk(server).with_options(timeout=60)
    model = (await client.models.list()).data[0].id
    first = await client.chat.completions.create(
        model=model, messages=[user("Say hello.")], max_tokens=8, temperature=0, extra_headers=by_key("k")
    )
    assert first.choices[0].message.content
    assert first.usage is not None
    assert first.usage.completion_tokens > 0
    stream = await client.chat.completions.create(
        model=model,
        messages=[user("Say it again.")],
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=by_key("k"),
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > first.usage.prompt_tokens, "the whole conversation was sent"
    kept = await stored(server, conversation_of(first))
    assert [message.role for message in kept] == ["user", "assistant", "user", "assistant"]
    assert kept[3].content()["content"] == text


async def test_a_real_model_answers_without_being_kept(server: Running) -> None:
    client = sdk(server).with_options(timeout=60)
    answer = await client.chat.completions.create(
        model="", messages=[user("Say hello.")], max_tokens=4, store=False
    )
    assert answer.choices[0].message.content
    assert (await server.store.statistics(None)).conversations == 0


@pytest.mark.parametrize("name", ["gpt-4o-mini", "claude-opus-5-5"])
async def test_every_name_is_answered_and_the_answer_says_by_whom(server: Running, name: str) -> None:
    client = sdk(server).with_options(timeout=60, max_retries=0)
    asked = [user("Say hello.")]
    whole = await client.chat.completions.create(model=name, messages=asked, max_tokens=2)
    stream = await client.chat.completions.create(model=name, messages=asked, max_tokens=2, stream=True)
    response = await client.responses.create(model=name, input="Say hello.", max_output_tokens=16)
    events = await client.responses.create(model=name, input="Say hello.", max_output_tokens=16, stream=True)
    named = {whole.model, response.model, *[chunk.model async for chunk in stream]}
    completed = [event async for event in events][-1]
    assert isinstance(completed, ResponseCompletedEvent | ResponseIncompleteEvent)
    named.add(completed.response.model)
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.admin_key) as socket:
        async with socket.responses.connect() as opened:
            await opened.response.create(model=name, input="Say hello.", max_output_tokens=16)
            async for event in opened:
                if isinstance(event, ResponseCompletedEvent | ResponseIncompleteEvent):
                    named.add(event.response.model)
                    break
    async with AsyncAnthropic(base_url=server.url, auth_token=server.admin_key, max_retries=0) as claude:
        message = await claude.messages.create(
            model=name, max_tokens=2, messages=[{"role": "user", "content": "Say hello."}]
        )
        named.add(message.model)
        async with claude.messages.stream(
            model=name, max_tokens=2, messages=[{"role": "user", "content": "Say hello."}]
        ) as streamed:
            named.add((await streamed.get_final_message()).model)
        counted = await claude.messages.count_tokens(
            model=name, messages=[{"role": "user", "content": "Say hello."}]
        )
    assert counted.input_tokens
    assert named == {NAME}
