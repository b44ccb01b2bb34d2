"""What an adapter stores is a conversation like any other: listed, searched, exported, limited, backed up and
deleted by the same operations, for every adapter.

Those of the ADK run in its own environment, by `make peers`.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app import Holdfast
from holdfast.domain.pages import SessionFilter
from holdfast.domain.quotas import Quotas
from holdfast.errors import QuotaExceeded
from holdfast.store.values import Retention
from tests.contract.steps import limit

Say = Callable[[str], Awaitable[object]]
Read = Callable[[], Awaitable[list[str]]]
Opens = Callable[[Holdfast], tuple[Say, Read]]


def openai_agents(hf: Holdfast) -> tuple[Say, Read]:
    from holdfast.adapters.openai_agents import HoldfastSession

    session: Any = HoldfastSession("ada", hf)

    async def read() -> list[str]:
        return [item["content"] for item in await session.get_items()]

    return lambda text: session.add_items([{"role": "user", "content": text}]), read


def langgraph(hf: Holdfast) -> tuple[Say, Read]:
    from langchain_core.messages import HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph

    from holdfast.adapters.langgraph import HoldfastSaver

    builder: Any = StateGraph(MessagesState)
    builder.add_node("listen", lambda state: {})
    builder.add_edge(START, "listen")
    graph = builder.compile(checkpointer=HoldfastSaver(hf))
    thread: Any = {"configurable": {"thread_id": "ada"}}

    async def read() -> list[str]:
        return [each.content for each in (await graph.aget_state(thread)).values.get("messages", [])]

    return lambda text: graph.ainvoke({"messages": [HumanMessage(text)]}, thread), read


def claude_agent_sdk(hf: Holdfast) -> tuple[Say, Read]:
    from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore

    store, key = HoldfastSessionStore(hf), {"project_key": "p", "session_id": "ada"}

    def say(text: str) -> Awaitable[object]:
        entry: Any = {"type": "user", "uuid": text, "message": {"role": "user", "content": text}}
        return store.append(key, [entry])  # type: ignore[arg-type]

    async def read() -> list[str]:
        found: Any = await store.load(key) or []  # type: ignore[arg-type]
        return [entry["message"]["content"] for entry in found]

    return say, read


def pydantic_ai(hf: Holdfast) -> tuple[Say, Read]:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    from holdfast.adapters.pydantic_ai import HoldfastHistory

    history = HoldfastHistory("ada", hf)

    async def read() -> list[str]:
        found: Any = await history.messages()
        return [message.parts[0].content for message in found]

    return lambda text: history.append([ModelRequest(parts=[UserPromptPart(content=text)])]), read


def google_adk(hf: Holdfast) -> tuple[Say, Read]:
    from google.adk.events.event import Event
    from google.genai import types

    from holdfast.adapters.google_adk import HoldfastSessionService

    service = HoldfastSessionService(hf)
    who: Any = {"app_name": "app", "user_id": "ada", "session_id": "ada"}

    async def say(text: str) -> None:
        session = await service.get_session(**who) or await service.create_session(**who)
        content = types.Content(role="user", parts=[types.Part(text=text)])
        await service.append_event(session, Event(author="user", content=content))

    async def read() -> list[str]:
        session: Any = await service.get_session(**who)
        return [event.content.parts[0].text for event in session.events] if session else []

    return say, read


ADAPTERS: dict[str, Opens] = {
    "openai_agents": openai_agents,
    "langgraph": langgraph,
    "claude_agent_sdk": claude_agent_sdk,
    "pydantic_ai": pydantic_ai,
    "google_adk": google_adk,
}
HERE = "google_adk" if find_spec("google.adk") else "the others"
NEEDED = {"google_adk": HERE == "google_adk"}


@pytest.fixture(params=[name for name in ADAPTERS if NEEDED.get(name, HERE != "google_adk")])
def opens(request: pytest.FixtureRequest) -> Opens:
    return ADAPTERS[request.param]


@pytest.fixture
async def said(hf: Holdfast, opens: Opens) -> AsyncIterator[tuple[Say, Read]]:
    say, read = opens(hf)
    await say("the anchor holds")
    await say("the tide turns")
    assert await read() == ["the anchor holds", "the tide turns"]
    yield say, read


async def only(hf: Holdfast) -> Any:
    (session,) = (await hf.store.sessions(SessionFilter(owner=hf.owner))).items
    return session


async def test_it_is_listed_searched_and_exported(hf: Holdfast, said: tuple[Say, Read]) -> None:
    session = await only(hf)
    assert session.key and session.key.startswith(f"{session.source}:") and session.message_count == 2
    (found,) = await hf.store.search(hf.owner, "anchor")
    assert found.message.conversation_id == session.conversation_id
    lines = [json.loads(line) async for line in hf.export(session.key)]
    texts = [line["body"]["content"] for line in lines if line["record"] == "message"]
    assert texts == ["the anchor holds", "the tide turns"]


async def test_it_is_its_owners_alone(hf: Holdfast, said: tuple[Say, Read], opens: Opens, url: str) -> None:
    async with holdfast.open(url, owner="bob") as bobs:
        _, read = opens(bobs)
        assert await read() == [] and await bobs.store.search("bob", "anchor") == []


async def test_a_quota_refuses_and_changes_nothing(hf: Holdfast, said: tuple[Say, Read]) -> None:
    say, read = said
    limit(hf.store, Quotas(conversation_bytes=300))
    with pytest.raises(QuotaExceeded):
        await say("x" * 400)
    assert await read() == ["the anchor holds", "the tide turns"]


async def test_a_deleted_conversation_is_empty_for_the_framework(
    hf: Holdfast, said: tuple[Say, Read], opens: Opens
) -> None:
    session = await only(hf)
    await hf.delete(session.key)
    assert await opens(hf)[1]() == []
    assert await hf.store.check() == [] and await hf.store.search(hf.owner, "anchor") == []


async def test_retention_removes_all_of_it(hf: Holdfast, said: tuple[Say, Read], opens: Opens) -> None:
    await hf.end_session(hf.owner, (await only(hf)).id, "closed")
    month = timedelta(days=30)
    pruned = await hf.store.prune(Retention(month, month, month, conversations=timedelta(0)))
    assert pruned.conversations == 1
    assert await opens(hf)[1]() == [] and await hf.store.check() == []


async def test_a_backup_holds_it(said: tuple[Say, Read], hf: Holdfast, opens: Opens, tmp_path: Path) -> None:
    if not hf.store.location.endswith(".db"):
        return  # a PostgreSQL store is backed up by the server's own tools
    copy = tmp_path / "copy.db"
    await hf.store.backup(copy)
    async with holdfast.open(copy) as other:
        assert await opens(other)[1]() == ["the anchor holds", "the tide turns"]


async def test_two_nodes_write_one_session_in_order(
    said: tuple[Say, Read], hf: Holdfast, opens: Opens, url: str
) -> None:
    async with holdfast.open(url) as other:
        mine, read = said
        theirs, _ = opens(other)
        for number in range(3):
            await mine(f"mine {number}")
            await theirs(f"theirs {number}")
        texts = await read()
        assert texts[2:] == [f"{who} {number}" for number in range(3) for who in ("mine", "theirs")]
