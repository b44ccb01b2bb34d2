"""The pages in a real Chromium: talking, watching, searching, acting; with and without scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from playwright.async_api import Page, expect

from holdfast.domain.connectors import ConnectorClaim, ConnectorHealth
from holdfast.domain.new_messages import new_message
from holdfast.domain.turns import TurnStatus
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from tests.integration.dashboard.conftest import Site, StartSite
from tests.integration.dashboard.hostile import HOSTILE, MARK, UGLY

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

KEY = "x-holdfast-session-key"


class Teller:
    """A model that says word after word as it is let: a test decides when."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()

    def __call__(self, messages: list[dict[str, Any]], purpose: Purpose) -> AsyncIterator[str]:
        async def say() -> AsyncIterator[str]:
            while (word := await self.words.get()) is not None:
                yield word

        return say()

    def say(self, *words: str | None) -> None:
        for word in words:
            self.words.put_nowait(word)


async def say(site: Site, text: str, key: str = "cli:ada") -> dict[str, Any]:
    """A turn from elsewhere; returns where it is."""
    answer = await site.server.say(text, x_holdfast_session_key=key)
    where: dict[str, Any] = answer["holdfast"]
    return where


async def until(happens: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happens():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def speaks(site: Site, key: str, text: str = "tell me") -> asyncio.Task[Any]:
    """A turn from elsewhere that is under way."""
    body = {"messages": [{"role": "user", "content": text}], "stream": True}
    running = len(site.server.services.runner.running)
    task = asyncio.create_task(site.server.client.post("/v1/chat/completions", json=body, headers={KEY: key}))
    await until(lambda: task.done() or len(site.server.services.runner.running) > running)
    return task


# --- in and out ------------------------------------------------------------------------------------------


async def test_logging_in_with_a_key_and_out_again(site: Site) -> None:
    page = await site.visitor(logged_in=False)
    await page.goto("/sessions?state=idle")
    await page.get_by_label("API key").fill("hf_wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert")).to_contain_text("Invalid API key")
    await page.get_by_label("API key").fill(site.server.admin_key)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/sessions?state=idle")
    await expect(page.get_by_role("heading", name="Sessions")).to_be_visible()
    await page.locator("details.who > summary").click()
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url("**/login")
    await page.go_back()
    await expect(page.get_by_label("API key")).to_be_visible()


async def test_a_one_time_link_logs_in_by_itself(site: Site) -> None:
    page = await site.visitor()
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


# --- live ------------------------------------------------------------------------------------------------


async def test_the_overview_shows_a_connector_that_is_down(site: Site) -> None:
    store = site.server.store
    claim = await store.claim_connector("phone", "telegram", site.server.services.holdfast.node_id)
    assert isinstance(claim, ConnectorClaim)
    await store.note_connector(claim, ConnectorHealth.DOWN, "Telegram cannot be reached")
    page = await site.visitor()
    await expect(page.locator("[data-part=connectors]")).to_contain_text("Telegram cannot be reached")


async def test_the_overview_follows_a_turn_that_runs_elsewhere(start_site: StartSite) -> None:
    teller = Teller()
    site = await start_site(ScriptedModel(teller))
    page = await site.visitor()
    await expect(page.get_by_text("No turn or process is running")).to_be_visible()
    task = await speaks(site, "telegram:dm:42")
    row = page.get_by_role("row", name="telegram:dm:42")
    await expect(row.locator(".state.active")).to_be_visible()
    teller.say("Done.", None)
    await task
    await expect(row).to_have_count(0)  # open, but idle
    await expect(page.get_by_text("1 open session without activity")).to_be_visible()
    await expect(page.locator(".chart rect.good")).to_have_count(1)
    await expect(page.locator(".chart g", has=page.locator("rect.good")).locator("title")).to_contain_text(
        "1 completed"
    )
    assert site.said == []


async def test_a_reply_that_somebody_else_asked_for_grows_on_the_page(start_site: StartSite) -> None:
    teller = Teller()
    site = await start_site(ScriptedModel(teller))
    teller.say("First.", None)
    where = await say(site, "hello")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await expect(page.get_by_label("Message")).to_be_visible()
    task = await speaks(site, "cli:ada")
    teller.say("One ", "two ")
    growing = page.locator(".growing [data-text]")
    await expect(growing).to_have_text("One two")
    teller.say("three 🌊 ", "four")
    await expect(growing).to_have_text("One two three 🌊 four")
    teller.say(None)
    await task
    await expect(page.locator(".growing")).to_have_count(0)
    await expect(page.locator(".message.assistant").last).to_contain_text("One two three 🌊 four")
    await expect(page.get_by_label("Message")).to_be_visible()
    assert site.said == []


async def test_what_is_written_and_opened_stays_while_the_page_changes(site: Site) -> None:
    where = await say(site, "hello")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await page.get_by_label("Message").fill("half a thought")
    await page.locator("summary", has_text="Rules").click()
    await page.get_by_text("Timeline").click()
    await say(site, "something new")
    await expect(page.get_by_text("You said: something new")).to_be_visible()
    await expect(page.get_by_label("Message")).to_have_value("half a thought")
    await expect(page.get_by_text("idle_minutes")).to_be_visible()
    await expect(page.locator(".timeline li").first).to_be_hidden()


async def test_an_open_menu_focus_selection_and_scroll_survive_a_live_update(site: Site) -> None:
    where = await say(site, "hello " * 800)
    page = await site.visitor(height=500)
    await page.goto(f"/sessions/{where['session_id']}")
    box = page.get_by_label("Message", exact=True)
    await box.fill("half a thought")
    await page.evaluate("document.querySelector('#text').setSelectionRange(2, 4)")
    await page.get_by_text("Actions").click()
    rename = page.get_by_role("link", name="Rename this conversation")
    await rename.focus()
    await page.evaluate("scrollTo(0, 120); document.querySelector('#m1 .text').firstChild.kept = 'node'")
    await page.evaluate(
        "getSelection().setBaseAndExtent(...[0, 5].flatMap((at) => "
        "[document.querySelector('#m1 .text').firstChild, at]))"
    )
    before = await page.evaluate("scrollY")
    await say(site, "something new")
    await expect(page.get_by_text("You said: something new")).to_have_count(1)
    await expect(page.locator("details.acts")).to_have_attribute("open", "")
    await expect(rename).to_be_focused()
    assert await page.evaluate("getSelection().toString()") == "hello"
    assert await page.evaluate("scrollY") == before
    await expect(box).to_have_value("half a thought")
    assert await page.evaluate("document.querySelector('#text').selectionStart") == 2
    await rename.click()
    await expect(page.get_by_label("Title")).to_be_visible()


async def test_what_is_being_written_survives_a_reply_that_another_client_starts(
    start_site: StartSite,
) -> None:
    teller = Teller()
    site = await start_site(ScriptedModel(teller))
    teller.say("First.", None)
    where = await say(site, "hello")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    box = page.get_by_label("Message", exact=True)
    await box.fill("half a thought")
    task = await speaks(site, "cli:ada")
    teller.say("One ")
    await expect(page.locator(".growing [data-text]")).to_have_text("One")
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(box).to_have_value("half a thought")
    await expect(box).to_be_focused()
    teller.say("two.", None)
    await task
    await expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    await expect(box).to_have_value("half a thought")
    assert site.said == []


# --- talking ---------------------------------------------------------------------------------------------


async def test_a_conversation_is_begun_and_carried_on_in_the_page(start_site: StartSite) -> None:
    teller = Teller()
    site = await start_site(ScriptedModel(teller))
    page = await site.visitor()
    await page.keyboard.press("n")
    await page.get_by_label("Message").fill("my name is Ada")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/sessions/sess_*")
    teller.say("Hello ", "Ada")
    await expect(page.locator(".growing [data-text]")).to_have_text("Hello Ada")
    teller.say(".", None)
    box = page.get_by_label("Message", exact=True)
    await box.fill("and now?\nin two lines")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".message.user").last).to_contain_text("in two lines")
    teller.say("A long ", "story ")
    await expect(page.locator(".growing [data-text]")).to_have_text("A long story")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".undone .state.cancelled")).to_be_visible()
    await expect(page.locator(".message.cut")).to_contain_text("A long story")
    listed = (await site.server.client.get("/api/sessions")).json()["data"]
    assert [each["source"] for each in listed] == ["dashboard"]
    assert site.said == []


async def test_an_interrupted_reply_is_marked_and_goes_on(start_site: StartSite) -> None:
    teller = Teller()
    site = await start_site(ScriptedModel(teller))
    task = await speaks(site, "cli:ada")
    teller.say("Half a ", "reply ")
    runner = site.server.services.runner
    (turn_id,) = runner.running
    await until(lambda: runner.running[turn_id].text_so_far() == "Half a reply ")
    await runner.stop(None, turn_id, TurnStatus.INTERRUPTED, "its node was found dead")
    await task
    page = await site.visitor()
    await page.goto("/sessions/cli:ada")
    await expect(page.locator(".message.cut")).to_contain_text("Half a reply")
    await expect(page.locator(".undone")).to_contain_text("This reply was interrupted")
    await page.get_by_role("button", name="Retry").click()
    teller.say("A whole ", "reply.", None)
    await expect(page.locator(".message.assistant").last).to_contain_text("A whole reply.")
    await expect(page.locator(".undone")).to_have_count(0)
    await expect(page.get_by_text("An earlier attempt was interrupted here")).to_be_visible()
    await expect(page.get_by_text("Half a reply")).to_be_hidden()
    assert site.said == []


async def test_tool_calls_are_folded_with_their_results(start_site: StartSite) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"in":"Oban"}'}}
    site = await start_site(ScriptedModel([{"tool_calls": [call]}, "It rains."]))
    ask = site.server.client
    first = {"messages": [{"role": "user", "content": "weather?"}], "tools": [{"type": "function"}]}
    await ask.post("/v1/chat/completions", json=first, headers={KEY: "cli:ada"})
    result = {"messages": [{"role": "tool", "tool_call_id": "call_1", "content": "9 °C, rain"}]}
    await ask.post("/v1/chat/completions", json=result, headers={KEY: "cli:ada"})
    page = await site.visitor()
    await page.goto("/sessions/cli:ada")
    await expect(page.get_by_text("9 °C, rain")).to_be_hidden()
    await page.locator("details.call summary").click()
    await expect(page.get_by_text("9 °C, rain")).to_be_visible()
    await expect(page.locator(".message.tool")).to_have_count(0)


# --- finding ---------------------------------------------------------------------------------------------


async def test_searching_by_the_keyboard_leads_to_the_message(site: Site) -> None:
    for number in range(5):
        await say(site, f"message {number}", key=f"cli:{number}")
    await say(site, "where is the zanzibar invoice", key="cli:ada")
    page = await site.visitor()
    await page.keyboard.press("/")
    await page.keyboard.type("zanz")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/search?q=zanz")
    await expect(page.locator(".found article")).to_have_count(2)
    await page.locator("body").click(position={"x": 5, "y": 400})
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/sessions/sess_*")
    await expect(page.locator(".message:target")).to_contain_text("zanzibar")


async def test_sessions_are_filtered_and_paged(site: Site) -> None:
    for _ in range(55):
        await site.server.store.create_conversation("default", site.server.services.holdfast.node_id)
    await say(site, "hi", key="cli:ada")
    page = await site.visitor()
    await page.goto("/sessions")
    await expect(page.locator("tr[data-row]")).to_have_count(50)
    await page.get_by_role("link", name="Next page").click()
    await expect(page.locator("tr[data-row]")).to_have_count(6)
    await page.goto("/sessions")
    await page.get_by_label("First words, title or key").fill("ada")
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    await expect(page).to_have_url(f"{site.url}/sessions?q=ada")
    await page.get_by_role("link", name="Show all").click()
    await expect(page.locator("tr[data-row]")).to_have_count(50)
    await page.get_by_label("Source").select_option("cli")
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    await page.get_by_label("State").select_option("ended")
    await expect(page.get_by_text("No matching sessions")).to_be_visible()


async def test_why_is_told_in_sentences_with_a_countdown(start_site: StartSite) -> None:
    site = await start_site(reset={"mode": "idle", "idle_minutes": 90})
    where = await say(site, "hello")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    why = (await site.server.client.get(f"/api/sessions/{where['session_id']}/why")).json()
    await expect(page.locator("#why .why")).to_contain_text(why["sentence"])
    await expect(page.locator("[data-countdown]")).to_contain_text("in 1 h 29 min")
    await page.locator("summary", has_text="Rules").click()
    await expect(page.get_by_role("row", name="idle_minutes")).to_contain_text("90")
    assert site.said == []


# --- acting ----------------------------------------------------------------------------------------------


async def test_acts_ask_first_and_the_line_is_drawn(site: Site) -> None:
    where = await say(site, "hello")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await page.get_by_text("Actions").click()
    await page.get_by_role("link", name="Fork").click()
    await page.get_by_label("Key of the new conversation").fill("cli:try")
    await page.get_by_role("button", name="Fork").click()
    await expect(page.get_by_role("heading", name="cli:try")).to_be_visible()
    await expect(page.locator("#lineage")).to_contain_text("Forked from")
    await page.goto(f"/sessions/{where['session_id']}/end")
    await page.get_by_role("link", name="No, back").click()
    await expect(page.locator(".head .state.idle")).to_be_visible()
    await page.goto(f"/sessions/{where['session_id']}/end")
    await page.locator("#reason").select_option("new")
    await page.get_by_role("button", name="End it").click()
    await expect(page.locator(".head .state.ended")).to_be_visible()
    await say(site, "afresh")
    await expect(page.locator(".note")).to_contain_text("This session has ended")
    await expect(page.locator("svg.lineage .knot")).to_have_count(3)  # two sessions and a fork
    await page.goto(f"/sessions/{where['session_id']}/resume")
    await page.get_by_role("button", name="Continue from here").click()
    await expect(page.locator(".head .tag", has_text="by resume")).to_be_visible()
    await page.goto("/sessions/cli:try/delete")
    await page.get_by_role("button", name="Delete permanently").click()
    await page.wait_for_url("**/sessions")
    await expect(page.get_by_text("cli:try")).to_have_count(0)


async def test_a_process_is_heard_pinned_and_stopped(start_site: StartSite) -> None:
    site = await start_site(processes={"grace_seconds": 1})
    where = await say(site, "hello")
    supervisor = site.server.services.holdfast.supervisor
    command = "echo first; while true; do sleep 0.1; test -e go && echo second && rm go; done"
    process = await supervisor.start("default", where["session_id"], command, str(site.home))
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await page.locator("details.log summary").click()
    log = page.locator("pre[data-log]")
    await expect(log).to_contain_text("first")
    (site.home / "go").touch()
    await expect(log).to_contain_text("second")
    await page.locator("#processes").get_by_role("link", name="Pin").click()
    await page.get_by_label("Hours").fill("2")
    await page.get_by_role("button", name="Pin").click()
    await expect(page.locator(".head .tag", has_text="pinned")).to_be_visible()
    await expect(page.locator("pre.log")).to_contain_text("first\nsecond")
    await page.get_by_role("link", name="Stop").click()
    await page.get_by_role("button", name="Stop it").click()
    await expect(page.locator(".head .state.stopped")).to_be_visible()
    found = (await site.server.client.get(f"/api/processes/{process.id}")).json()
    assert found["state"] == "stopped"
    await page.goto("/processes")
    await expect(page.get_by_text("No processes are running")).to_be_visible()
    assert site.said == []


async def test_notices_are_marked_as_told(site: Site) -> None:
    where = await say(site, "hello")
    await site.server.store.add_notice("default", where["conversation_id"], "reset", "It was reset at 04:00.")
    page = await site.visitor()
    await page.goto("/notices")
    await expect(page.get_by_text("It was reset at 04:00.")).to_be_visible()
    await page.get_by_role("button", name="Mark as delivered", exact=True).click()
    await expect(page.get_by_text("No undelivered notices")).to_be_visible()


async def test_memories_are_mended_and_forgotten(site: Site) -> None:
    where = await say(site, "hello")
    await site.server.store.remember("default", where["conversation_id"], "She likes kelp.")
    page = await site.visitor()
    await page.goto("/memories")
    await page.get_by_text("Edit or forget").click()
    await page.locator("article textarea").fill("She likes dulse.")
    shown = await page.locator("body").get_attribute("data-live")
    await say(site, "something else")
    await expect(page.locator("body")).not_to_have_attribute("data-live", shown or "")  # it was read anew
    await expect(page.locator("article textarea")).to_have_value("She likes dulse.")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("article .text")).to_have_text("She likes dulse.")
    await page.get_by_text("Edit or forget").click()
    await page.get_by_role("link", name="Forget").click()
    await page.get_by_role("button", name="Forget it").click()
    await expect(page.get_by_text("No memories yet")).to_be_visible()


# --- without scripts -------------------------------------------------------------------------------------


async def test_everything_works_without_scripts(site: Site) -> None:
    page = await site.visitor(scripts=False)
    await page.goto("/new")
    await page.get_by_label("Message").fill("said without a script")
    await page.get_by_label("Conversation key").fill("cli:plain")
    await page.get_by_role("button", name="Send").click()
    await page.wait_for_url("**/sessions/sess_*")
    await page.goto("/sessions/cli:plain")
    await expect(page.get_by_text("You said: said without a script")).to_be_visible()
    await page.get_by_label("Message", exact=True).fill("again")
    await page.get_by_role("button", name="Send").click()
    await page.goto("/sessions/cli:plain")
    await expect(page.get_by_text("You said: again")).to_be_visible()
    await page.goto("/sessions")
    await page.get_by_label("First words, title or key").fill("plain")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    listed = ("/sessions", "/processes", "/notices", "/nodes", "/memories", "/usage", "/settings", "/logs")
    for path in ("/", *listed, "/search?q=again"):
        await page.goto(path)
        await expect(page.locator("h1")).to_be_visible()
    await page.get_by_role("link", name="cli:plain").first.click()
    await expect(page.locator(".message:target")).to_contain_text("again")
    await page.locator("details.who > summary").click()
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("API key")).to_be_visible()


# --- nothing said is ever markup -------------------------------------------------------------------------


async def test_a_reply_is_rendered_and_copied(start_site: StartSite) -> None:
    told = (
        "# Tides\n\n| port | m |\n|---|--:|\n| Brest | 7 |\n\n```python\nif ebb:\n    wait()\n```\n**done**"
    )
    site = await start_site(ScriptedModel([told]))
    where = await say(site, "when is **ebb**?")
    page = await site.visitor()
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(f"/sessions/{where['session_id']}")
    reply = page.locator(".message.assistant")
    await expect(reply.get_by_role("heading", name="Tides")).to_be_visible()
    await expect(reply.get_by_role("cell", name="Brest")).to_be_visible()
    await expect(reply.locator("strong")).to_have_text("done")
    await expect(reply.locator(".hl-k")).to_have_text("if")
    colours = "[...document.querySelectorAll('.hl-k, pre.code')].map((each) => getComputedStyle(each).color)"
    assert len(set(await page.evaluate(colours))) == 2, "the style sheet colours the code"
    await expect(page.locator(".message.user .text")).to_have_text("when is **ebb**?")
    await reply.locator(".codeblock").get_by_role("button", name="Copy").click()
    await expect(reply.locator(".codeblock").get_by_role("button")).to_have_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == "if ebb:\n    wait()\n"
    await reply.get_by_role("button", name="Copy #2").click()
    await expect(reply.locator(".meta").get_by_role("button")).to_have_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == told
    plain = await site.visitor(scripts=False)
    await plain.goto(f"/sessions/{where['session_id']}")
    await expect(plain.get_by_role("heading", name="Tides")).to_be_visible()
    await expect(plain.locator("button.copy").first).to_be_hidden()
    assert site.said == []


async def test_the_controls_of_a_conversation_and_of_keys(start_site: StartSite) -> None:
    replies = iter(range(1, 100))
    site = await start_site(ScriptedModel(lambda messages, purpose: f"reply **{next(replies)}**"))
    where = await say(site, "first words")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    reply = page.locator(".message.assistant strong")
    await page.get_by_role("button", name="Regenerate").click()
    await expect(reply.last).to_have_text("2")
    await expect(page.get_by_text("#2, assistant: no longer part")).to_be_visible()
    await page.get_by_role("link", name="Edit").click()
    await page.get_by_label("Message #1").fill("better words")
    await page.get_by_role("button", name="Send").click()
    await expect(reply.last).to_have_text("3")
    await expect(page.locator(".message.user .text").last).to_have_text("better words")
    await page.get_by_text("Actions").click()
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download as Markdown").click()
    assert (await download.value).suggested_filename.endswith(".md")
    await page.get_by_role("link", name="Rename this conversation").click()
    await page.get_by_label("Title").fill("The harbour")
    await page.get_by_role("button", name="Rename").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("The harbour")
    await page.goto("/search?q=better")
    await expect(page.locator("mark")).to_have_text("better")
    await page.locator("a.row").click()
    await expect(page.locator(".message:target")).to_contain_text("better words")
    await page.locator("nav summary").click()
    await page.get_by_role("link", name="Keys").click()
    await page.get_by_label("Name").fill("laptop")
    await page.get_by_role("button", name="Create key").click()
    await expect(page.locator("#new-key")).to_contain_text("hf_")
    await page.get_by_role("link", name="Revoke laptop").click()
    await page.get_by_role("button", name="Revoke it").click()
    await expect(page.get_by_role("row", name="laptop")).to_contain_text("revoked")
    await page.locator("nav summary").click()
    await page.get_by_role("link", name="Connectors").click()
    await expect(page.get_by_label("Pairing code")).to_be_visible()
    assert site.said == []


async def _is_inert(page: Page, path: str) -> None:
    await page.goto(path)
    await page.locator("main").wait_for()
    assert await page.evaluate(f"typeof {MARK}") == "undefined", path
    odd = ("script", "iframe", "object", "embed", "style", "link", "img", "video", "base", "math", "marquee")
    assert await page.locator(", ".join(f"main {name}" for name in odd)).count() == 0, path
    bad = await page.evaluate(
        "[...document.querySelectorAll('main *')].filter((node) => [...node.attributes].some((each) => "
        "/^(on.*|style)$/i.test(each.name) || (each.name === 'href' && !/^[\\/#]/.test(each.value)))).length"
    )
    assert bad == 0, path


async def test_hostile_strings_are_shown_and_do_nothing(start_site: StartSite) -> None:
    words = [*HOSTILE, *UGLY]
    assert len(words) > 150
    site = await start_site(ScriptedModel(lambda messages, purpose: messages[-1]["content"] or "-"))
    store, server = site.server.store, site.server
    body = [{"role": "user", "content": text} for text in words]
    opened = await store.create_conversation("default", server.services.holdfast.node_id)
    await store.add_messages(
        "default", opened.id, server.services.holdfast.node_id, [new_message(each) for each in body]
    )
    text = HOSTILE[0] + HOSTILE[60] + HOSTILE[120]
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": text}}
    odd: list[dict[str, Any]] = [
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": text, "content": text},
        {"role": "tool", "tool_call_id": "alone", "content": text},
        {"role": "system", "content": [{"type": "text", "text": text}, {"type": text}]},
        *(
            {"role": "assistant", "content": f"{hostile} [x]({hostile}) ![y](<{hostile}>)"}
            for hostile in HOSTILE
        ),
    ]
    await store.add_messages(
        "default", opened.id, server.services.holdfast.node_id, [new_message(each) for each in odd]
    )
    for number in range(0, len(HOSTILE), 8):  # as keys, sources, titles, notices, memories
        name = HOSTILE[number][:250].replace("\x01", "")
        said = (await server.say(name, x_holdfast_session_key=name.encode().decode("latin-1")))["holdfast"]
        await store.set_title("default", said["conversation_id"], name)
        await store.add_notice("default", said["conversation_id"], "reset", name)
        await store.remember("default", said["conversation_id"], name)
    page = await site.visitor()
    conversation = f"/sessions/{opened.id}"
    paths = [
        "/",
        "/sessions",
        "/usage",
        "/settings?all=1",
        "/notices",
        "/memories",
        "/search?q=script",
        conversation,
    ]
    paths += [f"{conversation}?before={number}" for number in range(60, len(words) + len(odd), 60)]
    for path in paths:
        await _is_inert(page, path)
    await page.goto(f"{conversation}?before=58")
    shown = await page.locator(".message.user .text").all_inner_texts()
    wanted = [text for text in HOSTILE[:57] if "\x01" not in text]
    assert [text for text in wanted if text not in shown] == []
    await page.goto(f"/search?q={'%22%27%3E%3Cscript%3Ewindow.__hit=1%3C/script%3E'}")
    assert await page.evaluate(f"typeof {MARK}") == "undefined"
    # And as it is streamed and put in place by the script.
    await page.goto("/new")
    for hostile in (HOSTILE[5], HOSTILE[61], HOSTILE[120]):
        await page.goto("/new")
        await page.get_by_label("Message").fill(hostile)
        await page.keyboard.press("Enter")
        await expect(page.locator(".message.assistant .text").last).to_have_text(hostile)
        assert await page.evaluate(f"typeof {MARK}") == "undefined"
    assert site.said == [], "the policy had nothing to refuse: nothing was ever markup"
