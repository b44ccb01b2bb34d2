"""Renaming, regenerating, editing, withdrawing and exporting on a conversation's page, without a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.dashboard import revisions
from holdfast.domain.api_keys import RateLimits, Scope
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from tests.integration.api.conftest import Running, StartServer, server_home, start_server
from tests.integration.api.operating import got, refused
from tests.integration.dashboard.test_acts import sent
from tests.integration.dashboard.test_logins import logged_in

__all__ = ["server_home", "start_server"]

CHAT, KEY = "/v1/chat/completions", "cli:ada"


class Counting:
    """Numbers its answers, and tells what the last one was given."""

    def __init__(self) -> None:
        self.answers = 0
        self.given: list[str] = []

    def __call__(self, messages: list[dict[str, Any]], purpose: Purpose) -> str:
        self.answers += 1
        self.given = [each["content"] for each in messages if each["role"] != "system"]
        return f"answer {self.answers}"


@pytest.fixture
def model() -> Counting:
    return Counting()


@pytest.fixture
async def server(start_server: StartServer, model: Counting) -> Running:
    return await start_server(ScriptedModel(model))


async def over(server: Running) -> None:
    async with asyncio.timeout(60):
        while server.services.runner.running:  # noqa: ASYNC110 - nothing notifies
            await asyncio.sleep(0.01)


async def post(server: Running, client: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    answer = await sent(client, path, **fields)
    await over(server)
    return answer


async def test_a_conversation_is_renamed(server: Running) -> None:
    said = (await server.say("hello", x_holdfast_session_key=KEY))["holdfast"]
    client = await logged_in(server)
    path = f"/sessions/{said['session_id']}/title"
    assert (await post(server, client, path, title="Tides & <b>ports</b>")).status_code == 303
    assert (
        "Tides &amp; &lt;b&gt;ports&lt;/b&gt;" in (await client.get(f"/sessions/{said['session_id']}")).text
    )
    assert 'value="Tides &amp; &lt;b&gt;ports&lt;/b&gt;"' in (await client.get(path)).text
    assert (await server.client.get(f"/api/sessions/{KEY}")).json()["title"] == "Tides & <b>ports</b>"


async def test_the_last_reply_is_generated_again_and_the_first_one_stays_readable(
    server: Running, model: Counting
) -> None:
    said = (await server.say("hello", x_holdfast_session_key=KEY))["holdfast"]
    client = await logged_in(server)
    page = f"/sessions/{said['session_id']}"
    assert "Regenerate" in (await client.get(page)).text
    assert (await post(server, client, f"{page}/again")).status_code == 303
    assert model.given == ["hello"]
    text = (await client.get(page)).text
    assert "#2, assistant: no longer part of the conversation" in text and "answer 2" in text
    assert (await post(server, client, f"{page}/again")).status_code == 303  # a second time
    assert model.given == ["hello"]
    await server.say("and then?", x_holdfast_session_key=KEY)
    assert model.given == ["hello", "answer 3", "and then?"]


async def test_nothing_is_generated_again_before_something_was_said(server: Running) -> None:
    opened = await server.store.create_conversation("default", server.services.holdfast.node_id)
    client = await logged_in(server)
    assert "Regenerate" not in (await client.get(f"/sessions/{opened.id}")).text
    refused = await post(server, client, f"/sessions/{opened.id}/again")
    assert refused.status_code == 409 and "no finished reply" in refused.text
    assert (await post(server, client, "/sessions/nothing/again")).status_code == 404


async def test_a_queued_message_is_withdrawn(start_server: StartServer) -> None:
    go_on = asyncio.Event()

    async def answer() -> AsyncIterator[str]:
        await go_on.wait()
        yield "done"

    server = await start_server(ScriptedModel(lambda messages, purpose: answer()))
    headers = {"x-holdfast-session-key": KEY, "x-holdfast-when-busy": "queue"}
    body = {"messages": [{"role": "user", "content": "first"}]}
    first = asyncio.create_task(server.client.post("/v1/chat/completions", json=body, headers=headers))
    async with asyncio.timeout(60):
        while not server.services.runner.running:  # noqa: ASYNC110 - nothing notifies
            await asyncio.sleep(0.01)
    body = {"messages": [{"role": "user", "content": "second thoughts"}]}
    second = asyncio.create_task(server.client.post("/v1/chat/completions", json=body, headers=headers))
    async with asyncio.timeout(60):
        queue: list[dict[str, Any]] = []
        while not queue:
            queue = (await server.client.get(f"/api/sessions/{KEY}/queue")).json()["data"]
            await asyncio.sleep(0.01)
    client = await logged_in(server)
    assert f'/turns/{queue[0]["id"]}/withdraw"' in (await client.get(f"/sessions/{KEY}")).text
    assert (await sent(client, f"/turns/{queue[0]['id']}/withdraw")).status_code == 303
    assert (await sent(client, f"/turns/{queue[0]['id']}/withdraw")).status_code == 409
    assert "second thoughts" not in (await client.get(f"/sessions/{KEY}")).text
    go_on.set()
    assert (await first).status_code == 200
    await second


async def test_a_message_is_edited_and_what_followed_leaves_the_context(
    server: Running, model: Counting
) -> None:
    for text in ("one", "two", "three"):
        said = (await server.say(text, x_holdfast_session_key=KEY))["holdfast"]
    client = await logged_in(server)
    edit = f"/sessions/{said['session_id']}/messages/3/edit"
    assert ">two</textarea>" in (await client.get(edit)).text
    assert (await post(server, client, edit, text="")).status_code == 400
    answer = await post(server, client, edit, text="zwei")
    assert answer.status_code == 303
    assert model.given == ["one", "answer 1", "zwei"]
    text = (await client.get(answer.headers["location"])).text
    assert text.count("no longer part of the conversation") == 4
    assert (await post(server, client, edit, text="deux")).status_code == 409, "it is not in the context"
    again = answer.headers["location"].partition("#")[0] + "/messages/7/edit"
    assert (await post(server, client, again, text="dos")).status_code == 303
    assert model.given == ["one", "answer 1", "dos"], "not what the edit before had removed"
    first = answer.headers["location"].partition("#")[0] + "/messages/1/edit"
    assert (await post(server, client, first, text="uno")).status_code == 303
    assert model.given == ["uno"]


async def test_an_edit_that_is_refused_leaves_the_conversation_as_it_was(
    server: Running, model: Counting
) -> None:
    _, token = await server.services.holdfast.create_key(
        "ada", Scope.CHAT, (), limits=RateLimits(requests_per_day=3)
    )
    asking = {"authorization": f"Bearer {token}", "x-holdfast-session-key": KEY}
    for text in ("one", "two", "three"):
        body = {"messages": [{"role": "user", "content": text}]}
        said = (await server.client.post(CHAT, json=body, headers=asking)).json()["holdfast"]
    client = await logged_in(server, str(token))
    edit = f"/sessions/{said['session_id']}/messages/3/edit"
    refused_edit = await post(server, client, edit, text="zwei")
    assert refused_edit.status_code == 429, "the key has used up its requests"
    shown = await server.services.holdfast.visible("ada", said["conversation_id"])
    assert [each.seq for each in shown] == [1, 2, 3, 4, 5, 6]
    assert (await client.get(edit)).status_code == 200, "it can be edited later"


@pytest.mark.parametrize("seq", ["2", "99", "0", "x", "9" * 40])
async def test_only_a_message_of_the_user_is_edited(server: Running, seq: str) -> None:
    said = (await server.say("hello", x_holdfast_session_key=KEY))["holdfast"]
    client = await logged_in(server)
    path = f"/sessions/{said['session_id']}/messages/{seq}/edit"
    assert (await client.get(path)).status_code == 409
    assert (await post(server, client, path, text="x")).status_code == 409


async def test_a_conversation_is_downloaded(server: Running) -> None:
    said = (await server.say("**hello**", x_holdfast_session_key=KEY))["holdfast"]
    client = await logged_in(server)
    page = f"/sessions/{said['session_id']}/export"
    file = await client.get(f"{page}/json")
    assert file.headers["content-disposition"].startswith('attachment; filename="holdfast-conv_')
    assert [each["content"] for each in file.json()["messages"]] == ["**hello**", "answer 1"]
    assert file.json()["session"]["key"] == KEY
    text = (await client.get(f"{page}/md")).text
    assert text.startswith("# ") and "\n\n**hello**\n\n## assistant" in text and text.endswith("answer 1\n")
    assert (await client.get(f"{page}/exe")).status_code == 400
    other = await logged_in(server, await server.key("eve"))
    assert (await other.get(f"{page}/json")).status_code == 404


async def test_an_export_is_written_page_by_page_as_one_document(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation may have 256 MiB: encoded whole, it stopped every other request for seconds."""
    monkeypatch.setattr(revisions, "PAGE", 1)
    for _ in range(2):
        said = (await server.say("hello\n\nagain", x_holdfast_session_key=KEY))["holdfast"]
    client = await logged_in(server)
    page = f"/sessions/{said['session_id']}/export"
    file = await client.get(f"{page}/json")
    texts = ["hello\n\nagain", "answer 1", "hello\n\nagain", "answer 2"]
    assert [each["content"] for each in file.json()["messages"]] == texts
    assert file.content == msgspec.json.format(file.content, indent=2)
    assert "content-length" not in file.headers, "it is sent before all of it is known"
    assert (await client.get(f"{page}/md")).text.count("\n\n## ") == 4
    created = await server.client.post("/v1/conversations", json={})
    empty = await client.get(f"/sessions/{created.json()['id']}/export/json")
    assert empty.json()["messages"] == [] and empty.content == msgspec.json.format(empty.content, indent=2)


async def test_a_conversation_is_one_row_with_its_title_and_preview(server: Running) -> None:
    for _ in range(3):
        said = (await server.say("what of the tides?", x_holdfast_session_key=KEY))["holdfast"]
        await server.client.post(f"/api/sessions/{said['session_id']}/end", json={"reason": "new"})
    client = await logged_in(server)
    page = (await client.get("/sessions")).text
    assert page.count("<tr data-row ") == 1
    assert "what of the tides?" in page and '<span class="preview dim">answer 3</span>' in page
    assert (await client.get("/sessions?all=1")).text.count("<tr data-row ") == 3
    assert "No matching sessions" in (await client.get("/sessions?source=slack")).text


async def test_a_search_marks_its_hits_and_links_to_the_message(server: Running) -> None:
    said = (await server.say("high <b>tide</b>", x_holdfast_session_key=KEY))["holdfast"]
    client = await logged_in(server)
    page = (await client.get("/search?q=tid")).text
    assert "1 message<" in page and "high &lt;b&gt;<mark>tid</mark>e&lt;/b&gt;" in page
    assert f'/sessions/{said["session_id"]}?before=31&amp;find=tid#m1"' in page


async def test_search_filters_count_and_page_over_all_hits(server: Running) -> None:
    """Hundreds of better hits of another source do not push out those that are wanted."""
    rare = [
        {"role": "user", "content": f"among other words of note {number}, a tide"} for number in range(60)
    ]
    many = [{"role": "user", "content": "tide tide tide"}] * 400
    for key, messages in ((KEY, rare), ("loud:one", many)):
        await server.client.post(CHAT, json={"messages": messages}, headers={"x-holdfast-session-key": key})
    source = KEY.partition(":")[0]
    client = await logged_in(server)
    first = (await client.get(f"/search?q=tide&source={source}&role=user")).text
    assert "60 messages, 1 to 50 shown" in first and first.count("<article ") == 50
    second = (await client.get(f"/search?q=tide&source={source}&role=user&skip=50")).text
    assert "60 messages, 51 to 60 shown" in second and second.count("<article ") == 10
    assert "Next page" not in second and f"q=tide&amp;role=user&amp;source={source}" in second
    assert "No results." in (await client.get("/search?q=tide&source=slack&period=24h")).text
    hits = await got(
        server, f"/api/search?q=tide&source={source}&role=user&since=2026-01-01T00:00:00Z&limit=100"
    )
    assert (len(hits["data"]), hits["has_more"]) == (60, False)
    assert (await got(server, "/api/search?q=tide&since=2999-01-01"))["data"] == []
    await refused(server, "GET", "/api/search?q=tide&since=yesterday", 400, "invalid_value")
