"""The small local model behind the server. Skipped, saying why, where it is not installed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from holdfast.models.local import LocalModel, missing
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


async def test_a_model_that_is_not_served_is_refused_and_named(server: Running) -> None:
    client = sdk(server).with_options(max_retries=0)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-4o", messages=[user("Say hello.")])
    assert caught.value.code == "model_not_found"
    assert "SmolLM2-135M-Instruct" in str(caught.value)
