"""The `openai-agents` SDK with its session in our conversations: over chat completions and over responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)

from holdfast.domain.conversations import Address
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.chatting import heard, sdk
from tests.integration.api.conftest import Running, StartServer

MODELS = [OpenAIChatCompletionsModel, OpenAIResponsesModel]


@function_tool
def tide(place: str) -> str:
    """How high the tide is."""
    return f"the tide at {place} is high"


def clever(messages: list[dict[str, Any]], purpose: Any) -> Any:
    """Looks when it is asked for the tide, knows a name it was told, and else says back what was said."""
    last = messages[-1]
    text = str(last.get("content"))
    if last["role"] == "tool":
        return f"I looked: {text}"
    if "tide" in text:
        function = {"name": "tide", "arguments": '{"place": "Roscoff"}'}
        return {"tool_calls": [{"id": f"call_{len(messages)}", "type": "function", "function": function}]}
    if "who am I" in text:
        told = [str(message.get("content")) for message in messages if message["role"] == "user"]
        return "You are Ada." if any("Ada" in each for each in told) else "I do not know."
    return f"You said: {text}"


def plainly(history: list[Any], new: list[Any]) -> list[Any]:
    """Replies as the SDK's chat converter takes them. Of an item of such a session (OpenAI's and ours are
    alike) the SDK removes the id, but leaves the status, and then does not know what it is."""
    for item in history:
        if item.get("type") == "message" and item["role"] == "assistant":
            item["content"] = "".join(part["text"] for part in item["content"])
            for name in set(item) - {"type", "role", "content"}:
                del item[name]
    return [*history, *new]


def config(kind: type[Model]) -> RunConfig:
    return RunConfig(
        tracing_disabled=True,
        session_input_callback=plainly if kind is OpenAIChatCompletionsModel else None,
    )


@pytest.fixture
async def clever_server(start_server: StartServer) -> Running:
    return await start_server(ScriptedModel(clever))


@pytest.fixture
async def client(clever_server: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(clever_server, await clever_server.key("ada")) as client:
        yield client


def agent_of(kind: type[Model], client: openai.AsyncOpenAI) -> Agent[Any]:
    model = kind(model="scripted", openai_client=client)  # type: ignore[call-arg]
    return Agent(name="keeper", instructions="Be brief.", model=model, tools=[tide])


def told(items: list[Any]) -> list[str]:
    """What each item says, in a few words."""
    found = []
    for item in items:
        match item["type"]:
            case "message":
                found.append(f"{item['role']}: " + "".join(part["text"] for part in item["content"]))
            case "function_call":
                found.append(f"{item['name']}({item['arguments']})")
            case "function_call_output":
                found.append(item["output"])
    return found


@pytest.mark.parametrize("kind", MODELS)
async def test_a_second_run_remembers_the_first(
    clever_server: Running, client: openai.AsyncOpenAI, kind: type[Model]
) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    agent = agent_of(kind, client)
    first = await Runner.run(agent, "my name is Ada", session=session, run_config=config(kind))
    assert first.final_output == "You said: my name is Ada"
    second = await Runner.run(agent, "who am I?", session=session, run_config=config(kind))
    assert second.final_output == "You are Ada."
    assert told(await session.get_items()) == [
        "user: my name is Ada",
        "assistant: You said: my name is Ada",
        "user: who am I?",
        "assistant: You are Ada.",
    ]
    sent = [(message["role"], message["content"]) for message in heard(clever_server)]
    assert sent[0] == ("system", "Be brief.")
    assert [text for _, text in sent[1:]] == ["my name is Ada", "You said: my name is Ada", "who am I?"]


@pytest.mark.parametrize("kind", MODELS)
async def test_what_a_tool_said_is_part_of_the_session(
    clever_server: Running, client: openai.AsyncOpenAI, kind: type[Model]
) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    agent = agent_of(kind, client)
    ran = await Runner.run(agent, "how is the tide?", session=session, run_config=config(kind))
    assert ran.final_output == "I looked: the tide at Roscoff is high"
    said = [
        "user: how is the tide?",
        'tide({"place": "Roscoff"})',
        "the tide at Roscoff is high",
        "assistant: I looked: the tide at Roscoff is high",
    ]
    assert told(await session.get_items()) == said
    await Runner.run(agent, "thanks", session=session, run_config=config(kind))
    sent = heard(clever_server)
    assert [message["role"] for message in sent] == [
        *("system", "user", "assistant", "tool", "assistant"),
        "user",
    ]
    assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"]
    assert told(await session.get_items()) == [*said, "user: thanks", "assistant: You said: thanks"]


@pytest.mark.parametrize("kind", MODELS)
async def test_a_streamed_run_is_kept_too(client: openai.AsyncOpenAI, kind: type[Model]) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    streaming = Runner.run_streamed(
        agent_of(kind, client), "how is the tide?", session=session, run_config=config(kind)
    )
    events = [event.type async for event in streaming.stream_events()]
    assert events.count("raw_response_event") > 5
    assert streaming.final_output == "I looked: the tide at Roscoff is high"
    assert len(await session.get_items()) == 4


async def test_a_session_outlives_its_server(start_server: StartServer, client: openai.AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await Runner.run(
        agent_of(OpenAIChatCompletionsModel, client),
        "my name is Ada",
        session=session,
        run_config=config(OpenAIChatCompletionsModel),
    )
    other = await start_server(ScriptedModel(clever))  # on the same store
    async with sdk(other, client.api_key) as elsewhere:
        same = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=elsewhere)
        ran = await Runner.run(
            agent_of(OpenAIResponsesModel, elsewhere),
            "who am I?",
            session=same,
            run_config=config(OpenAIResponsesModel),
        )
    assert ran.final_output == "You are Ada."


async def test_items_are_added_popped_and_cleared(clever_server: Running, client: openai.AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await session.add_items(
        [
            {"role": "user", "content": "look twice"},
            {"type": "function_call", "call_id": "a", "name": "tide", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "tide", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "high"},
            {"type": "function_call_output", "call_id": "b", "output": "low"},
            {"role": "assistant", "content": "high and low"},
        ]
    )
    whole = ["user: look twice", "tide({})", "tide({})", "high", "low", "assistant: high and low"]
    assert told(await session.get_items()) == whole
    assert told(await session.get_items(limit=2)) == whole[-2:]
    assert told(await session.get_items(limit=3)) == whole[-3:]
    popped = []
    while (item := await session.pop_item()) is not None:
        popped += told([item])
        assert told(await session.get_items()) == whole[: len(whole) - len(popped)]
    assert popped == whole[::-1]
    assert await session.get_items() == []
    name = session.session_id
    await session.clear_session()
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(name)
    await session.add_items([{"role": "user", "content": "anew"}])
    assert session.session_id != name
    assert told(await session.get_items()) == ["user: anew"]


async def test_a_long_session_comes_back_whole_and_in_order(client: openai.AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await session.add_items([{"role": "user", "content": str(number)} for number in range(120)])
    assert told(await session.get_items()) == [f"user: {number}" for number in range(120)]
    assert told(await session.get_items(limit=50)) == [f"user: {number}" for number in range(70, 120)]


async def test_another_owners_session_is_not_there(
    clever_server: Running, client: openai.AsyncOpenAI
) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await session.add_items([{"role": "user", "content": "secret"}])
    async with sdk(clever_server, await clever_server.key("bob")) as stranger:
        theirs = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=stranger)
        for act in (theirs.get_items, theirs.pop_item, theirs.clear_session):
            with pytest.raises(openai.NotFoundError):
                await act()
        with pytest.raises(openai.NotFoundError):
            await theirs.add_items([{"role": "user", "content": "mine"}])
    assert told(await session.get_items()) == ["user: secret"]
    assert (
        await clever_server.store.resolve(None, Address(id=session.session_id))
    ).conversation.last_seq == 1
