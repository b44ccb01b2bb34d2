"""Pages of operators in a real Chromium: nodes, notices, memories, processes, logs and files of messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from playwright.async_api import expect

from holdfast.domain.attachments import FileRef
from holdfast.domain.connectors import Batch, ConnectorClaim, Incoming, SentPart
from holdfast.domain.flushes import FlushState
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node, NodeKind
from holdfast.errors import ModelError
from holdfast.models.base import Purpose
from holdfast.models.scripted import Line, ScriptedModel
from holdfast.os_support import identity
from holdfast.server.access_log import LOGGER
from holdfast.server.log_buffer import LogBuffer
from tests.integration.dashboard.conftest import Site, StartSite
from tests.integration.dashboard.hostile import HOSTILE, MARK
from tests.integration.dashboard.test_pages import say

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


# --- nodes -----------------------------------------------------------------------------------------------


async def test_nodes_show_version_uptime_turns_and_why_one_is_gone(site: Site) -> None:
    store = site.server.store
    elsewhere = replace(identity(), host="reef", boot_id="b", pid_ns="p", pid=7, machine="m")
    left, hung, present = (
        Node(new_id("node"), kind, elsewhere, version="9.9.9")
        for kind in (NodeKind.CLI, NodeKind.LIBRARY, NodeKind.SERVER)
    )
    for node in (left, hung, present):
        await store.join(node)
    await store.leave(left.id, "closed")
    assert await store.reap(hung.id, 0, "no heartbeat for 90 s")
    page = await site.visitor()
    await page.goto("/nodes")
    own = page.get_by_role("row", name="this server")
    await expect(own).to_contain_text("alive")
    await expect(own).to_contain_text("server")
    await expect(own).to_contain_text("0.1.0")
    await expect(page.get_by_role("row", name="9.9.9")).to_contain_text("reef, pid 7")
    await expect(page.locator("tr[data-row]")).to_have_count(2)
    await page.get_by_label("Which nodes").get_by_role("link", name="Also gone").click()
    await expect(page.locator("tr[data-row]")).to_have_count(4)
    await expect(page.get_by_role("row", name="left cleanly")).to_contain_text("cli")
    await expect(page.get_by_role("row", name="no heartbeat for 90 s")).to_contain_text("reaped")
    for node in (await site.server.client.get("/api/nodes", params={"gone": 1})).json()["data"]:
        assert node["version"] in ("0.1.0", "9.9.9")
        assert node["uptime_seconds"] >= 0
        assert node["running_turns"] == 0


# --- notices ---------------------------------------------------------------------------------------------


async def test_notices_are_filtered_and_say_where_they_were_sent(site: Site) -> None:
    store = site.server.store
    claim, batch = await wrote_from_a_phone(site)
    conversation = batch.place.conversation_id
    assert conversation is not None
    await store.add_notice("default", conversation, "reset", "First notice.")
    await store.settle_messages(claim, batch)
    (outgoing,) = await store.claim_deliveries(claim)
    await store.delivery_sent(claim, outgoing.id, [SentPart("77", "x")])
    second = await store.add_notice("default", conversation, "reset", "Second notice.")
    await store.notice_sent(second.id)
    page = await site.visitor()
    await page.goto("/notices")
    notices = page.locator("article")
    await expect(notices).to_have_count(1)
    await expect(notices).to_contain_text("Second notice.")
    await expect(notices).to_contain_text("accepted by the webhook")
    await expect(notices).to_contain_text("waits to be sent to telegram:dm:42 by the connector phone")
    await page.get_by_label("State").get_by_role("link", name="Delivered", exact=True).click()
    await expect(notices).to_have_count(1)
    await expect(notices).to_contain_text("First notice.")
    await expect(notices).to_contain_text("sent to telegram:dm:42 by the connector phone")
    await page.get_by_label("State").get_by_role("link", name="All").click()
    await expect(notices).to_have_count(2)
    await expect(notices.first).to_contain_text("Second notice.")
    await notices.first.get_by_role("link", name="telegram:dm:42").click()
    await page.wait_for_url(f"**/sessions/{conversation}*")


async def test_a_notice_of_a_chat_without_a_key_names_its_first_words_to_its_owner_only(site: Site) -> None:
    said = (await site.server.say("why is the sea salt"))["holdfast"]
    await site.server.store.add_notice("default", said["conversation_id"], "reset", "It was reset.")
    page = await site.visitor()
    await page.goto("/notices")
    await expect(page.locator("article").get_by_role("link", name="why is the sea salt")).to_be_visible()
    await page.goto("/notices?owner=*")
    await expect(page.locator("article")).to_have_count(1)
    await expect(page.get_by_text("why is the sea salt")).to_have_count(0)


@pytest.mark.parametrize("scripts", [True, False])
async def test_all_notices_of_all_owners_are_marked_at_once(site: Site, scripts: bool) -> None:
    for owner in ("default", "bob"):
        client = await site.server.client_of(owner)
        where = (await site.server.say("hello", client=client))["holdfast"]
        for number in range(3):
            text = f"Reset {number} of {owner}."
            await site.server.store.add_notice(owner, where["conversation_id"], "reset", text)
    page = await site.visitor(scripts=scripts)
    await page.goto("/notices?owner=*")
    await expect(page.locator("article")).to_have_count(6)
    await (
        page.locator("article")
        .filter(has_text="of bob")
        .first.get_by_role("button", name="Mark as delivered")
        .click()
    )
    await expect(page.locator("article")).to_have_count(5)
    assert "owner=*" in page.url or "owner=%2A" in page.url
    await page.get_by_role("button", name="Mark all of all owners as delivered").click()
    await expect(page.get_by_text("No undelivered notices")).to_be_visible()


# --- memories --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scripts", [True, False])
async def test_memories_are_rendered_and_several_are_forgotten(site: Site, scripts: bool) -> None:
    where = await say(site, "hello")
    for text in ("She likes **kelp**.", "- a list\n- of two", "Kept."):
        await site.server.store.remember("default", where["conversation_id"], text)
    page = await site.visitor(scripts=scripts)
    await page.goto("/memories")
    await expect(page.locator("article strong")).to_have_text("kelp")
    await expect(page.locator("article li")).to_have_count(2)
    for text in ("She likes **kelp**.", "- a list"):
        await page.locator("article").filter(has_text=text.strip("- *.")[:6]).get_by_role("checkbox").check()
    await page.get_by_role("button", name="Forget", exact=True).click()
    await expect(page.get_by_role("heading", name="Forget 2 memories?")).to_be_visible()
    await expect(page.get_by_text("She likes **kelp**.")).to_be_visible()
    await page.get_by_role("button", name="Forget them").click()
    await expect(page.get_by_role("status")).to_have_text("2 of 2 done.")
    await page.get_by_role("link", name="Back to the memories").click()
    await expect(page.locator("article")).to_have_count(1)
    await expect(page.locator("article")).to_contain_text("Kept.")


async def test_all_memories_of_a_page_are_selected_at_once(site: Site) -> None:
    where = await say(site, "hello")
    for text in ("One.", "Two."):
        await site.server.store.remember("default", where["conversation_id"], text)
    page = await site.visitor()
    await page.goto("/memories")
    await page.get_by_label("all on this page").check()
    await page.get_by_role("button", name="Forget", exact=True).click()
    await expect(page.get_by_role("heading", name="Forget 2 memories?")).to_be_visible()


def asleep(messages: list[dict[str, Any]], purpose: Purpose) -> Line:
    return "Hello." if purpose is Purpose.TURN else ModelError("the model was asleep")


async def test_the_overview_leads_to_the_jobs_that_wait_or_failed(start_site: StartSite) -> None:
    site = await start_site(ScriptedModel(asleep), memory={"min_messages": 2, "max_attempts": 1})
    where = await say(site, "remember me")
    await site.server.client.post(f"/api/sessions/{where['session_id']}/end", json={"reason": "closed"})

    async def flush_is(state: FlushState, attempts: int) -> None:
        async with asyncio.timeout(60):
            while True:
                found = (await site.server.store.flushes_of([where["session_id"]])).values()
                if [(each.state, each.attempts) for each in found] == [(state, attempts)]:
                    return
                await asyncio.sleep(0.05)

    await flush_is(FlushState.PENDING, 0)  # it may be resumed, so its flush waits a while
    page = await site.visitor()
    await page.locator(".tile").filter(has_text="queued").get_by_role("link").click()
    job = page.locator("#queued .process")
    await expect(job).to_contain_text("cli:ada ended closed, 0 attempts, next in")
    await job.get_by_role("button", name="Try now").click()
    await flush_is(FlushState.DEAD, 1)
    await page.goto("/")
    await page.locator(".tile").filter(has_text="failed").get_by_role("link").click()
    failed = page.locator("#failed .process")
    await expect(failed).to_contain_text("the model was asleep")
    await failed.get_by_role("button", name="Skip").click()
    await expect(failed).to_have_count(0)
    assert site.said == []


# --- processes -------------------------------------------------------------------------------------------


async def test_processes_are_filtered_by_state_and_session(site: Site) -> None:
    supervisor = site.server.services.holdfast.supervisor
    first = (await site.server.say("hello", x_holdfast_session_key="cli:first"))["holdfast"]
    second = (await site.server.say("hello", x_holdfast_session_key="cli:second"))["holdfast"]
    page = await site.visitor()
    await page.goto("/processes?state=exited")
    rows = page.locator("tr[data-row]")
    await expect(page.get_by_label("Session").get_by_role("option")).to_have_count(1)
    for where, command in ((first, "sleep 300"), (second, "sleep 301"), (second, "false")):
        await supervisor.start("default", where["session_id"], command, str(site.home))
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("exit 1")
    await page.get_by_label("State").select_option("running")
    await expect(rows).to_have_count(2)
    await expect(rows.filter(has_text="sleep 300")).to_contain_text("cli:first")
    await expect(rows.first).to_contain_text("B")  # its memory
    await page.get_by_label("Session").select_option(label="cli:second")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("sleep 301")
    await page.get_by_label("State").select_option("all")
    await expect(rows).to_have_count(2)
    await page.goto("/processes?session=sess_unknown")
    await expect(page.get_by_text("sess_unknown").last).to_be_visible()
    await page.goto("/processes")
    for command in ("sleep 300", "sleep 301"):
        await page.get_by_role("link", name=f"Stop {command}").click()
        await page.get_by_role("button", name="Stop it").click()
        await page.goto("/processes")
        await expect(rows.filter(has_text=command)).to_have_count(0)
    await page.get_by_role("link", name="Show ended ones").click()
    await expect(rows).to_have_count(3)


# --- logs ------------------------------------------------------------------------------------------------


@pytest.fixture
def logged(site: Site) -> Iterator[LogBuffer]:
    """The server's buffer, fed as a server's is."""
    buffer, root, access = site.server.services.log_buffer, logging.getLogger(), logging.getLogger(LOGGER)
    before = access.level
    root.addHandler(buffer)
    access.setLevel(logging.INFO)
    yield buffer
    root.removeHandler(buffer)
    access.setLevel(before)


async def test_logs_are_filtered_by_level_kind_and_text(site: Site, logged: LogBuffer) -> None:
    log = logging.getLogger("holdfast.test")
    log.warning("the tide is late")
    try:
        raise ValueError(HOSTILE[0])
    except ValueError:
        log.exception("the tide failed: %s (request req_tide)", HOSTILE[1])
    await site.server.say("a pearl")
    await site.server.client.get("/api/sessions/sess_none")
    page = await site.visitor()
    await page.locator("nav summary").click()
    await page.get_by_role("link", name="Logs").click()
    rows = page.locator(".loglines tbody tr")
    await expect(rows.filter(has_text="the tide is late")).to_contain_text("warning")
    await page.get_by_text("Traceback", exact=True).click()
    await expect(page.locator(".loglines pre")).to_contain_text("ValueError")
    assert await page.evaluate(f"typeof {MARK}") == "undefined"
    chat = rows.filter(has_text="POST /v1/chat/completions")
    await expect(chat).to_contain_text("200")
    assert "pearl" not in await page.content()
    await expect(rows.filter(has_text="GET /logs")).to_have_count(0)
    await page.get_by_label("Kind").select_option("everything, also pages")
    await expect(rows.filter(has_text="GET /static/{name}").first).to_be_visible()
    await page.get_by_label("Kind").select_option("only the log")
    await expect(chat).to_have_count(0)
    await page.get_by_label("Kind").select_option("only failed requests")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("404")
    await page.get_by_label("Kind").select_option("log and API requests")
    await page.get_by_label("Level").select_option("error")
    await expect(rows).to_have_count(1)
    await page.get_by_title("Lines of req_tide").click()
    await expect(page.get_by_role("status")).to_contain_text("1 line with “req_tide”")
    await page.get_by_role("link", name="Show all").click()
    await expect(rows.filter(has_text="the tide is late")).to_be_visible()
    await page.get_by_label("Text, route").fill("no such line")
    await expect(page.get_by_text("No matching lines.")).to_be_visible()


async def test_logs_are_live_until_they_are_paused(site: Site, logged: LogBuffer) -> None:
    log = logging.getLogger("holdfast.test")
    page = await site.visitor()
    await page.goto("/logs")
    log.warning("high water")
    await expect(page.get_by_text("high water")).to_be_visible()
    await page.get_by_label("live").uncheck()
    await page.wait_for_load_state("networkidle")
    log.warning("low water")
    await page.evaluate("new Promise((done) => setTimeout(done, 4000))")
    await expect(page.get_by_text("low water")).to_have_count(0)
    await page.get_by_label("live").check()
    await expect(page.get_by_text("low water")).to_be_visible()


async def test_an_error_page_leads_to_its_lines_in_the_log(site: Site, logged: LogBuffer) -> None:
    page = await site.visitor()
    await page.goto("/sessions/sess_none")
    await page.get_by_title("Its lines in the log").click()
    await expect(page.locator(".loglines tbody tr")).to_contain_text("GET /sessions/{id}")


async def test_logs_are_for_admins(site: Site) -> None:
    client = await site.server.client_of("bob")
    assert (await client.get("/api/logs")).status_code == 403
    assert (await client.get("/logs")).status_code == 403
    assert (await site.server.client.get("/api/logs", params={"level": "loud"})).status_code == 400


# --- files of messages -----------------------------------------------------------------------------------


async def wrote_from_a_phone(site: Site) -> tuple[ConnectorClaim, Batch]:
    """A message that came through a connector, taken to be answered."""
    store = site.server.store
    claim = await store.claim_connector("phone", "telegram", site.server.services.holdfast.node_id)
    assert isinstance(claim, ConnectorClaim)
    event = Incoming("1", "dm:42", "telegram:dm:42", "42", "hello")
    await store.ask_pairing("phone", event, "CODE-CODE")
    await store.approve_pairing("CODE-CODE", "default")
    await store.receive("phone", [event], [], claimed=claim)
    ((place, _),) = await store.waiting_places("phone")
    batch = await store.take_messages(claim, place, new_id("turn"), "telegram", timedelta(0))
    assert isinstance(batch, Batch)
    return claim, batch


async def test_files_are_listed_and_downloaded_never_shown(site: Site) -> None:
    store = site.server.store
    claim, batch = await wrote_from_a_phone(site)
    hostile = f"<script>{MARK}=1</script>"
    for number, (name, mime) in enumerate(
        [("kelp.html", "text/html"), ("<img src=x onerror=window.__hit=1>.svg", "image/svg+xml"), ("", "")]
    ):
        await store.add_attachment(claim, batch, f"1 {number}", FileRef("f", name, mime), hostile.encode())
    await store.settle_messages(claim, batch)
    page = await site.visitor()
    await page.goto("/sessions/telegram:dm:42")
    files = page.locator("#files li")
    await expect(files).to_have_count(3)
    await expect(files.first).to_contain_text("text/html, 31 Bytes")
    async with page.expect_download() as downloading:
        await files.first.get_by_role("link", name="kelp.html").click()
    download = await downloading.value
    assert download.suggested_filename == "kelp.html"
    assert (await download.path()).read_text() == hostile
    assert await page.evaluate(f"typeof {MARK}") == "undefined"
    address = await files.first.get_by_role("link").get_attribute("href") or ""
    answer = await site.server.client.get(address)
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert (await (await site.server.client_of("bob")).get(address)).status_code == 404


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_person_adds_a_memory_to_a_conversation(site: Site, scripts: bool) -> None:
    await say(site, "hello from the second", key="cli:two")
    where = (await site.server.say("hello from the first"))["holdfast"]
    page = await site.visitor(scripts=scripts)
    await page.goto("/memories")
    await page.get_by_role("link", name="Add a memory").click()
    await page.get_by_label("Conversation").select_option(label="cli:two · hello from the second")
    await page.get_by_label("What to remember").fill("Likes **kelp**.\n<script>alert(1)</script>")
    await page.get_by_role("button", name="Add", exact=True).click()
    added = page.locator("article")
    await expect(added).to_have_count(1)
    await expect(added.locator("strong")).to_have_text("kelp")
    await expect(added).to_contain_text("<script>alert(1)</script>")
    await expect(added.get_by_role("link", name="cli:two")).to_be_visible()
    await page.goto(f"/sessions/{where['session_id']}")
    await page.locator("summary", has_text="Actions").click()
    await page.get_by_role("link", name="Add a memory").click()
    await expect(page.get_by_label("Conversation")).to_have_value(where["session_id"])
    await page.get_by_label("What to remember").fill("Of the first.")
    await page.get_by_role("button", name="Add", exact=True).click()
    await expect(page.locator("article").first).to_contain_text("hello from the first")
    (newest, _) = (await site.server.store.memories("default")).items
    assert (newest.text, newest.conversation_id) == ("Of the first.", where["conversation_id"])


async def test_without_a_conversation_there_is_nothing_to_remember_for(site: Site) -> None:
    page = await site.visitor()
    await page.goto("/memories?add=1")
    await expect(page.get_by_text("No memories yet")).to_be_visible()
    await expect(page.get_by_role("button", name="Add", exact=True)).to_have_count(0)
