"""`HoldfastHistory`: the message history of a Pydantic AI agent, with the library's own test models."""

from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from holdfast.adapters.pydantic_ai import HoldfastHistory
from holdfast.app import Holdfast
from tests.integration.adapters.pages import run_page


def dumped(messages: list[ModelMessage]) -> object:
    return ModelMessagesTypeAdapter.dump_python(messages, mode="json")


def with_tool() -> Agent[None, str]:
    agent = Agent(TestModel(custom_output_text="It is sunny."), system_prompt="You are a sailor.")

    @agent.tool_plain
    def weather(city: str) -> str:
        return f"sunny in {city}"

    return agent


async def test_a_run_comes_back_exactly_and_is_readable(hf: Holdfast) -> None:
    history = HoldfastHistory("ada", hf)
    assert await history.messages() == []
    result = await with_tool().run("What is the weather?")
    await history.append(result.new_messages())
    await history.append(result.new_messages())  # sent again after an unknown outcome: stored once
    again = HoldfastHistory("ada", hf)
    assert dumped(await again.messages()) == dumped(result.all_messages())
    live = await hf.session(key="pydantic-ai:ada", attached=False)
    roles = [message["role"] for message in await live.context()]
    assert roles == ["user", "assistant", "tool", "assistant"]
    (found, *_) = await hf.store.search(hf.owner, "sunny")
    assert found.message.conversation_id == live.conversation_id


async def test_the_next_run_sees_the_history(hf: Holdfast) -> None:
    seen: list[int] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(len(messages))
        return ModelResponse(parts=[TextPart(f"reply {len(seen)}")])

    agent, history = Agent(FunctionModel(reply)), HoldfastHistory("ada", hf)
    for text in ("one", "two"):
        result = await agent.run(text, message_history=await history.messages())
        await history.append(result.new_messages())
    assert seen == [1, 3]
    await history.clear()
    assert await history.messages() == []
    live = await hf.session(key="pydantic-ai:ada", attached=False)
    assert len(await live.messages("conversation")) == 4


async def test_messages_of_another_client_are_shown(hf: Holdfast) -> None:
    live = await hf.session(key="cli:ada", attached=False)
    await live.append([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}])
    shown = await HoldfastHistory(live.conversation_id, hf).messages()
    assert [type(each).__name__ for each in shown] == ["ModelRequest", "ModelResponse"]


def test_blocking(url: str) -> None:
    history = HoldfastHistory("ada", url)
    result = with_tool().run_sync("What is the weather?")
    history.append_sync(result.new_messages())
    assert dumped(history.messages_sync()) == dumped(result.all_messages())
    history.clear_sync()
    assert history.messages_sync() == []


async def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = await run_page(
        "pydantic-ai.md", agent=with_tool(), old=(await with_tool().run("old")).all_messages()
    )
    assert len(await names["history"].messages()) > 4
