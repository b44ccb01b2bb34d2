"""Controls of the pages in a real Chromium: filters, selection, ranges, attachments, models, waterfall."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from holdfast.domain.turns import TurnStatus
from holdfast.models.base import Purpose
from holdfast.models.scripted import ScriptedModel
from tests.integration.dashboard.conftest import Site, StartSite
from tests.integration.dashboard.test_pages import Teller, say, speaks, until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class TwoModels(ScriptedModel):
    """Offers a choice, and answers under the name that was asked for."""

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": name, "object": "model", "created": 0} for name in ("large", "small")]


# --- overview and usage ----------------------------------------------------------------------------------


async def test_the_range_is_chosen_and_the_chart_tells_its_times(site: Site) -> None:
    await say(site, "hello")
    page = await site.visitor()
    await expect(page.get_by_text("1 turn in the last hour")).to_be_visible()
    await expect(page.locator(".marks span").last).to_have_text("now")
    await page.get_by_label("Time range").get_by_role("link", name="7d").click()
    await expect(page.get_by_text("1 turn in the last 7 days")).to_be_visible()
    await say(site, "again")
    await expect(page.get_by_text("2 turns in the last 7 days")).to_be_visible()
    await page.get_by_role("link", name="Usage").click()
    await expect(page.get_by_role("row", name="scripted")).to_contain_text("2")


async def test_an_admin_starts_with_the_owners_and_looks_at_one(site: Site) -> None:
    await site.server.say("hello from bob", client=await site.server.client_of("bob"))
    page = await site.visitor()
    await page.locator("[data-part=owners]").get_by_role("link", name="bob").click()
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    await page.get_by_label("Owner", exact=True).get_by_role("link", name="All owners").click()
    await expect(page.locator("tr[data-row]")).to_contain_text("bob")


async def test_settings_are_shown_with_their_origin(site: Site) -> None:
    page = await site.visitor()
    await page.locator("nav summary").click()
    await page.get_by_role("link", name="Settings").click()
    await expect(page.get_by_role("row", name="drain_seconds")).to_be_visible()
    await expect(page.get_by_role("row", name="idle_minutes")).to_have_count(0)
    await page.get_by_role("link", name="Every setting").click()
    await expect(page.get_by_role("row", name="idle_minutes").first).to_contain_text("default")


# --- several conversations -------------------------------------------------------------------------------


async def test_selected_conversations_are_exported_ended_and_deleted(site: Site) -> None:
    for key in ("cli:a", "cli:b", "cli:c"):
        await say(site, f"hello from {key}", key=key)
    page = await site.visitor()
    await page.goto("/sessions?sort=name")
    rows = page.locator("tr[data-row]")
    await expect(rows.first).to_contain_text("cli:a")
    await page.get_by_label("Select cli:a").check()
    await page.get_by_label("Select cli:b").check()
    await say(site, "once more", key="cli:c")
    await expect(rows.filter(has_text="cli:c")).to_contain_text("4")
    await expect(page.get_by_label("Select cli:a")).to_be_checked()
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Export as JSON").click()
    exported = json.loads(Path(await (await download.value).path()).read_text("utf-8"))
    assert sorted(each["session"]["key"] for each in exported["conversations"]) == ["cli:a", "cli:b"]
    assert all(len(each["messages"]) == 2 for each in exported["conversations"])
    await page.get_by_role("button", name="End", exact=True).click()
    await page.get_by_role("button", name="End them").click()
    await expect(page.get_by_role("status")).to_have_text("2 of 2 done.")
    await page.get_by_role("link", name="Back to the sessions").click()
    await expect(page.locator("tr .state.ended")).to_have_count(2)
    await page.get_by_label("all on this page").check()
    await page.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("heading", name="Delete 3 conversations?")).to_be_visible()
    await page.get_by_role("link", name="No, back").click()
    await page.get_by_label("Select cli:b").check()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete permanently").click()
    await page.get_by_role("link", name="Back to the sessions").click()
    await expect(rows).to_have_count(2)
    await expect(page.get_by_text("cli:b")).to_have_count(0)
    await page.get_by_role("button", name="End", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("No conversation was selected")


# --- search ----------------------------------------------------------------------------------------------


async def test_hits_are_counted_and_filtered_as_one_types(site: Site) -> None:
    await say(site, "where is the harbour?", key="cli:ada")
    await say(site, "the harbour is closed", key="telegram:dm:1")
    page = await site.visitor()
    await page.goto("/search")
    await page.get_by_label("Words").fill("harb")
    status, hits = page.get_by_role("status"), page.locator(".found article")
    await expect(status).to_have_text("4 messages")
    await page.get_by_label("Role").select_option("user")
    await expect(hits).to_have_count(2)
    await page.get_by_label("Source").select_option("telegram")
    await expect(hits).to_have_count(1)
    await expect(status).to_have_text("1 message")
    await page.get_by_label("Date").select_option("24h")
    await expect(hits).to_have_count(1)
    await page.locator("a.row").click()
    await expect(page.locator(".message:target")).to_contain_text("the harbour is closed")


# --- a conversation --------------------------------------------------------------------------------------


async def test_pictures_and_text_files_are_attached(start_site: StartSite, tmp_path: Path) -> None:
    heard: list[Any] = []

    def answer(messages: list[dict[str, Any]], purpose: Purpose) -> str:
        heard.append(messages[-1]["content"])
        return "I see."

    site = await start_site(ScriptedModel(answer))
    where = await say(site, "hello")
    picture, notes, odd = tmp_path / "dot.png", tmp_path / "notes.txt", tmp_path / "odd.bin"
    picture.write_bytes(PIXEL)
    notes.write_text("low water 05:12\n", "utf-8")
    odd.write_bytes(b"\0\1\2")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await page.get_by_label("Attach files").set_input_files([picture, odd, notes])
    await expect(page.get_by_role("alert")).to_contain_text("odd.bin is not a picture or a text file")
    await expect(page.locator(".chip")).to_contain_text("dot.png")
    box = page.get_by_label("Message", exact=True)
    await expect(box).to_have_value("notes.txt:\n```\nlow water 05:12\n```\n")
    await say(site, "something new")  # a live update takes nothing away
    await expect(page.get_by_text("something new")).to_be_visible()
    await expect(page.locator(".chip")).to_be_visible()
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".message.user img.picture")).to_be_visible()
    await expect(page.locator(".message.user").last).not_to_contain_text("image_url")
    await expect(page.locator(".chip")).to_have_count(0)
    sent = heard[-1]
    assert sent[0]["text"].startswith("notes.txt:")
    assert base64.b64decode(sent[1]["image_url"]["url"].partition(",")[2]) == PIXEL
    assert site.said == []


async def test_a_model_is_chosen_and_each_turn_says_who_answered(start_site: StartSite) -> None:
    site = await start_site(TwoModels())
    where = await say(site, "hello")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await page.get_by_label("Model", exact=True).select_option("small")
    await page.get_by_label("Message", exact=True).fill("who are you?")
    await page.get_by_role("button", name="Send").click()
    facts = page.locator(".facts-line")
    await expect(facts).to_have_count(2)
    await expect(facts.last).to_contain_text("small")
    await expect(facts.last).to_contain_text("first token")
    await expect(facts.last).to_contain_text(" in, ")
    newest, oldest = await site.server.store.turns("default", where["conversation_id"])
    assert (newest.model, oldest.model) == ("small", "scripted")
    assert site.said == []


async def test_partial_replies_stay_folded_after_a_second_failure(start_site: StartSite) -> None:
    teller = Teller()
    site = await start_site(ScriptedModel(teller))
    task = await speaks(site, "cli:ada")
    runner = site.server.services.runner

    async def cut(words: str) -> None:
        teller.say(words)
        await until(lambda: any(each.text_so_far() == words for each in runner.running.values()))
        (turn_id,) = runner.running
        await runner.stop(None, turn_id, TurnStatus.INTERRUPTED, "its node was found dead")

    await cut("First half ")
    await task
    page = await site.visitor()
    await page.goto("/sessions/cli:ada")
    await page.get_by_role("button", name="Retry").click()
    await until(lambda: bool(runner.running))
    await cut("Second half ")
    await expect(page.locator(".undone")).to_be_visible()
    await expect(page.get_by_text("Second half")).to_be_visible()
    await expect(page.get_by_text("An earlier attempt was interrupted here")).to_be_visible()
    await expect(page.get_by_text("First half")).to_be_hidden()
    assert site.said == []


async def test_the_timeline_shows_what_the_time_of_a_turn_went_to(site: Site) -> None:
    where = await say(site, "hello")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await expect(page.locator(".waterfall rect.model")).to_be_visible()
    await expect(page.locator(".timeline")).to_contain_text("a session began")
    await expect(page.locator(".waterfall rect.model title")).to_contain_text("model: ")
    await say(site, "again")
    await expect(page.locator(".waterfall rect.model")).to_have_count(2)
    await expect(page.locator(".waterfall tr").first).to_contain_text("#3")


async def test_a_summary_is_shown_beside_what_it_replaced(start_site: StartSite) -> None:
    def answer(messages: list[dict[str, Any]], purpose: Purpose) -> str:
        return "Ada counts the tides." if purpose is not Purpose.TURN else "noted"

    site = await start_site(
        ScriptedModel(answer, window=100_000), compaction={"keep_first": 0, "keep_last": 1}
    )
    for number in range(3):
        where = await say(site, f"tide number {number}")
    await site.server.client.post(f"/api/sessions/{where['session_id']}/compact")
    page = await site.visitor()
    await page.goto("/sessions/cli:ada")
    await page.locator("#lineage").get_by_text("Summary in session 2").click()
    await page.locator("#lineage").get_by_role("link", name="Compare with what it replaced").click()
    await expect(page.locator(".compare > .card")).to_contain_text("Ada counts the tides.")
    await expect(page.locator(".compare .message").first).to_contain_text("tide number 0")


# --- the other pages -------------------------------------------------------------------------------------


async def test_processes_show_their_last_line_and_are_filtered(site: Site) -> None:
    where = await say(site, "hello")
    supervisor = site.server.services.holdfast.supervisor
    for command in ("echo first; echo ready; sleep 300", "sleep 301"):
        await supervisor.start("default", where["session_id"], command, str(site.home))
    page = await site.visitor()
    await page.goto("/processes")
    rows = page.locator("tr[data-row]")
    await expect(rows).to_have_count(2)
    await expect(rows.filter(has_text="echo first").locator(".preview")).to_have_text("ready")
    await expect(rows.first).to_contain_text("pid")
    await page.get_by_label("Command").fill("SLEEP 301")
    await expect(rows).to_have_count(1)
    for process in (await site.server.client.get("/api/processes")).json()["data"]:
        await site.server.client.post(f"/api/processes/{process['id']}/stop")


async def test_all_notices_are_marked_at_once(site: Site) -> None:
    where = await say(site, "hello")
    for number in range(3):
        await site.server.store.add_notice("default", where["conversation_id"], "reset", f"Reset {number}.")
    page = await site.visitor()
    await page.goto("/notices")
    await expect(page.locator("article")).to_have_count(3)
    await page.get_by_role("button", name="Mark all as delivered").click()
    await expect(page.get_by_text("No undelivered notices")).to_be_visible()
    await page.get_by_label("State").get_by_role("link", name="All").click()
    await expect(page.locator("article")).to_have_count(3)


async def test_a_key_can_be_shown_before_it_is_sent(site: Site) -> None:
    page = await site.visitor(logged_in=False)
    await page.goto("/login")
    field = page.get_by_label("API key")
    await field.fill("hf_secret")
    await page.get_by_role("button", name="Show").click()
    await expect(field).to_have_attribute("type", "text")
    await page.get_by_role("button", name="Hide").click()
    await expect(field).to_have_attribute("type", "password")


async def test_every_page_is_reached_on_a_phone(site: Site) -> None:
    page = await site.visitor(width=390, height=844)
    for name in ("Sessions", "Usage", "Memories", "Processes", "Notices"):
        await page.get_by_label("Pages").get_by_role("link", name=name).click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(name)
    for name in ("Keys", "Connectors", "Nodes", "Settings"):
        await page.locator("nav summary").click()
        await page.get_by_label("Pages").get_by_role("link", name=name, exact=True).click()
        await expect(page.get_by_label("Pages").locator("summary")).to_contain_text(name)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390


# --- long lists, lines and waits ---------------------------------------------------------------------------


async def test_a_conversation_s_row_counts_all_of_its_sessions(site: Site) -> None:
    for text in ("one", "two", "three"):
        where = await say(site, text, key="cli:long")
        await site.server.client.post(f"/api/sessions/{where['session_id']}/end", json={})
    await say(site, "short", key="cli:short")
    page = await site.visitor()
    await page.goto("/sessions")
    row = page.locator("tr[data-row]").filter(has_text="cli:long")
    await expect(row.locator("[data-label=messages]")).to_have_text("6")
    await expect(row.get_by_title("in 3 sessions")).to_be_visible()
    await expect(page.locator("tr[data-row]").first).to_contain_text("cli:short")
    await page.get_by_role("link", name="Messages").click()
    await expect(page.locator("tr[data-row]").first).to_contain_text("cli:long")
    await page.get_by_role("link", name="Every session").click()
    await expect(page.locator("tr[data-row]")).to_have_count(4)


async def test_a_list_is_found_by_first_words_counted_sorted_and_paged(site: Site) -> None:
    for number in range(60):
        await say(site, f"Tide number {number:02}", key=f"web:{number:02}")
    await say(site, "Nothing else", key="cli:other")
    page = await site.visitor()
    await page.goto("/sessions")
    await page.get_by_label("First words").fill("tide num")
    await expect(page.get_by_role("status")).to_contain_text("60 matching, 1 to 50 shown")
    await page.get_by_role("link", name="Conversation", exact=True).click()
    await expect(page.locator("tr[data-row]").first).to_contain_text("Tide number 00")
    await page.get_by_role("link", name="Next page").click()
    await expect(page.locator("tr[data-row]")).to_have_count(10)
    await expect(page.locator("tr[data-row]").last).to_contain_text("Tide number 59")
    await page.get_by_role("link", name="Previous page").click()
    await expect(page.locator("tr[data-row]")).to_have_count(50)
    await page.goto("/search?q=tide")
    await expect(page.get_by_role("status")).to_contain_text("messages, 1 to 50 shown")
    await page.get_by_role("link", name="Next page").click()
    await expect(page.get_by_role("status")).to_contain_text(" 51 to ")
    await page.goto("/sessions?state=loud")
    await expect(page.get_by_role("alert")).to_contain_text("State must be one of")


async def test_the_words_of_a_search_are_marked_in_the_conversation(site: Site) -> None:
    await say(site, "The harbour is closed; harbours open at nine.", key="cli:a")
    page = await site.visitor()
    await page.goto("/search?q=harbour")
    await page.locator("[data-row] a.row").last.click()
    await expect(page.locator(".message:target")).to_contain_text("harbour")
    marked = "[...(CSS.highlights.get('found') || [])].map((range) => range.toString())"
    found = await page.evaluate(marked)
    assert len(found) >= 2 and set(found) == {"harbour"}


async def test_a_long_line_is_drawn_whole_in_a_chosen_size(site: Site) -> None:
    for number in range(30):
        where = await say(site, f"Round {number} of the tide", key="cli:line")
        await site.server.client.post(f"/api/sessions/{where['session_id']}/end", json={})
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await expect(page.locator("svg.lineage")).to_contain_text("30. Round 29 of the tide")
    await page.locator("#lineage").get_by_role("link", name="6 older sessions").click()
    await expect(page.locator("svg.lineage .knot")).to_have_count(30)
    tall = await page.evaluate("document.querySelector('svg.lineage').clientHeight")
    await page.get_by_role("link", name="Small").click()
    await expect(page.get_by_role("link", name="Small")).to_have_attribute("aria-current", "true")
    assert await page.evaluate("document.querySelector('svg.lineage').clientHeight") < 0.6 * tall
    await page.get_by_role("link", name="Large").click()
    await page.locator("svg.lineage a").first.click()
    await expect(page.get_by_text("Round 0 of the tide").first).to_be_visible()


async def test_the_timeline_has_the_steps_of_each_turn(site: Site) -> None:
    for number in range(30):
        where = await say(site, f"Round {number} of the tide", key="cli:line")
    page = await site.visitor()
    await page.goto(f"/sessions/{where['session_id']}")
    await page.get_by_role("link", name="Step by step").click()
    turns = page.locator("article.turn")
    await expect(turns).to_have_count(25)
    await expect(turns.first).to_contain_text("Round 29 of the tide")
    await expect(turns.first.locator("tr").last).to_contain_text("model")
    await page.get_by_role("link", name="Each its own").click()
    await expect(page.get_by_role("link", name="Each its own")).to_have_attribute("aria-current", "true")
    await page.get_by_role("link", name="Older turns").click()
    await expect(turns).to_have_count(5)
    await turns.last.locator("a.row").click()
    await expect(page.locator(".message:target")).to_contain_text("Round 0 of the tide")
