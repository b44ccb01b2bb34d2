"""`HoldfastSessionService` and its memory service: the behaviour of the ADK's own services, as a table.

Needs the ADK, whose dependencies conflict with the OpenAI Agents SDK's: `make peers` has another environment
for it.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="has an environment of its own: run by `make peers`, also in CI")

from google.adk.agents import BaseAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

import holdfast
from holdfast.adapters.google_adk import HoldfastMemoryService, HoldfastSessionService
from holdfast.app import Holdfast
from holdfast.store.values import SessionFilter
from tests.integration.adapters.pages import run_page

WHO: Any = {"app_name": "app", "user_id": "ada.l"}


def event(text: str, author: Any = "user", at: Any = 1.0, **delta: Any) -> Event:
    content = types.Content(role=author, parts=[types.Part(text=text)])
    return Event(
        author=author,
        content=content,
        timestamp=at,
        invocation_id="i",
        actions=EventActions(state_delta={name.replace("__", ":"): value for name, value in delta.items()}),
    )


@pytest.fixture(params=["ours", "theirs"])
async def service(request: pytest.FixtureRequest, hf: Holdfast) -> Any:
    """Ours, and the reference, which shows that the tests ask for what the ADK does."""
    return HoldfastSessionService(hf) if request.param == "ours" else InMemorySessionService()


async def test_state_is_kept_in_its_scope(service: Any) -> None:
    first = await service.create_session(
        **WHO, session_id="s1", state={"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}
    )
    assert {k: v for k, v in first.state.items() if k != "temp:d"} == {"a": 1, "user:b": 2, "app:c": 3}
    changes = event("hi", a=5, user__b=6, app__c=7, temp__d=8, e=None)
    await service.append_event(first, changes)
    assert first.state["temp:d"] == 8
    stored = await service.get_session(**WHO, session_id="s1")
    assert stored.state == {"a": 5, "user:b": 6, "app:c": 7, "e": None}
    assert "temp:d" not in stored.events[0].actions.state_delta
    other = await service.create_session(**WHO, session_id="s2")
    assert other.state == {"user:b": 6, "app:c": 7}
    bob = await service.create_session(app_name="app", user_id="bob")
    assert bob.state == {"app:c": 7} and bob.id
    assert await service.get_user_state(**WHO) == {"b": 6}
    assert await service.get_user_state(app_name="other", user_id="ada.l") == {}


async def test_events_are_read_whole_and_in_part(service: Any) -> None:
    session = await service.create_session(**WHO, session_id="s1")
    events = [event(f"text {i}", at=float(i)) for i in range(1, 6)]
    for each in events:
        await service.append_event(session, each)
    await service.append_event(session, Event(author="model", partial=True))
    await service.append_event(session, events[-1])

    async def texts(**config: Any) -> list[str]:
        found = await service.get_session(**WHO, session_id="s1", config=GetSessionConfig(**config))
        return [each.content.parts[0].text for each in found.events]

    assert (
        await texts()
        == [f"text {i}" for i in range(1, 6)]
        == [e.content.parts[0].text for e in session.events]
    )
    assert await texts(num_recent_events=2) == ["text 4", "text 5"]
    assert await texts(num_recent_events=0) == []
    assert await texts(after_timestamp=4.0) == ["text 4", "text 5"]
    stored = await service.get_session(**WHO, session_id="s1")
    assert stored.events == events and stored.last_update_time == 5.0


async def test_sessions_are_listed_by_user_and_deleted(service: Any) -> None:
    for user, name in (("ada.l", "s1"), ("ada.l", "s2"), ("bob", "s1")):
        await service.create_session(app_name="app", user_id=user, session_id=name, state={"n": name})
    await service.create_session(app_name="app.2", user_id="ada.l", session_id="s9")
    listed = (await service.list_sessions(**WHO)).sessions
    assert [(each.id, each.events, each.state) for each in listed] == [
        ("s1", [], {"n": "s1"}),
        ("s2", [], {"n": "s2"}),
    ]
    assert len((await service.list_sessions(app_name="app")).sessions) == 3
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHO, session_id="s1")
    session = listed[0]
    await service.delete_session(**WHO, session_id="s1")
    await service.delete_session(**WHO, session_id="s1")
    assert await service.get_session(**WHO, session_id="s1") is None
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, event("late"))
    assert len((await service.list_sessions(app_name="app")).sessions) == 2


class Counter(BaseAgent):
    """Answers with how many events it sees."""

    async def _run_async_impl(self, ctx: Any) -> Any:
        yield event(f"{len(ctx.session.events)} events", "model", at=2.0, seen=len(ctx.session.events))


async def test_of_two_that_create_one_session_at_once_one_does(service: Any) -> None:
    made = await asyncio.gather(
        *(service.create_session(**WHO, session_id="s1", state={"by": number}) for number in range(4)),
        return_exceptions=True,
    )
    (session,) = [each for each in made if not isinstance(each, BaseException)]
    assert all(isinstance(each, AlreadyExistsError) for each in made if each is not session)
    stored = await service.get_session(**WHO, session_id="s1")
    assert stored.state == session.state


@pytest.mark.parametrize("app", ["conv_agent", "turn_based_game", "msg_router", "sess_ion"])
async def test_an_app_may_have_a_name_that_looks_like_an_id(service: Any, app: str) -> None:
    who = {"app_name": app, "user_id": "ada", "session_id": "s1"}
    session = await service.create_session(**who)
    await service.append_event(session, event("hi"))
    stored = await service.get_session(**who)
    assert [each.content.parts[0].text for each in stored.events] == ["hi"]


async def test_a_runner_goes_on_in_another_process_and_rewinds(hf: Holdfast, url: str) -> None:
    async def ask(node: Holdfast) -> Any:
        service = HoldfastSessionService(node)
        runner = Runner(app_name="app", agent=Counter(name="model"), session_service=service)
        said = types.Content(role="user", parts=[types.Part(text="count")])
        found = [e async for e in runner.run_async(user_id="ada.l", session_id="s1", new_message=said)]
        return runner, found

    await HoldfastSessionService(hf).create_session(**WHO, session_id="s1")
    _, first = await ask(hf)
    async with holdfast.open(url) as another:
        runner, second = await ask(another)
        assert [e.content.parts[0].text for e in (*first, *second)] == ["1 events", "3 events"]
        await runner.rewind_async(
            user_id="ada.l", session_id="s1", rewind_before_invocation_id=second[-1].invocation_id
        )
    stored = await HoldfastSessionService(hf).get_session(**WHO, session_id="s1")
    assert stored is not None and stored.events[-1].actions.rewind_before_invocation_id


async def test_a_session_is_a_conversation(hf: Holdfast) -> None:
    service = HoldfastSessionService(hf)
    session = await service.create_session(**WHO, session_id="s1")
    await service.append_event(session, event("kelp please"))
    call = types.Part(function_call=types.FunctionCall(id="c1", name="look", args={"at": "sea"}))
    answer = types.Part(function_response=types.FunctionResponse(id="c1", name="look", response={"n": 1}))
    for part, author in ((call, "model"), (answer, "model")):
        await service.append_event(session, Event(author=author, content=types.Content(parts=[part])))
    (listed,) = (await hf.store.sessions(SessionFilter(hf.owner))).items
    assert (listed.key, listed.source) == ("google-adk:app/ada%2El/s1", "google-adk")
    live = await hf.session(id=listed.id, attached=False)
    assert [message["role"] for message in await live.context()] == ["user", "assistant", "tool"]
    assert len(await hf.store.search(hf.owner, "kelp")) == 1


async def test_two_processes_append_to_one_session(hf: Holdfast, url: str) -> None:
    async with holdfast.open(url) as another:
        services = [HoldfastSessionService(hf), HoldfastSessionService(another)]
        await services[0].create_session(**WHO, session_id="s1")
        copies = [await each.get_session(**WHO, session_id="s1") for each in services]
        await asyncio.gather(
            *(
                services[i % 2].append_event(
                    copies[i % 2], event(f"{i}", "user", 1.0, **{f"k{i}": i, f"user__k{i}": i})
                )
                for i in range(20)
            )
        )
        stored = await services[0].get_session(**WHO, session_id="s1")
    assert stored is not None and len(stored.events) == 20
    assert stored.state == {f"{scope}k{i}": i for i in range(20) for scope in ("", "user:")}


@pytest.mark.parametrize("kind", ["ours", "theirs"])
async def test_memory_is_found_by_its_words(hf: Holdfast, kind: str) -> None:
    memory: Any = HoldfastMemoryService(hf) if kind == "ours" else InMemoryMemoryService()
    session = await InMemorySessionService().create_session(**WHO, session_id="s1")
    session.events = [event("likes kelp and rice"), event("has a cat"), event("rice again")]
    await memory.add_session_to_memory(session)
    await memory.add_session_to_memory(session)
    more = event("another rice")
    for _ in range(2):
        await memory.add_events_to_memory(**WHO, events=[more], session_id="s2")

    async def texts(query: str, user: str = "ada.l") -> list[str]:
        found = await memory.search_memory(app_name="app", user_id=user, query=query)
        return [entry.content.parts[0].text for entry in found.memories]

    assert (await texts("kelp RICE"))[0] == "likes kelp and rice"
    assert sorted(await texts("rice")) == ["another rice", "likes kelp and rice", "rice again"]
    assert await texts("dog") == await texts("rice", "bob") == []
    session.events = session.events[1:2]
    await memory.add_session_to_memory(session)
    assert await texts("rice") == ["another rice"]


async def test_entries_are_remembered_too(hf: Holdfast) -> None:
    memory = HoldfastMemoryService(hf)
    content = types.Content(parts=[types.Part(text="lives by the sea")])
    await memory.add_memory(**WHO, memories=[MemoryEntry(content=content)])
    (found,) = (await memory.search_memory(**WHO, query="sea")).memories
    assert found.content == content and found.id


async def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = InMemorySessionService()
    session = await old.create_session(**WHO, session_id="s1")
    await old.append_event(session, event("hello", a=1))
    names = await run_page("google-adk.md", Runner=Runner, agent=Counter(name="model"), old=old)
    moved = await names["sessions"].get_session(**WHO, session_id="s1")
    assert moved.events == session.events and moved.state == {"a": 1}
