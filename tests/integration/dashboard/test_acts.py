"""What forms do, without a browser: acts through their pages, refusals in words, replies of other nodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from holdfast.app import Holdfast
from holdfast.domain.flushes import FlushState
from holdfast.errors import ModelError, StoreBusy
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.conftest import Running, StartServer, running_server, server_home, start_server
from tests.integration.dashboard.test_logins import form_of, logged_in

__all__ = ["server_home", "start_server"]


def answered(messages: list[dict[str, Any]], purpose: Purpose) -> str:
    return "They spoke of kelp." if purpose is not Purpose.TURN else f"You said: {messages[-1]['content']}"


@pytest.fixture
async def server(start_server: StartServer) -> Running:
    return await start_server(
        ScriptedModel(answered, window=100_000), compaction={"keep_first": 1, "keep_last": 2}
    )


async def sent(client: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    return await client.post(path, data={"form": await form_of(client), **fields})


async def test_compacting_leads_to_the_session_that_goes_on(server: Running) -> None:
    for number in range(4):
        said = (await server.say(f"about kelp {number}", x_holdfast_session_key="cli:ada"))["holdfast"]
    client = await logged_in(server)
    page = (await client.get(f"/sessions/{said['session_id']}/compact")).text
    assert "a summary replaces the older messages" in page
    answer = await sent(client, f"/sessions/{said['session_id']}/compact")
    assert answer.status_code == 303
    opened = (await client.get(answer.headers["location"])).text
    assert "by compaction" in opened and "They spoke of kelp." in opened


@pytest.mark.parametrize("key", ["café", "日本", "what? #1 100%"])
async def test_a_session_can_be_acted_on_by_a_key_of_other_writing(server: Running, key: str) -> None:
    client = await logged_in(server)
    assert (await sent(client, "/new", text="hello", key=key)).status_code == 303
    async with asyncio.timeout(60):
        while server.services.runner.running:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    answer = await sent(client, f"/sessions/{quote(key, safe='')}/cancel")
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].isascii()
    assert (await client.get(answer.headers["location"])).status_code == 200


async def test_a_form_that_is_sent_twice_speaks_once(server: Running) -> None:
    client = await logged_in(server)
    for _ in range(2):
        answer = await sent(client, "/new", text="only once", key="cli:ada", once="req_1")
        assert answer.status_code == 303
    async with asyncio.timeout(60):
        while server.services.runner.running:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    listed = (await server.client.get("/api/sessions/cli:ada/messages")).json()["data"]
    assert [each["content"] for each in listed] == ["only once", "You said: only once"]


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("/new", {"text": "  "}, 400, "message is empty"),
        ("/sessions/{id}/say", {"text": ""}, 400, "message is empty"),
        ("/sessions/{id}/end", {"reason": "boredom"}, 400, "must be one of"),
        ("/sessions/{id}/fork", {"up_to": "many"}, 400, "must be a number"),
        ("/sessions/{id}/explode", {}, 404, "No page"),
        ("/sessions/nobody/end", {}, 404, "nobody"),
        ("/turns/{turn}/retry", {}, 409, "only one that was interrupted"),
        ("/notices/note_x/delivered", {}, 404, "note_x"),
        ("/memories/mem_x", {"text": "new"}, 404, "mem_x"),
        ("/processes/proc_x/stop", {}, 404, "proc_x"),
        ("/flushes/{id}/retry", {}, 404, "flush"),
    ],
)
async def test_what_cannot_be_done_is_said_in_words(
    server: Running, path: str, fields: dict[str, str], status: int, words: str
) -> None:
    said = (await server.say("hello"))["holdfast"]
    client = await logged_in(server)
    answer = await sent(client, path.format(id=said["session_id"], turn=said["turn_id"]), **fields)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert words in answer.text


async def test_forms_of_odd_shapes_are_refused(server: Running) -> None:
    client = await logged_in(server)
    assert (await client.post("/new", json={"text": "x"})).status_code == 400
    large = await client.post("/new", data={"text": "x" * 9_000_000})
    assert large.status_code == 413
    many = await client.post("/new", data={f"f{number}": "" for number in range(200)})
    assert many.status_code == 400
    assert (await client.put("/new")).status_code == 405
    assert (await client.get("/sessions/x?before=9999999999999999999999")).status_code in (400, 404)


async def test_dead_letters_are_told_and_tried_again(start_server: StartServer) -> None:
    asleep = True

    def answer(messages: list[dict[str, Any]], purpose: Purpose) -> str | ModelError:
        if purpose is Purpose.FLUSH and asleep:
            return ModelError("the model was asleep", status=400)
        return answered(messages, purpose)

    server = await start_server(ScriptedModel(answer), memory={"min_messages": 2, "max_attempts": 1})
    sessions = []
    for number in range(3):
        said = (await server.say("remember me", x_holdfast_session_key=f"cli:{number}"))["holdfast"]
        await server.client.post(f"/api/sessions/{said['session_id']}/end", json={"reason": "new"})
        sessions.append(said["session_id"])
    first, second, third = sessions

    async def become(state: FlushState, *names: str) -> None:
        async with asyncio.timeout(60):
            while True:
                found = await server.store.flushes_of(names)
                if {each.state for each in found.values()} == {state}:
                    return
                await asyncio.sleep(0.05)

    await become(FlushState.DEAD, *sessions)
    client = await logged_in(server)
    page = (await client.get("/memories")).text
    assert page.count("the model was asleep") == 3
    tile = '<div class="tile bad"><b>3</b><span>failed <a href="/memories#failed">memory jobs'
    assert tile in (await client.get("/")).text
    asleep = False
    assert (await sent(client, f"/flushes/{first}/retry")).status_code == 303
    assert (await sent(client, f"/flushes/{second}/skip")).status_code == 303
    await become(FlushState.DONE, first)
    await become(FlushState.SKIPPED, second)
    await become(FlushState.DEAD, third)
    assert (await sent(client, "/flushes/retry")).status_code == 303
    await become(FlushState.DONE, third)
    assert "They spoke of kelp." in (await client.get("/memories")).text


async def test_a_reply_of_another_node_is_followed_by_its_drafts(server_home: Path) -> None:
    go_on = asyncio.Event()

    async def words(messages: list[dict[str, Any]], purpose: Purpose) -> Any:
        async def say() -> Any:
            yield "from "
            yield "afar"
            await go_on.wait()
            yield ", and on"

        return say()

    fast = {"server": {"checkpoint_seconds": 0.05}}
    async with (
        running_server(server_home, ScriptedModel(words), fast) as there,
        running_server(server_home) as here,
    ):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        headers = {"x-holdfast-session-key": "cli:ada"}
        asked = asyncio.create_task(there.client.post("/v1/chat/completions", json=body, headers=headers))
        async with asyncio.timeout(60):
            while not there.services.runner.running:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        (turn,) = there.services.runner.running
        text, end = "", None
        async with asyncio.timeout(60), here.client.stream("GET", f"/turns/{turn}/reply") as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data: "):
                    continue
                said = json.loads(line[6:])
                if "end" in said:
                    end = said["end"]
                    break
                text = text[: said["at"]] + said["text"]
                if text == "from afar":
                    page = (await here.client.get("/sessions/cli:ada")).text
                    assert "from afar" in page and "answering" in page
                    go_on.set()
        assert end == "completed"
        assert text.startswith("from afar")
        assert (await asked).status_code == 200


async def test_an_admin_who_looks_does_not_keep_their_own_page_busy(server: Running) -> None:
    ada = await server.client_of("ada")
    said = (await server.say("mine", client=ada))["holdfast"]
    client = await logged_in(server)
    before = (await server.store.event_bounds())[1]
    for _ in range(3):
        await client.get(f"/sessions/{said['session_id']}?owner=ada")
    events = await server.store.events(owner="ada", after=before)
    assert [event.type for event in events] == ["messages.read_by_admin"] * 3
    script = (await client.get("/static/holdfast.js")).text
    assert '"messages.read_by_admin") return' in script  # else each look would be a reason for the next


@pytest.mark.parametrize("path", ["/bulk/end", "/bulk/delete", "/memories/forget"])
async def test_what_failed_for_one_of_several_names_no_file(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    said = (await server.say("about kelp", x_holdfast_session_key="cli:ada"))["holdfast"]
    client = await logged_in(server)

    async def busy(*args: object, **named: object) -> None:
        raise StoreBusy("the lock of /srv/secret.db was held too long")

    for name in ("end_session", "delete_conversation", "forget_memory"):
        monkeypatch.setattr(Holdfast, name, busy)
    answer = await sent(client, path, sure="1", **{f"id-{said['session_id']}": ""})
    assert answer.status_code == 200 and "store is unavailable" in answer.text
    assert "/srv/secret.db" not in answer.text
    assert "/srv/secret.db" in caplog.text
