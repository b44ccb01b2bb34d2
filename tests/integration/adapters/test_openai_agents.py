"""`HoldfastSession` in the OpenAI Agents SDK: items come back as they were, and are a conversation."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from agents import Agent, Runner, function_tool
from agents.items import TResponseInputItem
from agents.memory import Session, SQLiteSession
from agents.memory.session import is_openai_responses_compaction_aware_session
from agents.testing import ScriptedModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import holdfast
from holdfast.adapters.openai_agents import HoldfastSession
from holdfast.app import Holdfast
from holdfast.domain.conversations import Address
from holdfast.errors import BadInput
from holdfast.store.values import SessionFilter
from tests.integration.adapters.pages import run_page

USER = {"role": "user", "content": "what is the weather in Oslo?"}
ITEMS: list[dict[str, Any]] = [
    USER,
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "look it up"}]},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "weather",
        "arguments": '{"city":"Oslo"}',
    },
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "It is sunny.", "annotations": []}],
    },
    {"role": "user", "content": "odd: \x00 \ud800"},
    {"type": "unknown_kind", "number": float("inf")},
]


def items(*given: dict[str, Any]) -> list[TResponseInputItem]:
    return cast(list[TResponseInputItem], [*given])


def said(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="msg_1", content=[content], role="assistant", status="completed", type="message"
    )


async def test_items_come_back_exactly_as_they_were(hf: Holdfast, url: str) -> None:
    session = HoldfastSession("ada", hf)
    assert isinstance(session, Session)
    assert await session.get_items() == []
    await session.add_items(items(*ITEMS))
    assert await session.get_items() == ITEMS
    assert await session.get_items(2) == ITEMS[-2:]
    assert await HoldfastSession("ada", hf, session_settings={"limit": 3}).get_items() == ITEMS[-3:]
    async with holdfast.open(url) as another:
        assert await HoldfastSession("ada", another).get_items() == ITEMS


async def test_a_session_is_a_conversation_like_any_other(hf: Holdfast) -> None:
    await HoldfastSession("ada", hf).add_items(items(*ITEMS[:5]))
    (listed,) = (await hf.store.sessions(SessionFilter(hf.owner))).items
    assert (listed.key, listed.source, listed.attached) == ("openai-agents:ada", "openai-agents", False)
    assert [found.message.role for found in await hf.store.search(hf.owner, "sunny")] != []
    live = await hf.session(key="openai-agents:ada")
    roles = [message["role"] for message in await live.context()]
    assert roles == ["user", "assistant", "assistant", "tool", "assistant"]
    assert b"rs_1" not in (await hf.store.context(hf.owner, live.id)).json()
    await hf.store.delete_conversation(hf.owner, listed.conversation_id)
    assert await HoldfastSession("ada", hf).get_items() == []


async def test_a_deleted_session_begins_anew(hf: Holdfast) -> None:
    session = HoldfastSession("ada", hf)
    await session.add_items(items(USER))
    found = await hf.store.resolve(hf.owner, Address(key="openai-agents:ada"))
    await hf.store.delete_conversation(hf.owner, found.conversation.id)
    await session.add_items(items(USER))
    assert await session.get_items() == [USER]


async def test_popped_and_cleared_items_stay_readable(hf: Holdfast) -> None:
    session = HoldfastSession("ada", hf)
    assert await session.pop_item() is None
    await session.clear_session()
    await session.add_items(items(*ITEMS[:3]))
    assert await session.pop_item() == ITEMS[2]
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    live = await hf.session(key="openai-agents:ada")
    assert len(await live.messages("conversation")) == 3


async def test_what_other_clients_wrote_is_items_too(hf: Holdfast) -> None:
    live = await hf.session(key="cli:ada", attached=False)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    async with live.turn("hello") as turn:
        await turn.append({"role": "assistant", "content": None, "tool_calls": [call]})
        await turn.append({"role": "tool", "tool_call_id": "c1", "content": "found"})
        await turn.append("Hello Ada")
    session = HoldfastSession(live.conversation_id, hf)
    assert await session.get_items() == [
        {"role": "user", "content": "hello"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"role": "assistant", "content": "Hello Ada"},
    ]


async def test_two_processes_on_one_session_lose_nothing(hf: Holdfast, url: str) -> None:
    async with holdfast.open(url) as another:
        sessions = [HoldfastSession("ada", hf), HoldfastSession("ada", another)]
        pairs = [
            ({"role": "user", "content": f"{i}"}, {"role": "user", "content": f"{i}+"}) for i in range(20)
        ]
        await asyncio.gather(*(sessions[i % 2].add_items(items(*pair)) for i, pair in enumerate(pairs)))
        found = [cast(Any, item)["content"] for item in await sessions[0].get_items()]
    assert sorted(found) == sorted(item["content"] for pair in pairs for item in pair)
    for first, second in pairs:  # a batch is never torn apart
        assert found.index(second["content"]) == found.index(first["content"]) + 1


async def test_an_agent_with_a_tool_remembers(url: str) -> None:
    @function_tool
    def weather(city: str) -> str:
        return f"sunny in {city}"

    call = ResponseFunctionToolCall(
        call_id="c1", name="weather", arguments='{"city":"Oslo"}', type="function_call"
    )
    model = ScriptedModel(steps=[[call], [said("It is sunny.")], [said("You asked about Oslo.")]])
    agent = Agent(name="helper", model=model, tools=[weather])
    session = HoldfastSession("ada", url)  # a URL: one node for this process
    first = await Runner.run(agent, "weather in Oslo?", session=session)
    second = await Runner.run(agent, "what did I ask?", session=session)
    assert (first.final_output, second.final_output) == ("It is sunny.", "You asked about Oslo.")
    kinds = [cast(Any, item).get("type", "message") for item in await session.get_items()]
    assert kinds == ["message", "function_call", "function_call_output", "message", "message", "message"]
    assert len(model.calls[-1].input) == 5


async def test_a_full_context_is_compacted_by_the_nodes_model(tmp_path: Path) -> None:
    async def model(messages: list[dict[str, Any]], purpose: str) -> str:
        return "they counted"

    async with holdfast.open(tmp_path / "store.db", model=model) as hf:
        session = HoldfastSession("ada", hf)
        assert is_openai_responses_compaction_aware_session(session)
        await session.run_compaction({"force": True})
        for i in range(40):
            await session.add_items(items({"role": "user", "content": f"{i} " + "x" * 200}))
        await session.run_compaction()
        assert len(await session.get_items()) == 40, "not over the threshold"
        await session.run_compaction({"force": True})
        compacted = [cast(Any, item)["content"] for item in await session.get_items()]
        assert len(compacted) < 40 and any("they counted" in text for text in compacted)
        assert compacted[-1].startswith("39 ")


async def test_a_suffix_is_replaced_in_one_step_or_not_at_all(hf: Holdfast) -> None:
    session = HoldfastSession("ada", hf)
    await session.add_items(items(*ITEMS[:4]))
    stale = await session._get_compaction_snapshot(3)
    assert stale is not None and not stale.complete and stale.items == ITEMS[1:4]
    await session.add_items(items(USER))
    assert await stale.replace_suffix(0, items(ITEMS[4])) is False
    snapshot = await session._get_compaction_snapshot(5)
    assert snapshot is not None and snapshot.complete
    assert await snapshot.replace_suffix(1, items(ITEMS[4])) is True
    assert await session.get_items() == [USER, ITEMS[4]]


async def test_mistakes_are_named(hf: Holdfast) -> None:
    with pytest.raises(BadInput, match="owner"):
        HoldfastSession("ada", hf, owner="bob")
    with pytest.raises(TypeError):
        await HoldfastSession("ada", hf).add_items(items({"role": "user", "content": object()}))
    closed = HoldfastSession("ada", hf)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        await closed.get_items()


async def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await SQLiteSession("user_123", "conversations.db").add_items(items(*ITEMS[:2]))
    agent = Agent(name="helper", model=ScriptedModel(steps=[[said("Hello.")]]))
    names = await run_page("openai-agents.md", Runner=Runner, SQLiteSession=SQLiteSession, agent=agent)
    assert names["result"].final_output == "Hello."
    assert (await names["session"].get_items())[-2:] == ITEMS[:2]
