"""Compaction over HTTP: a client that only knows its first id, many at once, streams, headers, by hand.

The model counts a token for each word, as its usage says, and remembers everything it was asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import httpx
import openai
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.sessions import Edge, Session
from holdfast.errors import ModelError
from holdfast.models.base import Purpose
from holdfast.models.scripted import Line, ScriptedModel
from holdfast.server import sse, streams
from tests.integration.api.chatting import by_id, by_key, post, sdk, session_of, until, user
from tests.integration.api.conftest import Running, StartServer

SETTINGS: dict[str, dict[str, Any]] = {
    "compaction": {"threshold": 0.5, "keep_first": 2, "keep_last": 4},
}
LONG = "word " * 90
GIST = "[Summary of the earlier part of this conversation]\n"


class Script:
    """Answers turns with what they brought last; a summary says how many there were before it."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.summaries = 0
        self.gate: asyncio.Event | None = None
        """Summaries wait for it."""

    def model(self, window: int = 1200) -> ScriptedModel:
        return ScriptedModel(self, window=window)

    def __call__(self, messages: list[dict[str, Any]], purpose: Purpose) -> Line | Awaitable[Line]:
        if purpose is Purpose.SUMMARY:
            self.summaries += 1
            return self._summary(self.summaries)
        self.asked.append(messages)
        return f"re {messages[-1]['content'][:20]}"

    async def _summary(self, number: int) -> str:
        if self.gate is not None:
            await self.gate.wait()
        return f"gist {number}"

    def size(self, request: int = -1) -> int:
        """How many tokens it was asked with."""
        return sum(len(str(message["content"]).split()) for message in self.asked[request])


async def line(server: Running, name: str) -> list[Session]:
    place = await server.store.resolve(None, Address(id=name))
    return await server.store.line(None, place.conversation.id)


async def tip(server: Running, name: str) -> Session:
    return (await server.store.resolve(None, Address(id=name))).tip


async def settled(server: Running) -> None:
    """What is to be done behind the replies is done."""
    compactor = server.services.runner.compactor
    assert compactor is not None
    for _ in range(3):
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while compactor._background:
            await compactor.settled()


# --- the bridge's report ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize("follows", [False, True], ids=["first id", "returned id"])
async def test_a_client_goes_on_across_ten_compactions_whichever_id_it_sends(
    start_server: StartServer, stream: bool, follows: bool
) -> None:
    script = Script()
    server = await start_server(script.model(), **SETTINGS)
    client = sdk(server)
    first, effective, turn = "", "", 0
    while script.summaries < 11:
        turn += 1
        headers = by_id(effective if follows else first) if first else {}
        newest = (await line(server, first))[-1] if first else None
        said = f"{turn} {LONG}"
        named, ours = await _ask(client, said, headers, stream)
        effective = ours["session_id"]
        assert named == effective
        asked = [str(message["content"]) for message in script.asked[-1]]
        assert asked[-1] == said
        assert script.size() < 1200
        if newest is None:
            first = effective
        else:
            assert effective == newest.id
            assert ours["compacted"] is (headers["x-holdfast-session-id"] != effective)
            if newest.edge is Edge.COMPACTION:
                assert asked[2] == f"{GIST}gist {newest.ordinal - 1}"
            assert len(asked) <= 2 + 1 + 4 + 8
        await settled(server)
        assert turn < 100
    sessions = await line(server, first)
    assert [each.edge for each in sessions] == [None, *[Edge.COMPACTION] * (len(sessions) - 1)]
    assert len(sessions) >= 11
    assert [each.end_reason for each in sessions] == [*["compaction"] * (len(sessions) - 1), None]
    page = await server.store.messages(None, sessions[0].conversation_id)
    assert [message.seq for message in page.items] == list(range(1, 2 * turn + 1))
    users = [message.content()["content"] for message in page.items if message.role == "user"]
    assert users == [f"{number} {LONG}" for number in range(1, turn + 1)]
    assert (await server.store.statistics(None)).conversations == 1


async def _ask(
    client: openai.AsyncOpenAI, said: str, headers: dict[str, str], stream: bool
) -> tuple[str, dict[str, Any]]:
    """One turn; returns the header's session id and the `holdfast` field."""
    if not stream:
        raw = await client.chat.completions.with_raw_response.create(
            model="m", messages=[user(said)], extra_headers=headers
        )
        extra: Any = raw.parse().model_extra
        return str(raw.headers["x-hermes-session-id"]), extra["holdfast"]
    raw_stream = await client.chat.completions.with_raw_response.create(
        model="m", messages=[user(said)], extra_headers=headers, stream=True
    )
    ours: dict[str, Any] = {}
    async for chunk in raw_stream.parse():
        more: Any = chunk.model_extra or {}
        if chunk.choices and chunk.choices[0].finish_reason:
            ours = more["holdfast"]
    return str(raw_stream.headers["x-hermes-session-id"]), ours


async def test_a_stale_id_of_any_depth_a_key_and_an_alias_lead_to_the_same_newest_session(
    start_server: StartServer,
) -> None:
    script = Script()
    server = await start_server(script.model(), **SETTINGS)
    alias = {"x-holdfast-session-id": "bridge-7", "x-holdfast-session-key": "telegram:dm:42"}
    while script.summaries < 4:
        await post(server, [user(LONG)], alias)
        await settled(server)
    sessions = await line(server, "bridge-7")
    names = [*(each.id for each in sessions), sessions[0].conversation_id, "bridge-7"]
    for name in names:
        answer = await server.say("where am I?", x_holdfast_session_id=name)
        assert session_of(answer) == sessions[-1].id
        found = (await server.client.get(f"/api/sessions/{name}/messages?scope=context")).json()["data"]
        mine = name in (sessions[-1].id, sessions[0].conversation_id, "bridge-7")
        assert (found[-1]["content"][:2] == "re") is mine or not mine
    answer = await server.say("and by key?", x_holdfast_session_key="telegram:dm:42")
    assert session_of(answer) == sessions[-1].id


async def test_a_client_that_brings_its_whole_history_goes_on_too(start_server: StartServer) -> None:
    """It is compared with what was said, not with what the model is shown."""
    script = Script()
    server = await start_server(script.model(), **SETTINGS)
    history: list[Any] = []
    ids = set()
    for number in range(16):
        history.append(user(f"{number} {LONG}"))
        response = await post(server, history)
        answer = response.json()
        ids.add(answer["holdfast"]["conversation_id"])
        history.append(answer["choices"][0]["message"])
        await settled(server)
        assert script.size() < 1200
    assert len(ids) == 1
    assert script.summaries > 2
    assert (await server.store.statistics(None)).messages == 32


async def test_responses_go_on_behind_a_compaction(start_server: StartServer) -> None:
    script = Script()
    server = await start_server(script.model(), **SETTINGS)
    client = sdk(server)
    previous: str | None = None
    conversations = set()
    for number in range(14):
        extra: dict[str, Any] = {"previous_response_id": previous} if previous else {}
        response = await client.responses.create(model="m", input=f"{number} {LONG}", **extra)
        fields: Any = response.model_extra
        conversations.add(fields["holdfast"]["conversation_id"])
        previous = response.id
        await settled(server)
    assert len(conversations) == 1
    assert script.summaries > 1
    assert script.asked[-1][2]["content"].startswith(GIST)


# --- many at once ----------------------------------------------------------------------------------


async def test_fifty_at_once_with_ids_of_every_age_while_a_compaction_runs(
    start_server: StartServer,
) -> None:
    script = Script()
    server = await start_server(script.model(), **SETTINGS)
    first = session_of(await server.say(LONG))
    while script.summaries < 5:
        await server.say(LONG, x_holdfast_session_id=first)
        await settled(server)
    sessions = await line(server, first)
    script.gate = asyncio.Event()
    before = (await tip(server, first)).last_seq
    while script.summaries < 6:  # the next summary waits
        await server.say(LONG, x_holdfast_session_id=first)
        before += 2
        await until(lambda: True, "it is asked for")
    names = [*(each.id for each in sessions), sessions[0].conversation_id]
    chance = random.Random(7)

    async def one(number: int) -> httpx.Response:
        return await post(server, [user(f"q{number} {LONG}")], by_id(chance.choice(names)))

    asking = [asyncio.create_task(one(number)) for number in range(50)]
    await until(lambda: any(task.done() for task in asking), "some are answered")
    script.gate.set()
    answers = await asyncio.gather(*asking)
    assert [answer.status_code for answer in answers] == [200] * 50
    await settled(server)
    after = await line(server, first)
    assert [each.edge for each in after] == [None, *[Edge.COMPACTION] * (len(after) - 1)]
    assert [each.parent_id for each in after[1:]] == [each.id for each in after[:-1]]
    assert len(after) > len(sessions)
    assert (await server.store.statistics(None)).conversations == 1
    page = await server.store.messages(None, first and sessions[0].conversation_id)
    assert [message.seq for message in page.items] == list(range(1, before + 100 + 1))
    asked = [message.content()["content"] for message in page.items if message.role == "user"]
    for number in range(50):
        assert asked.count(f"q{number} {LONG}") == 1
    assert await server.store.check() == []
    assert max(script.size(request) for request in range(len(script.asked))) < 1200


async def test_two_servers_on_one_store_make_one_line(start_server: StartServer) -> None:
    script = Script()
    one = await start_server(script.model(), **SETTINGS)
    two = await start_server(script.model(), **SETTINGS)
    clients = [one.client, await two.with_token(one.admin_key)]
    for number in range(24):
        given = [user(f"{number} {LONG}")]
        both = await asyncio.gather(*(post(one, given, by_key("a"), client=client) for client in clients))
        assert [each.status_code for each in both] == [200, 200]
    await settled(one)
    await settled(two)
    sessions = await line(one, (await one.store.resolve(None, Address(key="a"))).tip.id)
    assert [each.parent_id for each in sessions[1:]] == [each.id for each in sessions[:-1]]
    assert len(sessions) > 5
    assert (await one.store.statistics(None)).messages == 96
    assert await one.store.check() == []


# --- a turn that makes room for itself -------------------------------------------------------------


async def _filled(server: Running, script: Script) -> str:
    """A conversation that still fits, but nothing more does; its first id."""
    first = session_of(await server.say(LONG))
    while script.size() < 900:
        await server.say(LONG, x_holdfast_session_id=first)
    return first


FULL = {**SETTINGS, "compaction": {**SETTINGS["compaction"], "threshold": 1.0}}


async def test_headers_name_the_session_that_answers_after_a_compaction(start_server: StartServer) -> None:
    script = Script()
    server = await start_server(script.model(), **FULL)
    first = await _filled(server, script)
    for stream in (False, True):
        response = await post(server, [user("more " * 400)], by_id(first), stream=stream)
        newest = await tip(server, first)
        assert newest.edge is Edge.COMPACTION
        assert response.headers["x-holdfast-session-id"] == newest.id != first
        assert f'"session_id":"{newest.id}"' in response.text
        assert '"compacted":true' in response.text
        for _ in range(3):
            await server.say(LONG, x_holdfast_session_id=first)


async def test_a_stream_that_waits_for_a_summary_is_kept_alive_and_says_the_truth_at_its_end(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEADERS_SECONDS", 0.2)
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.1)
    script = Script()
    server = await start_server(script.model(), **FULL)
    first = await _filled(server, script)
    script.gate = asyncio.Event()
    body = {"messages": [user("more " * 400)], "stream": True}
    async with server.client.stream(
        "POST", "/v1/chat/completions", json=body, headers=by_id(first)
    ) as answer:
        assert not script.gate.is_set(), "its headers did not wait for the summary"
        assert answer.headers["x-holdfast-session-id"] == first  # what is known so far
        heard = b""
        async for piece in answer.aiter_bytes():
            heard += piece
            if heard.count(b": keepalive") >= 3 and not script.gate.is_set():
                activity = (await server.client.get("/api/activity")).json()
                assert [each["doing"] for each in activity["data"]] == ["compacting"]
                script.gate.set()
    newest = await tip(server, first)
    assert newest.edge is Edge.COMPACTION
    assert f'"session_id":"{newest.id}"'.encode() in heard
    assert heard.endswith(b"data: [DONE]\n\n")


async def test_a_model_that_says_it_is_too_long_is_asked_again_and_the_client_never_knows(
    start_server: StartServer,
) -> None:
    script = Script()

    class Strict(Script):
        def __call__(self, messages: list[dict[str, Any]], purpose: Purpose) -> Line | Awaitable[Line]:
            answer = super().__call__(messages, purpose)
            if purpose is Purpose.TURN and self.size() > 500:
                said = "This model's maximum context length is 500 tokens."
                return ModelError(said, 400, said=said, code="context_length_exceeded")
            return answer

    script = Strict()
    server = await start_server(script.model(100_000), **SETTINGS)
    first = session_of(await server.say(LONG))
    for _ in range(10):
        await server.say(LONG, x_holdfast_session_id=first)
        await settled(server)
    assert (await tip(server, first)).edge is Edge.COMPACTION


async def test_large_instructions_and_tools_do_not_compact_under_a_window_that_is_only_assumed(
    start_server: StartServer,
) -> None:
    """Coding agents send more than 8,192 tokens of instructions and tools with every request."""
    script = Script()
    server = await start_server(
        ScriptedModel(script, window=None), compaction={"keep_first": 0, "keep_last": 1}
    )
    tool = {"type": "function", "function": {"name": "run", "description": "word " * 4000, "parameters": {}}}
    told = [{"role": "system", "content": "rule " * 6000}]
    said: list[dict[str, Any]] = []
    for number in range(6):
        said.append(user(f"question {number}: {LONG}"))
        response = await post(server, [*told, *said], by_key("agent:1"), tools=[tool])
        assert response.status_code == 200, response.text
        said.append(response.json()["choices"][0]["message"])
        await settled(server)
    assert script.summaries == 0
    assert len(script.asked[-1]) == len(told) + len(said) - 1


async def test_what_is_going_on_behind_a_reply_can_be_seen(start_server: StartServer) -> None:
    script = Script()
    script.gate = asyncio.Event()
    server = await start_server(script.model(), **SETTINGS)
    first = session_of(await server.say(LONG))
    while not script.summaries:
        await server.say(LONG, x_holdfast_session_id=first)
        for _ in range(20):
            await asyncio.sleep(0)
    (shown,) = (await server.client.get("/api/activity")).json()["data"]
    assert (shown["state"], shown["doing"]) == ("idle", "compacting")
    script.gate.set()
    await settled(server)
    (shown,) = (await server.client.get("/api/activity")).json()["data"]
    assert (shown["session_id"], shown["doing"]) == ((await tip(server, first)).id, None)
    ended = (await server.client.get("/api/activity")).json()["ended"]
    assert [each["end_reason"] for each in ended] == ["compaction"]


# --- by hand ---------------------------------------------------------------------------------------


async def test_by_hand_any_id_compacts_the_newest_and_the_lineage_shows_it(
    start_server: StartServer,
) -> None:
    script = Script()
    server = await start_server(script.model(100_000))
    first = session_of(await server.say(LONG))
    for _ in range(7):
        await server.say(LONG, x_holdfast_session_id=first)
    response = await server.client.post(f"/api/sessions/{first}/compact")
    assert response.status_code == 200, response.text
    made = response.json()
    assert (made["edge"], made["parent_id"], made["state"], made["message_count"]) == (
        "compaction",
        first,
        "idle",
        0,
    )
    fork = (await server.client.post(f"/api/sessions/{made['id']}/fork")).json()
    again = (await server.client.post(f"/api/sessions/{first}/compact", json={})).json()
    assert again.get("parent_id", made["id"]) == made["id"]
    lineage = (await server.client.get(f"/api/sessions/{first}/lineage")).json()
    assert [each["edge"] for each in lineage["data"]][:2] == [None, "compaction"]
    assert [part["kind"] for part in lineage["data"][1]["view"]] == ["messages", "summary", "messages"]
    assert lineage["data"][1]["view"][0] == {"kind": "messages", "first": 1, "last": 2, "characters": None}
    assert lineage["data"][1]["view"][-1]["last"] is None
    assert lineage["forks"][0]["data"][0]["id"] == fork["id"]
    answer = await server.say("hello", x_holdfast_session_id=first)
    assert session_of(answer) == (await tip(server, first)).id


async def test_a_stale_id_ends_the_session_that_goes_on(start_server: StartServer) -> None:
    server = await start_server(Script().model(100_000))
    first = session_of(await server.say(LONG))
    for _ in range(7):
        await server.say(LONG, x_holdfast_session_id=first)
    made = (await server.client.post(f"/api/sessions/{first}/compact")).json()
    ended = (await server.client.post(f"/api/sessions/{first}/end", json={"reason": "new"})).json()
    assert (ended["id"], ended["end_reason"]) == (made["id"], "new")


async def test_by_hand_refusals_say_why_and_change_nothing(start_server: StartServer) -> None:
    script = Script()
    server = await start_server(script.model(100_000))
    short = session_of(await server.say("hi"))
    response = await server.client.post(f"/api/sessions/{short}/compact")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "not_compacted")
    await server.store.end_session(None, short, "closed")
    response = await server.client.post(f"/api/sessions/{short}/compact")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "not_compacted")
    assert "has ended" in response.json()["error"]["message"]
    assert (await server.client.post("/api/sessions/nowhere/compact")).status_code == 404
    assert (await server.client.post(f"/api/sessions/{short}/compact", json={"x": 1})).status_code == 400
    bob = await server.client_of("bob")
    assert (await bob.post(f"/api/sessions/{short}/compact")).status_code == 404


async def test_by_hand_a_summary_that_fails_is_a_502_and_everything_stays(start_server: StartServer) -> None:
    def answer(messages: list[dict[str, Any]], purpose: Purpose) -> Line:
        return ModelError("out of order", 500) if purpose is Purpose.SUMMARY else "fine"

    server = await start_server(ScriptedModel(answer))
    first = session_of(await server.say(LONG))
    for _ in range(7):
        await server.say(LONG, x_holdfast_session_id=first)
    response = await server.client.post(f"/api/sessions/{first}/compact")
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_error")
    assert (await tip(server, first)).id == first
    assert session_of(await server.say("hello", x_holdfast_session_id=first)) == first


# --- resumes, forks and resets in between ----------------------------------------------------------


async def test_resumes_forks_and_resets_in_between_are_never_taken_for_continuations(
    start_server: StartServer,
) -> None:
    script = Script()
    server = await start_server(script.model(), **SETTINGS)
    first = session_of(await server.say(f"first {LONG}"))
    while script.summaries < 3:
        await server.say(LONG, x_holdfast_session_id=first)
        await settled(server)
    fork = (await server.client.post(f"/api/sessions/{first}/fork")).json()
    assert fork["conversation_id"] != (await tip(server, first)).conversation_id
    compacted = await tip(server, first)
    # A person begins anew: the next message sees nothing of what was.
    await server.client.post(f"/api/sessions/{compacted.id}/end", json={"reason": "new"})
    await server.say("anew", x_holdfast_session_id=first)
    assert [message["content"] for message in script.asked[-1]] == ["anew"]
    # And goes back to where it was compacted last.
    resumed = (await server.client.post(f"/api/sessions/{compacted.id}/resume")).json()
    assert resumed["edge"] == "resume"
    await server.say("back", x_holdfast_session_id=first)
    assert f"{GIST}gist 3" in [message["content"] for message in script.asked[-1]]
    assert "anew" not in [message["content"] for message in script.asked[-1]]
    # Or to the very first session, which was never compacted.
    resumed = (await server.client.post(f"/api/sessions/{first}/resume")).json()
    context = (await server.client.get(f"/api/sessions/{resumed['id']}/messages?scope=context")).json()
    assert not [each for each in context["data"] if str(each["content"]).startswith(GIST)]
    # The fork saw none of it.
    await server.say("in the fork", x_holdfast_session_id=fork["id"])
    await settled(server)
    assert (await tip(server, fork["id"])).conversation_id == fork["conversation_id"]
    assert (await tip(server, first)).conversation_id == compacted.conversation_id
    assert await server.store.check() == []


async def test_events_tell_of_it_over_http(start_server: StartServer) -> None:
    script = Script()
    server = await start_server(script.model(), **SETTINGS)
    first = session_of(await server.say(LONG))
    while not script.summaries:
        await server.say(LONG, x_holdfast_session_id=first)
        await settled(server)

    async def told() -> AsyncIterator[str]:
        async with server.client.stream("GET", "/api/events?after=0") as answer:
            async for row in answer.aiter_lines():
                if row.startswith("data:"):
                    yield row

    async with asyncio.timeout(60):
        async for row in told():
            if '"compaction.completed"' in row:
                assert "gist" not in row
                break
