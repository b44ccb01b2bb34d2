"""The red button, in a real browser, on a server that really dies: `holdfast demo` from the page's side."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, expect

from holdfast.dashboard.browser_sessions import login_link
from holdfast.dashboard.demo import Kill, KillBook, Score, score_of
from holdfast.models.scripted import ScriptedModel
from tests.acceptance.command import Home, installed
from tests.acceptance.shell import free_port
from tests.acceptance.storyteller import storyteller
from tests.integration.api.conftest import running_server

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def restarted(home: Home) -> AsyncIterator[list[int]]:
    """`holdfast serve`, and another whenever one was ended by SIGKILL; their exit codes as they come."""
    codes: list[int] = []
    current: list[asyncio.subprocess.Process] = []

    async def keep() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                *installed(), "serve", env=home.environment, stdout=-3, stderr=-3, cwd=home.path.parent
            )
            current[:] = [process]
            codes.append(await process.wait())
            if codes[-1] != -signal.SIGKILL:
                return

    keeping = asyncio.create_task(keep())
    try:
        yield codes
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        for process in current:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def answers(url: str) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.TransportError):
                await client.get(f"{url}/healthz")
                return
            await asyncio.sleep(0.05)


@pytest.mark.browser
async def test_the_red_button_kills_the_server_and_loses_nothing(browser: Browser, tmp_path: Path) -> None:
    with storyteller() as model:
        port = free_port()
        home = Home(
            tmp_path / "home",
            {
                "HOLDFAST_DEMO": "1",
                "HOLDFAST_TURNS__RECOVER": "all",
                "HOLDFAST_SERVER__PORT": str(port),
                "HOLDFAST_MODEL__KIND": "openai",
                "HOLDFAST_MODEL__BASE_URL": model,
            },
        )
        url = f"http://127.0.0.1:{port}"
        async with AsyncExitStack() as stack:
            codes = await stack.enter_async_context(restarted(home))
            await answers(url)
            context = await browser.new_context(reduced_motion="reduce")
            stack.push_async_callback(context.close)
            page = await context.new_page()
            page.set_default_timeout(20_000)
            link = login_link(url, home.path, "/demo")
            assert link is not None
            await page.goto(link)
            await page.wait_for_url(f"{url}/demo")
            growing = page.locator(".growing [data-text]")
            for killed in (1, 2):
                await expect(growing).to_contain_text("wave 14", timeout=60_000)
                await page.get_by_role("button", name="kill -9 the server now").click()
                await expect(page.locator("body")).to_have_class(re.compile("away"))
                await expect(page.get_by_text("Server killed. Restarting…")).to_be_visible()
                times = "1 time" if killed == 1 else "2 times"
                await expect(page.locator(".score")).to_have_text(f"killed {times}, lost 0", timeout=60_000)
                await expect(page.locator("body")).not_to_have_class(re.compile("away"))
                await expect(page.get_by_text("Server killed. Restarting…")).to_be_hidden()
                half = page.locator(".message.cut")
                await expect(half).to_have_count(1)
                await expect(half).to_contain_text("An earlier attempt was interrupted here")
                await expect(page.get_by_role("button", name="Retry")).to_have_count(0)
                assert codes == [-signal.SIGKILL] * killed
            await expect(page.locator(".message.assistant").last).to_contain_text("wave 59", timeout=60_000)
            await expect(page.get_by_role("button", name="Ask for another story")).to_be_visible()
            await expect(page.locator(".score")).to_have_text("killed 2 times, lost 0")


async def test_the_page_is_only_in_a_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DEMO", raising=False)
    async with running_server(tmp_path) as server:
        for method, path in (("GET", "/demo"), ("POST", "/demo/kill"), ("POST", "/demo/ask")):
            assert (await server.client.request(method, path)).status_code == 404
    monkeypatch.setenv("HOLDFAST_DEMO", "1")
    settings: dict[str, Any] = {"server": {"host": "0.0.0.0"}}  # which other machines reach
    async with running_server(tmp_path, settings=settings) as server:
        assert (await server.client.get("/demo")).status_code == 404
    async with running_server(tmp_path) as server:
        assert (await server.client.get("/demo")).status_code == 200
        site = await server.with_token(None)
        assert (await site.post("/demo/kill")).status_code == 401


async def test_what_is_lost_is_looked_up_and_not_believed(tmp_path: Path) -> None:
    async with running_server(tmp_path, ScriptedModel()) as server:
        said = (await server.say("hello"))["holdfast"]
        conversation, turn = said["conversation_id"], said["turn_id"]
        book = KillBook(tmp_path)
        assert await score_of(server.services.holdfast, book.all()) == Score(0, 0)
        book.add(Kill(conversation, 2))
        assert await score_of(server.services.holdfast, book.all()) == Score(1, 0)
        book.add(Kill(conversation, 5))  # three more had been acknowledged
        assert await score_of(server.services.holdfast, book.all()) == Score(2, 3)
        book.add(Kill(conversation, 2, turn, 3, "another text's"))
        assert await score_of(server.services.holdfast, book.all()) == Score(3, 4)
