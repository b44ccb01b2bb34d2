"""A program that writes numbered steps through an adapter and prints each number once it is acknowledged.

    python -m tests.reliability.adapter_writer ADAPTER URL

For each number on its standard input it forks a writer that begins there, after the imports, which take
longer than all the rest. It prints the writer's process id, then what the writer acknowledges, and `ended`
once the writer has been killed.

Also reads them back, for the test: `reading(adapter, url)`.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import holdfast
from holdfast.app import Holdfast
from holdfast.domain.conversations import Address
from holdfast.domain.messages import Message

Write = Callable[[int], Awaitable[object]]
Read = Callable[[int | None], Awaitable[list[int]]]
"""Returns the numbers of the newest steps, so many at most, or of all, in order."""
NAMES = 8
"""Names in the state of an ADK session: a step sets one of them."""


async def said(hf: Holdfast, key: str, newest: int) -> list[int]:
    """The numbers that the newest messages of a conversation begin with."""
    found = await hf.store.in_context(hf.owner, Address(key=key), limit=newest)
    parts = [] if found is None else [cast(Message, part) for part in found.parts]
    return [int(part.content()["content"].split()[0]) for part in parts]


def openai_agents(hf: Holdfast) -> tuple[Write, Read]:
    from holdfast.adapters.openai_agents import HoldfastSession

    session = HoldfastSession("thread", hf)

    async def write(number: int) -> None:
        item = {"type": "function_call", "call_id": f"c{number}", "name": "step", "arguments": "{}"}
        await session.add_items([cast(Any, item)])

    async def read(newest: int | None) -> list[int]:
        return [int(cast(Any, item)["call_id"][1:]) for item in await session.get_items(newest)]

    return write, read


def langgraph(hf: Holdfast) -> tuple[Write, Read]:
    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.base import empty_checkpoint

    from holdfast.adapters.langgraph import HoldfastSaver

    saver = HoldfastSaver(hf)
    # With its namespace: a page of all namespaces is sorted anew, which makes a long thread slow to read.
    given: Any = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}

    def window(number: int) -> list[HumanMessage]:
        """The messages that a step has: large enough to be stored in parts, which the next step shares."""
        last = range(max(number - 9, 0), number + 1)
        return [HumanMessage(f"{each} {'word ' * 60}", id=f"{each}") for each in last]

    async def write(number: int) -> None:
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"]["messages"] = window(number)
        stored = await saver.aput(given, checkpoint, {"source": "loop", "step": number}, {})
        await saver.aput_writes(stored, [("done", number)], "task")

    async def read(newest: int | None) -> list[int]:
        found = [each async for each in saver.alist(given, limit=newest)]
        for each in found:
            assert each.checkpoint["channel_values"]["messages"] == window(each.metadata["step"])
        # A step whose writes are missing was cut off before it was acknowledged.
        steps = [write[2] for each in reversed(found) for write in each.pending_writes or ()]
        texts = await said(hf, "langgraph:thread", len(steps) + 1)
        assert texts == [*range(texts[0], texts[-1] + 1)] if texts else not steps
        assert not steps or texts[-1] in (steps[-1], steps[-1] + 1)
        return steps

    return write, read


def claude_agent_sdk(hf: Holdfast) -> tuple[Write, Read]:
    from holdfast.adapters.claude_agent_sdk import HoldfastSessionStore

    store = HoldfastSessionStore(hf)
    key: Any = {"project_key": "project", "session_id": "thread"}

    async def write(number: int) -> None:
        said = {"role": "user", "content": f"{number}"}
        entry: Any = {"type": "user", "uuid": f"{number}", "message": said}
        await store.append(key, [entry])
        await store.append(key, [entry])  # a batch sent again is stored once

    async def read(newest: int | None) -> list[int]:
        if newest is not None:
            return await said(hf, "claude-agent-sdk:project/thread", newest)
        found: Any = await store.load(key) or []
        assert len(await store.list_sessions("project")) == (1 if found else 0)
        return [int(entry["uuid"]) for entry in found]

    return write, read


def google_adk(hf: Holdfast) -> tuple[Write, Read]:
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions
    from google.adk.sessions.base_session_service import GetSessionConfig

    from holdfast.adapters.google_adk import HoldfastSessionService

    service = HoldfastSessionService(hf)
    who: Any = {"app_name": "app", "user_id": "user", "session_id": "thread"}
    last = GetSessionConfig(num_recent_events=1)

    async def write(number: int) -> None:
        session = await service.get_session(**who, config=last) or await service.create_session(**who)
        delta = {f"step{number % NAMES}": number, "user:last": number}
        event = Event(id=f"{number}", author="user", timestamp=1.0, actions=EventActions(state_delta=delta))
        await service.append_event(session, event)

    async def read(newest: int | None) -> list[int]:
        config = None if newest is None else GetSessionConfig(num_recent_events=newest)
        session = await service.get_session(**who, config=config)
        if session is None:
            return []
        found = [int(event.id) for event in session.events]
        if found:
            ended = range(max(found[-1] + 1 - NAMES, 0), found[-1] + 1)
            state = {f"step{number % NAMES}": number for number in ended} | {"user:last": found[-1]}
            assert session.state == state, "an event without its state, or state without its event"
        return found

    return write, read


def pydantic_ai(hf: Holdfast) -> tuple[Write, Read]:
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    from holdfast.adapters.pydantic_ai import HoldfastHistory

    history = HoldfastHistory("thread", hf)

    async def write(number: int) -> None:
        message = ModelRequest(parts=[UserPromptPart(content=f"{number}")], run_id=f"run-{number}")
        await history.append([message])
        await history.append([message])  # a run that is stored again is stored once

    async def read(newest: int | None) -> list[int]:
        if newest is not None:
            return await said(hf, "pydantic-ai:thread", newest)
        found: Any = await history.messages()
        return [int(message.parts[0].content) for message in found]

    return write, read


ADAPTERS: dict[str, Callable[[Holdfast], tuple[Write, Read]]] = {
    "openai_agents": openai_agents,
    "langgraph": langgraph,
    "claude_agent_sdk": claude_agent_sdk,
    "google_adk": google_adk,
    "pydantic_ai": pydantic_ai,
}


@asynccontextmanager
async def reading(adapter: str, url: str) -> AsyncIterator[Read]:
    """Reads the steps that are stored, as a node of its own."""
    async with holdfast.open(url) as hf:
        yield ADAPTERS[adapter](hf)[1]


async def whole(adapter: str, url: str) -> list[int]:
    """The numbers of all steps that are stored, read by a new node. The store's invariants hold."""
    async with holdfast.open(url) as hf:
        found = await ADAPTERS[adapter](hf)[1](None)
        assert await hf.store.check() == []
        return found


async def main(adapter: str, url: str, first: int) -> None:
    async with holdfast.open(url) as hf:
        write, _ = ADAPTERS[adapter](hf)
        for number in itertools.count(first):
            await write(number)
            tell(number)


def tell(number: int) -> None:
    """One write, so that a kill leaves a whole line or none, also if Python does not buffer its output."""
    os.write(1, b"%d\n" % number)


def fork_writers(adapter: str, url: str) -> None:
    importlib.import_module(f"holdfast.adapters.{adapter}")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            tell(os.getpid())
            asyncio.run(main(adapter, url, int(line)))
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    fork_writers(sys.argv[1], sys.argv[2])
