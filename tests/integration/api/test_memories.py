"""Memory as clients and people meet it: sessions that end are flushed once, and later ones are told."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.memories import HEADING
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.agents.flusher import Flusher
from tests.contract.steps import Clock
from tests.integration.api.chatting import by_key, call, post, user
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import asked, got, ids, refused
from tests.integration.api.test_resets import RESET, moved

KEY = "telegram:dm:42"
MEMORY = {"min_messages": 2}


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 11, 2, 12, tzinfo=UTC))


class Answers:
    """A model that says back what it heard, and remembers what it is told to."""

    def __init__(self, *memories: Any) -> None:
        self.memories = list(memories) or ["Likes kelp."]
        self.asked: list[list[dict[str, Any]]] = []
        """What it was given in turns."""
        self.flushed: list[str] = []
        """What it was given to remember."""

    def model(self) -> ScriptedModel:
        return ScriptedModel(self._answer)

    async def _answer(self, messages: list[dict[str, Any]], purpose: Purpose) -> Any:
        if purpose is not Purpose.FLUSH:
            self.asked.append(messages)
            return "fine"
        self.flushed.append(messages[-1]["content"])
        memory = self.memories.pop(0) if len(self.memories) > 1 else self.memories[0]
        return await memory() if callable(memory) else memory


def flusher(server: Running) -> Flusher:
    found = server.services.holdfast.flusher
    assert found is not None
    return found


async def say(server: Running, text: str = "I like kelp", key: str = KEY) -> str:
    """One turn; returns the session's id."""
    response = await post(server, [user(text)], by_key(key))
    assert response.status_code == 200, response.text
    session_id: str = response.json()["holdfast"]["session_id"]
    return session_id


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - the server is asked, nobody tells
            await asyncio.sleep(0.02)


async def flushed(server: Running, session_id: str, state: str = "done") -> dict[str, Any]:
    """The session's flush, once it is in this state."""

    async def is_it() -> bool:
        await flusher(server).flush_once()
        found = await got(server, f"/api/sessions/{session_id}")
        return bool(found["flush"]["state"] == state)

    await until(is_it)
    flush: dict[str, Any] = (await got(server, f"/api/sessions/{session_id}"))["flush"]
    return flush


async def test_what_a_reset_ends_is_remembered_in_the_next_session_of_that_key_only(
    start_server: StartServer, clock: Clock
) -> None:
    answers = Answers()
    server = await moved(await start_server(answers.model(), memory=MEMORY, reset=RESET), clock)
    session_id = await say(server)
    assert (await got(server, f"/api/sessions/{session_id}"))["flush"] == {
        "state": "none",
        "attempts": 0,
        "error": None,
    }
    clock.move(hours=3)
    await server.services.holdfast.sweeper.sweep_once()
    assert await flushed(server, session_id) == {"state": "done", "attempts": 1, "error": None}
    assert "I like kelp" in answers.flushed[0]
    (memory,) = (await got(server, "/api/memories"))["data"]
    assert (memory["text"], memory["session_id"], memory["key"]) == ("Likes kelp.", session_id, KEY)
    assert (memory["origin"], memory["edited_at"]) == ("flush", None)
    await say(server, "what do I like?")
    told = answers.asked[-1]
    assert [message["role"] for message in told] == ["system", "user"]
    assert told[0]["content"] == f"{HEADING}\n- (2026-11-02) Likes kelp."
    await say(server, "hello", "telegram:dm:43")
    assert [message["role"] for message in answers.asked[-1]] == ["user"]
    assert len(answers.flushed) == 1
    context = await got(server, f"/api/sessions/{KEY}/messages?scope=context")
    assert [each["role"] for each in context["data"]] == ["user", "assistant"], "instructions are no history"


async def test_by_setting_all_of_the_owners_are_given_and_nobody_elses(
    start_server: StartServer, clock: Clock
) -> None:
    answers = Answers()
    settings = {**MEMORY, "recall": "owner"}
    server = await moved(await start_server(answers.model(), memory=settings, reset=RESET), clock)
    session_id = await say(server)
    await asked(server, "POST", f"/api/sessions/{session_id}/end", json={"reason": "new"})
    await flushed(server, session_id)
    await say(server, "hello", "another:key")
    assert "Likes kelp." in answers.asked[-1][0]["content"]
    client = await server.client_of("bob")
    await server.say(client=client, x_holdfast_session_key=KEY)
    assert [message["role"] for message in answers.asked[-1]] == ["user"]


async def test_nothing_is_given_if_the_settings_say_so(start_server: StartServer) -> None:
    answers = Answers()
    server = await start_server(answers.model(), memory={**MEMORY, "recall": "none"})
    session_id = await say(server)
    await asked(server, "POST", f"/api/sessions/{session_id}/end", json={"reason": "new"})
    await flushed(server, session_id)
    await say(server, "hello")
    assert [message["role"] for message in answers.asked[-1]] == ["user"]


async def test_a_slow_flush_delays_nobody_and_what_arrives_late_is_used_from_the_next_turn(
    start_server: StartServer, clock: Clock
) -> None:
    may_end = asyncio.Event()

    async def slow() -> str:
        await may_end.wait()
        return "Likes kelp."

    answers = Answers(slow)
    server = await moved(await start_server(answers.model(), memory=MEMORY, reset=RESET), clock)
    session_id = await say(server)
    clock.move(hours=3)
    await say(server, "hello")  # resets first
    flushing = asyncio.create_task(flusher(server).flush_once())

    async def is_running() -> bool:
        return bool((await got(server, f"/api/sessions/{session_id}"))["flush"]["state"] == "running")

    await until(is_running)
    await say(server, "still there?")
    assert [message["role"] for message in answers.asked[-1]] == ["user", "assistant", "user"]
    may_end.set()
    await flushing
    await flushed(server, session_id)
    await say(server, "and now?")
    assert answers.asked[-1][0]["content"].endswith("Likes kelp.")
    assert len(answers.flushed) == 1


async def test_a_resumed_session_is_flushed_once_with_all_it_said(
    start_server: StartServer, clock: Clock
) -> None:
    answers = Answers()
    server = await moved(await start_server(answers.model(), memory=MEMORY), clock)
    first = await say(server, "one")
    await asked(server, "POST", f"/api/sessions/{first}/end")
    assert (await got(server, f"/api/sessions/{first}"))["flush"]["state"] == "pending"
    second = await say(server, "two")
    assert (await got(server, f"/api/sessions/{first}"))["flush"]["state"] == "none"
    await asked(server, "POST", f"/api/sessions/{second}/end")
    clock.move(seconds=601)
    await flushed(server, second)
    (text,) = answers.flushed
    assert "one" in text and "two" in text
    third = await say(server, "three")
    await asked(server, "POST", f"/api/sessions/{third}/end")
    clock.move(seconds=601)
    await flushed(server, third)
    assert "one" not in answers.flushed[1] and "three" in answers.flushed[1]
    line = await got(server, f"/api/sessions/{KEY}/lineage")
    assert [each["flush"]["state"] for each in line["data"]] == ["none", "done", "done"]


async def test_memories_are_listed_searched_edited_and_forgotten(start_server: StartServer) -> None:
    server = await start_server(Answers("Likes kelp.", "Likes tides.").model(), memory=MEMORY)
    for key in ("a", "b"):
        session_id = await say(server, key=key)
        await asked(server, "POST", f"/api/sessions/{session_id}/end", json={"reason": "new"})
        await flushed(server, session_id)
    whole = await got(server, "/api/memories")
    assert [each["text"] for each in whole["data"]] == ["Likes tides.", "Likes kelp."]
    page = await got(server, "/api/memories?limit=1")
    assert (page["has_more"], ids(await got(server, f"/api/memories?after={page['last_id']}"))) == (
        True,
        ids(whole)[1:],
    )
    assert ids(await got(server, "/api/memories?q=KELP")) == ids(whole)[1:]
    assert ids(await got(server, "/api/memories?key=b")) == ids(whole)[:1]
    kelp = ids(whole)[1]
    edited = await asked(server, "PATCH", f"/api/memories/{kelp}", json={"text": "Hates kelp."})
    assert (edited["text"], edited["id"]) == ("Hates kelp.", kelp)
    for body in ({}, {"text": " "}, {"text": 1}, {"text": "x", "key": "y"}, {"text": "x" * 20_001}):
        response = await server.client.patch(f"/api/memories/{kelp}", json=body)
        assert response.status_code == 400, response.text
    gone = await asked(server, "DELETE", f"/api/memories/{kelp}")
    assert gone == {"id": kelp, "object": "memory.deleted", "deleted": True}
    await refused(server, "DELETE", f"/api/memories/{kelp}", 404, "not_found")
    assert ids(await got(server, "/api/memories?q=kelp")) == []
    stranger = await server.client_of("bob")
    assert (await got(server, "/api/memories", stranger))["data"] == []
    path = f"/api/memories/{ids(whole)[0]}"
    await refused(server, "PATCH", path, 404, "not_found", client=stranger, json={"text": "mine"})
    await refused(server, "DELETE", path, 404, "not_found", client=stranger)
    await refused(server, "GET", "/api/memories?owner=*", 400, "invalid_value")
    await got(server, "/api/memories?owner=bob")
    told = await server.store.events(owner="bob")
    assert [event.type for event in told] == ["key.created", "messages.read_by_admin"]


async def test_what_could_not_be_flushed_is_seen_and_taken_up_again_by_hand(
    start_server: StartServer, clock: Clock
) -> None:
    answers = Answers("", "", "Likes kelp.")
    settings = {**MEMORY, "max_attempts": 2, "retry_seconds": 0.001}
    server = await moved(await start_server(answers.model(), memory=settings), clock)
    session_id = await say(server)
    await asked(server, "POST", f"/api/sessions/{session_id}/end", json={"reason": "new"})
    await flusher(server).flush_once()
    clock.move(seconds=1)
    assert (await flushed(server, session_id, "dead"))["error"] == "the model's answer was empty"
    (dead,) = (await got(server, "/api/flushes?state=dead"))["data"]
    assert (dead["id"], dead["attempts"], dead["reason"], dead["key"]) == (session_id, 2, "new", KEY)
    assert (await metrics(server))['holdfast_flushes{state="dead"}'] == 1
    retried = await asked(server, "POST", f"/api/flushes/{session_id}/retry")
    assert (retried["state"], retried["attempts"]) == ("pending", 0)
    await flushed(server, session_id)
    await refused(server, "POST", f"/api/flushes/{session_id}/retry", 409, "conflict")
    await refused(server, "POST", "/api/flushes/sess_never/retry", 404, "not_found")
    await refused(server, "GET", "/api/flushes?state=lost", 400, "invalid_value")
    counted = await metrics(server)
    assert counted['holdfast_flush_attempts_total{outcome="done"}'] == 1
    assert counted['holdfast_flush_attempts_total{outcome="dead"}'] == 1
    assert await asked(server, "POST", "/api/flushes/retry") == {"object": "flushes.retried", "count": 0}
    stranger = await server.client_of("bob")
    assert (await got(server, "/api/flushes", stranger))["data"] == []
    await refused(server, "POST", f"/api/flushes/{session_id}/skip", 404, "not_found", client=stranger)
    (everybody,) = (await got(server, "/api/flushes?owner=*"))["data"]
    assert everybody["owner"] == "default"


async def metrics(server: Running) -> dict[str, float]:
    text = (await server.client.get("/metrics")).text
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.MULTILINE)}


async def test_a_policy_switched_on_over_old_sessions_is_told_bounded_and_skippable(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    before = await start_server(Answers().model())
    for number in range(25):
        await say(before, f"number {number}", f"telegram:dm:{number}")
    answers = Answers()
    settings = {**MEMORY, "per_minute": 5, "concurrency": 2}
    reset = {"mode": "both", "idle_minutes": 0.00001}
    with caplog.at_level("INFO"):
        after = await start_server(answers.model(), memory=settings, reset=reset)
    sentence = "25 sessions become due; about 5 min at 5 a minute; `holdfast memories skip --before DATE`"
    assert after.services.holdfast.backlog == sentence
    assert sentence in caplog.text

    async def all_are_reset() -> bool:
        figures = await after.store.flush_figures()
        return figures.coming == 0 and len(answers.flushed) == 5

    await until(all_are_reset)
    figures = await metrics(after)
    assert figures['holdfast_flushes{state="pending"}'] == 20
    skipped = await asked(after, "POST", "/api/flushes/skip", json={"before": "2100-01-01T00:00:00Z"})
    assert skipped["count"] == 20
    assert len((await got(after, "/api/flushes?state=skipped&limit=100"))["data"]) == 20
    await flusher(after).flush_once()
    assert len(answers.flushed) == 5
    assert after.services.holdfast.flusher is not None
    for body in ({}, {"before": "yesterday"}, {"before": 1}):
        await refused(after, "POST", "/api/flushes/skip", 400, "invalid_value", json=body)


async def test_the_memory_tool_is_off_unless_named_and_allowed(start_server: StartServer) -> None:
    arguments = msgspec.json.encode({"action": "remember", "text": "Likes kelp."}).decode()
    remembers = {"content": None, "tool_calls": [call("call_1", "memory", arguments)]}
    server = await start_server(
        ScriptedModel(["plain", remembers, "kept", "told"]), agent={"tools": ["memory"]}
    )
    await server.say(client=await server.client_of("ada"))
    assert "tools" not in server.model.requests[0].options
    key, token = new_key("ada", Scope.CHAT, ["memory"], server.store.now())
    await server.store.add_key(key, token.hash)
    client = await server.with_token(str(token))
    for text in ("remember that I like kelp", "what do I like?"):
        await server.say(text, client=client, x_holdfast_session_key=KEY)
    offered = server.model.requests[1].options["tools"]
    assert [tool["function"]["name"] for tool in offered] == ["memory"]
    (memory,) = (await got(server, "/api/memories", client))["data"]
    assert (memory["text"], memory["origin"], memory["key"]) == ("Likes kelp.", "tool", KEY)
    first = msgspec.json.decode(server.model.requests[3].messages)[0]
    assert first["role"] == "system" and "Likes kelp." in first["content"]


async def test_a_persons_memory_is_given_from_the_next_turn_on(start_server: StartServer) -> None:
    answers = Answers()
    server = await start_server(answers.model(), memory=MEMORY)
    session_id = await say(server)
    added = await asked(server, "POST", "/api/memories", json={"text": "Is called Ada.", "key": KEY})
    assert (added["origin"], added["key"], added["session_id"]) == ("person", KEY, None)
    assert ids(await got(server, "/api/memories")) == [added["id"]]
    await say(server, "who am I?")
    assert "Is called Ada." in answers.asked[-1][0]["content"]
    more = await asked(
        server, "POST", "/api/memories", json={"text": "Lives in Bergen.", "session_id": session_id[:13]}
    )
    assert more["conversation_id"] == added["conversation_id"]
    await say(server, "hello", "telegram:dm:43")
    assert [message["role"] for message in answers.asked[-1]] == ["user"]


async def test_a_memory_of_no_conversation_or_of_anothers_is_refused(start_server: StartServer) -> None:
    server = await start_server(Answers().model(), memory=MEMORY)
    session_id = await say(server)
    for body in (
        {"text": "x"},
        {"text": "x", "key": KEY, "session_id": session_id},
        {"text": " ", "key": KEY},
        {"key": KEY},
        {"text": "x" * 20_001, "key": KEY},
        {"text": "x", "key": KEY, "owner": "bob"},
    ):
        await refused(server, "POST", "/api/memories", 400, "invalid_value", json=body)
    await refused(server, "POST", "/api/memories", 404, "not_found", json={"text": "x", "key": "never"})
    bob = await server.client_of("bob")
    for place in ({"key": KEY}, {"session_id": session_id}):
        response = await bob.post("/api/memories", json={"text": "x", **place})
        assert response.status_code == 404, response.text
    assert (await got(server, "/api/memories"))["data"] == []
