import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from holdfast.errors import ModelError
from holdfast.models.base import Model, ModelRequest, Purpose
from holdfast.models.reply import Reply, fold
from holdfast.models.scripted import ScriptedModel


def asking(text: Any = "hi", purpose: Purpose = Purpose.TURN) -> ModelRequest:
    return ModelRequest(msgspec.json.encode([{"role": "user", "content": text}]), purpose=purpose)


async def reply(model: Model, request: ModelRequest | None = None) -> Reply:
    return fold([chunk async for chunk in model.stream(request or asking())])


async def test_without_a_script_it_repeats_what_was_said() -> None:
    model = ScriptedModel()
    assert (await reply(model, asking("my name is Ada"))).message["content"] == "You said: my name is Ada"
    parts = [{"type": "text", "text": "in parts"}, {"type": "image_url"}]
    assert (await reply(model, asking(parts))).message["content"] == "You said: in parts "
    assert (await reply(model, ModelRequest(b"[]"))).message["content"] == "You said nothing."


async def test_it_says_its_script_and_keeps_what_it_was_asked() -> None:
    model = ScriptedModel(["one", "two"])
    requests = [asking("a"), asking("b", Purpose.SUMMARY)]
    assert [(await reply(model, request)).message["content"] for request in requests] == ["one", "two"]
    assert model.requests == requests
    assert model.calls == 2
    with pytest.raises(ModelError, match="the script has 2 answers, and this is request 3"):
        await reply(model)


@pytest.mark.parametrize("text", ["", "one", "two words", " leading\n\nand  trailing \n", "ä\u2003ö"])
async def test_words_come_one_by_one_and_make_the_text(text: str) -> None:
    chunks = [chunk async for chunk in ScriptedModel([text]).stream(asking())]
    assert "".join(chunk.adds.get("content", "") for chunk in chunks) == text
    assert len(chunks) == 3 + len(text.split())
    assert chunks[-2].value["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1].only_usage
    assert chunks[-1].value["usage"]["completion_tokens"] == len(text.split())
    assert msgspec.json.decode(chunks[0].raw) == chunks[0].value


async def test_callables_see_the_messages_and_the_purpose() -> None:
    async def later(messages: list[dict[str, Any]], purpose: Purpose) -> str:
        await asyncio.sleep(0)
        return f"{purpose} {messages[-1]['content']}"

    model = ScriptedModel([lambda messages, purpose: f"{purpose}: {len(messages)}", later])
    assert (await reply(model)).message["content"] == "turn: 1"
    assert (await reply(model, asking("x", Purpose.FLUSH))).message["content"] == "flush x"


async def test_tool_calls_are_streamed_as_servers_do() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    model = ScriptedModel([{"content": "let me see", "tool_calls": [call], "mood": "busy"}])
    answer = await reply(model)
    assert answer.message == {
        "role": "assistant",
        "content": "let me see",
        "mood": "busy",
        "tool_calls": [call],
    }
    assert answer.finish_reason == "tool_calls"
    assert (
        await reply(ScriptedModel([{"content": "x", "finish_reason": "length"}]))
    ).finish_reason == "length"


async def test_it_can_fail_at_once_and_half_way() -> None:
    model = ScriptedModel([ModelError("no", 503), ("two words", ModelError("gone"))])
    with pytest.raises(ModelError, match="no"):
        await reply(model)
    heard = ""
    with pytest.raises(ModelError, match="gone"):
        async for chunk in model.stream(asking()):
            heard += chunk.adds.get("content", "")
    assert heard == "two words"


async def test_a_test_can_hold_it_in_the_middle() -> None:
    gate = asyncio.Event()

    async def words() -> AsyncIterator[str]:
        yield "before "
        await gate.wait()
        yield "after"

    stream = ScriptedModel([words()]).stream(asking())
    assert [(await anext(stream)).adds for _ in range(2)] == [{}, {"content": "before "}]
    gate.set()
    assert (await anext(stream)).adds == {"content": "after"}
    assert [chunk.adds async for chunk in stream] == [{}, {}]


async def test_it_has_a_name_and_a_window() -> None:
    model = ScriptedModel(window=100, name="parrot")
    assert await model.window() == 100
    assert [entry["id"] for entry in await model.models()] == ["parrot"]
    assert model.description == "parrot (a script, not a model)"
    assert (await reply(model)).model == "parrot"
    await model.close()
