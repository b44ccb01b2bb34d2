"""What pages look like: at a phone's width and a desk's, by day and by night. Nothing may stick out.

HOLDFAST_TEST_SCREENS=DIR keeps the pictures there; `make screens` takes the one in docs/images from them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.turns import TurnStatus
from holdfast.errors import ModelError
from holdfast.models.base import Purpose
from holdfast.models.scripted import Line, ScriptedModel
from holdfast.os_support import identity
from tests.integration.dashboard.conftest import Site, StartSite

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

CHAT, KEY = "/v1/chat/completions", "x-holdfast-session-key"
WEATHER = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "tide_table", "arguments": '{"place": "Oban", "days": 2}'},
}
SUMMARY = (
    "Ada keeps a tide log for the harbour at Oban. She wants the low waters of the week, and a script for it."
)
SCRIPT = """Here is a small script for it:

```python
for day in tides(place="Oban", days=7):
    print(day.date, min(day.waters, key=lambda water: water.height))
```

Run it each morning; what you said about the harbour is kept with this conversation."""
LONG = (
    "A holdfast is the root that keeps seaweed on its rock. It does not feed the plant. It only holds, "
    "through every tide and every storm, and in the morning the plant is still there. "
)


def answer(messages: list[dict[str, Any]], purpose: Purpose) -> Line:
    if purpose is not Purpose.TURN:
        return SUMMARY
    last = messages[-1]
    asked = str(last.get("content"))
    if last["role"] == "tool":
        return "Low water at Oban: today 05:12 and 17:40, tomorrow 05:58 and 18:21. Shall I note them?"
    if "low water" in asked:
        return {"content": "Let me look that up.", "tool_calls": [WEATHER]}
    if "broken" in asked:
        return ModelError("http://localhost:11434/v1 does not answer", status=502)
    if "story" in asked:
        return slowly(LONG * 3)
    return SCRIPT if "script" in asked else f"Noted: {asked[:1].lower()}{asked[1:]}"


async def slowly(text: str) -> AsyncIterator[str]:
    for word in text.split(" "):
        await asyncio.sleep(0.03)
        yield f"{word} "


async def furnished(site: Site) -> str:
    """A store with some of everything; returns the session that shows most of it."""
    server = site.server
    for key, texts in {
        "telegram:group:kitchen": ["We are out of dulse.", "And of kelp."],
        "whatsapp:+15550100": ["Is the harbour open tomorrow?"],
        "cron:nightly-report": ["Report: all boats are in."],
        "telegram:dm:42": ["Remind me to call the harbour master."],
        "cli:ada": [f"The low water of day {number} was at 0{number}:12." for number in range(1, 6)],
    }.items():
        for text in texts:
            where = (await server.say(text, x_holdfast_session_key=key))["holdfast"]
    compacted = await server.client.post(f"/api/sessions/{where['session_id']}/compact")
    assert compacted.status_code == 200, compacted.text
    tools = [{"type": "function", "function": {"name": "tide_table"}}]
    asked = {"messages": [{"role": "user", "content": "When is low water?"}], "tools": tools}
    assert (await server.client.post(CHAT, json=asked, headers={KEY: "cli:ada"})).status_code == 200
    told = {"messages": [{"role": "tool", "tool_call_id": "call_1", "content": "05:12 17:40; 05:58 18:21"}]}
    where = (await server.client.post(CHAT, json=told, headers={KEY: "cli:ada"})).json()["holdfast"]
    session: str = where["session_id"]
    await server.client.post(f"/api/sessions/{session}/fork", json={"key": "cli:ada-winter"})
    await server.say("Please write me a script for that.", x_holdfast_session_key="cli:ada")
    broken = {"messages": [{"role": "user", "content": "This one is broken."}]}
    await server.client.post(CHAT, json=broken, headers={KEY: "cron:nightly-report"})
    asked = {"messages": [{"role": "user", "content": "Tell me a story while I wait."}], "stream": True}
    telling = asyncio.create_task(server.client.post(CHAT, json=asked, headers={KEY: "cli:ada"}))
    runner = server.services.runner
    async with asyncio.timeout(60):
        while not any(len(each.text_so_far()) > 150 for each in runner.running.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (turn_id,) = runner.running
    await runner.stop(None, turn_id, TurnStatus.INTERRUPTED, "its node was found dead")
    await telling
    await server.store.remember("default", where["conversation_id"], SUMMARY)
    for text in ("This chat was reset after 90 min without activity.", "The preview server was stopped."):
        notice = await server.store.add_notice("default", where["conversation_id"], "reset", text)
    await server.store.notice_sent(notice.id)
    for kind in (NodeKind.CLI, NodeKind.LIBRARY):
        node = Node(new_id("node"), kind, replace(identity(), host="reef", boot_id="b"), version="0.1.0")
        await server.store.join(node)
        if kind is NodeKind.CLI:
            await server.store.leave(node.id, "closed")
        else:
            await server.store.reap(node.id, 0, "no heartbeat for 90 s")
    for level, said in ((logging.INFO, "swept: 1 node was reaped"), (logging.ERROR, "the model is down")):
        server.services.log_buffer.handle(logging.LogRecord("holdfast.x", level, "", 0, said, None, None))
    # Should nobody stop it, it ends by itself.
    watching = "timeout 120 sh -c 'while sleep 0.4; do echo \"$(date +%T) watching tides.log\"; done'"
    await server.services.holdfast.supervisor.start("default", session, watching, str(site.home))
    return session


async def looked_at(page: Page, path: str) -> None:
    """Nothing sticks out, and everything that can be filled in has a name."""
    await page.goto(path)
    await page.locator("main").wait_for()
    width = (page.viewport_size or {"width": 0})["width"]
    assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
    nameless = await page.evaluate(
        "[...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, summary')]"
        ".filter((each) => !each.labels?.length && !each.ariaLabel && !each.textContent.trim())"
        ".map((each) => each.outerHTML)"
    )
    assert nameless == [], path


OTHERS = {
    "sessions": "/sessions",
    "processes": "/processes",
    "memories": "/memories",
    "add-memory": "/memories?add=1",
    "notices": "/notices?state=all",
    "nodes": "/nodes?gone=1",
    "logs": "/logs",
    "usage": "/usage",
    "settings": "/settings",
    "keys": "/keys",
    "connectors": "/connectors",
    "search": "/search?q=harbour",
    "new": "/new",
}


async def pictures(site: Site, paths: Mapping[str, str], kept: Path) -> None:
    """The other pages whole, at both widths and in both colour schemes."""
    for width, height, dark in ((1440, 900, False), (1440, 900, True), (390, 844, False), (390, 844, True)):
        page = await site.visitor(width=width, height=height, dark=dark)
        for name, path in paths.items():
            await page.goto(path)
            await page.screenshot(
                path=kept / f"{name}-{width}-{'dark' if dark else 'light'}.png", full_page=True
            )


@pytest.mark.timeout(400)
async def test_pages_fit_a_phone_and_a_desk_by_day_and_by_night(
    start_site: StartSite, tmp_path: Path
) -> None:
    site = await start_site(
        ScriptedModel(answer, window=100_000),
        reset={"mode": "idle", "idle_minutes": 90},
        compaction={"keep_first": 1, "keep_last": 2},
    )
    session = await furnished(site)
    wanted = os.environ.get("HOLDFAST_TEST_SCREENS")
    kept = Path(wanted) if wanted else tmp_path
    kept.mkdir(parents=True, exist_ok=True)
    for width, height, dark in ((1280, 860, False), (1280, 860, True), (390, 844, False), (390, 844, True)):
        page = await site.visitor(width=width, height=height, dark=dark)
        for name, path in (("overview", "/"), ("conversation", f"/sessions/{session}")):
            await looked_at(page, path)
            await expect(page.locator("[data-connection]")).to_have_class("dot on")
            await page.screenshot(path=kept / f"{name}-{width}-{'dark' if dark else 'light'}.png")
    own = ("end", "fork", "summary", "lineage", "timeline")
    others = {**OTHERS, **{name: f"/sessions/{session}/{name}" for name in own}}
    desk = await site.visitor(width=1440, height=900)
    narrow = await site.visitor(width=390, height=844)
    for path in others.values():
        await looked_at(desk, path)
        await looked_at(narrow, path)
    if wanted:
        await pictures(site, others, kept)
    await narrow.goto("/")
    await narrow.keyboard.press("Tab")
    await expect(narrow.locator(".skip")).to_be_focused()
    await narrow.keyboard.press("Enter")
    await expect(narrow.locator("main")).to_be_focused()
    await narrow.goto(f"/sessions/{session}")
    await narrow.get_by_text("From here on the model is given a summary").click()
    await expect(narrow.locator("details.summary .text")).to_have_text(SUMMARY)
    assert site.said == []
