"""`/api/activity` and `/api/events`: watching, by asking again and again or by listening."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node, NodeKind
from holdfast.os_support import identity
from holdfast.server import sse
from holdfast.server.admin import events
from holdfast.store.sqlite.engine import open_store
from tests.integration.api.conftest import Running, StartServer
from tests.integration.api.operating import Waiting, asked, got, refused, speaking

# --- activity ------------------------------------------------------------------------------------------


async def test_activity_tells_who_does_what_and_who_has_just_ended(start_server: StartServer) -> None:
    waiting = Waiting()
    server = await start_server(waiting.model())
    task = await speaking(server, waiting, "cli:ada")
    told = await got(server, "/api/activity")
    assert (told["node"], told["running_turns"]) == (server.services.holdfast.node_id, 1)
    (running,) = told["data"]
    assert (running["key"], running["state"], running["doing"]) == ("cli:ada", "active", "model")
    (turn,) = (await got(server, "/api/sessions/cli:ada/turns"))["data"]
    assert (running["since"], running["node"], running["processes"]) == (turn["started_at"], told["node"], [])
    waiting.may_go_on.set()
    await task
    idle = await got(server, "/api/activity")
    assert (idle["running_turns"], idle["ended"]) == (0, [])
    assert (idle["data"][0]["state"], idle["data"][0]["doing"]) == ("idle", None)
    await asked(server, "POST", "/api/sessions/cli:ada/end")
    after = await got(server, "/api/activity")
    (ended,) = after["ended"]
    assert (after["data"], ended["session_id"], ended["end_reason"]) == ([], running["session_id"], "closed")


async def test_the_title_is_the_same_in_activity_lineage_and_list(server: Running) -> None:
    """Where none was set, the conversation's first words; another owner's words are shown to no admin."""
    await server.say("what is a lighthouse", x_holdfast_session_key="a")
    (listed,) = (await got(server, "/api/sessions"))["data"]
    lineage = await got(server, "/api/sessions/a/lineage")
    (alive,) = (await got(server, "/api/activity"))["data"]
    assert listed["title"] == lineage["title"] == alive["title"] == "what is a lighthouse"
    assert {field: lineage["data"][0][field] for field in listed} == listed
    await asked(server, "POST", "/api/sessions/a/end")
    (ended,) = (await got(server, "/api/activity"))["ended"]
    assert ended["title"] == "what is a lighthouse"
    other = await server.with_token(await server.key("root", "admin"))
    everybody = await got(server, "/api/activity?owner=*", other)
    assert [(each["owner"], each["title"]) for each in everybody["ended"]] == [("default", None)]


async def test_who_polls_gets_304_until_something_has_changed(server: Running) -> None:
    await server.say(x_holdfast_session_key="a")
    first = await server.client.get("/api/activity")
    seen = {"if-none-match": first.headers["etag"]}
    same = await server.client.get("/api/activity", headers=seen)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"])
    await server.say("more", x_holdfast_session_key="a")
    changed = await server.client.get("/api/activity", headers=seen)
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]


async def test_the_dead_are_told_as_orphaned_before_any_sweep(server: Running) -> None:
    await server.services.holdfast.sweeper.stop()
    another = await open_store(Path(server.store.location))
    node = Node(new_id("node"), NodeKind.CLI, identity())
    await another.join(node)
    await another.open_session("default", Address(key="cli:x"), node.id, attached=True)
    assert (await got(server, "/api/activity"))["data"][0]["state"] == "idle"
    await another.close()  # as a process does that is killed: without leaving
    (told,) = (await got(server, "/api/activity"))["data"]
    assert (told["state"], told["doing"], told["node"]) == ("orphaned", None, node.id)
    assert [each["key"] for each in (await got(server, "/api/sessions?state=orphaned"))["data"]] == ["cli:x"]


# --- events --------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(
    client: httpx.AsyncClient, query: str = "", **headers: str
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The events of a stream, one by one; each came under its own number as id."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.stream("GET", f"/api/events{query}", headers=named, timeout=60) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _events(response)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    number = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            number = line.removeprefix("id: ")
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert str(event["id"]) == number
            yield event


async def until(told: AsyncIterator[dict[str, Any]], type_: str) -> list[dict[str, Any]]:
    """What is told, up to the first event of this type."""
    heard = []
    async with asyncio.timeout(60):
        async for event in told:
            heard.append(event)
            if event["type"] == type_:
                return heard
    raise AssertionError(f"the stream ended without {type_}")


async def test_a_listener_hears_the_past_and_then_what_happens(server: Running) -> None:
    client = await server.client_of("ada")
    await server.say(client=client, x_holdfast_session_key="a")
    async with listening(client) as told:
        past = await until(told, "turn.completed")
        assert [event["type"] for event in past] == [
            "key.created",
            "conversation.opened",
            "session.opened",
            "turn.started",
            "turn.completed",
        ]
        await server.say("more", client=client, x_holdfast_session_key="a")
        now = await until(told, "turn.completed")
        assert [event["type"] for event in now] == ["turn.started", "turn.completed"]
        assert now[0]["id"] > past[-1]["id"]


async def test_a_listener_goes_on_behind_the_last_event_it_has_seen(server: Running) -> None:
    client = await server.client_of("ada")
    await server.say(client=client, x_holdfast_session_key="a")
    async with listening(client) as told:
        past = await until(told, "turn.completed")
    cursor = past[2]["id"]
    async with listening(client, f"?after={cursor}") as told:
        assert await until(told, "turn.completed") == past[3:]
    async with listening(client, "?after=0", last_event_id=str(cursor)) as told:
        assert await until(told, "turn.completed") == past[3:], "a client that comes back knows better"


async def test_a_listener_may_ask_only_for_what_comes(server: Running) -> None:
    client = await server.client_of("ada")
    await server.say(client=client, x_holdfast_session_key="a")
    async with listening(client, "?after=now") as told:
        await server.say("more", client=client, x_holdfast_session_key="a")
        assert [event["type"] for event in await until(told, "turn.completed")] == [
            "turn.started",
            "turn.completed",
        ]


@pytest.mark.parametrize("cursor", ["-1", "x", "1.5", "٣", "9" * 30])
async def test_a_cursor_that_is_none_is_refused(server: Running, cursor: str) -> None:
    await refused(server, "GET", f"/api/events?after={cursor}", 400, "invalid_value")


async def test_a_long_past_of_others_is_read_in_slices(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SLICE", 3)
    monkeypatch.setattr(events, "PAGE", 2)
    client = await server.client_of("ada")
    for number in range(5):
        await server.say(str(number))
        await server.say(str(number), client=client, x_holdfast_session_key="a")
    wanted = [event.id for event in await server.store.events(owner="ada")]
    async with listening(client) as told:
        heard = []
        async with asyncio.timeout(60):
            async for event in told:
                heard.append(event["id"])
                if event["id"] == wanted[-1]:
                    break
    assert heard == wanted


async def test_an_owner_hears_only_what_is_its_own_and_an_operator_everything(server: Running) -> None:
    ada, bob = await server.client_of("ada"), await server.client_of("bob")
    await server.say(client=bob)
    await server.say(client=ada)
    async with listening(ada) as told:
        heard = await until(told, "turn.completed")
    theirs = {event.id for event in await server.store.events(owner="bob")}
    assert theirs
    assert not theirs & {event["id"] for event in heard}
    async with listening(server.client, "?owner=*") as told:
        everything = [event["id"] for event in [*await until(told, "turn.completed")]]
    assert theirs <= set(everything)
    async with listening(server.client, "?owner=bob") as told:
        assert {event["id"] for event in await until(told, "turn.completed")} == theirs


async def test_a_stream_ends_when_the_server_is_about_to_stop(server: Running) -> None:
    async with listening(server.client, "?after=now") as told:
        server.services.draining.set()
        async with asyncio.timeout(60):
            assert [event async for event in told] == []


async def test_a_stream_ends_when_its_key_is_revoked(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.05)
    client = await server.client_of("ada")
    async with client.stream("GET", "/api/events?after=now", timeout=60) as response:
        (key,) = await server.store.keys("ada")
        await server.store.revoke_key(key.id, "ada")
        async with asyncio.timeout(60):
            told = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    assert json.loads(told[-1].removeprefix("data: "))["error"]["code"] == "invalid_api_key"


async def test_an_idle_stream_is_kept_alive_by_comments(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.1)
    monkeypatch.setattr(sse, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.05)
    async with server.client.stream("GET", "/api/events?after=now", timeout=60) as response:
        async with asyncio.timeout(60):
            async for line in response.aiter_lines():
                if line == ": keepalive":
                    break
