"""Pages in a real Chromium, from a real server in the test's own event loop."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect

from holdfast.dashboard.browser_sessions import LinkBook
from holdfast.domain.api_keys import parse_token
from holdfast.models.base import Model
from tests.agents.programs import node_directory
from tests.integration.api.conftest import Running, running_server

PATIENCE_MS = 60_000
CHROMIUMS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
ALLOWED = ("Failed to load resource: the server responded with a status of 4",)
"""What the console may say: that a refusal was one."""


def chromium() -> str | None:
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all pages of a worker; each test has windows of its own. Its driver runs on the node
    of the tests: the one that comes with it needs a library that not every machine has (libatomic)."""
    os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", str(node_directory() / "node"))
    path = chromium()
    if path is None:
        pytest.fail("there is no Chromium on this machine (Debian: apt install chromium-headless-shell)")
    expect.set_options(timeout=PATIENCE_MS)
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(
            executable_path=path, args=[*root, "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield launched
        await launched.close()


@dataclass
class Site:
    """A server with pages, and browsers that look at them. Whatever their consoles say is kept."""

    server: Running
    home: Path
    browser: Browser
    stack: AsyncExitStack
    said: list[str] = field(default_factory=list)
    """Console errors, refused resources, failed scripts."""

    @property
    def url(self) -> str:
        return self.server.url

    def link(self, token: str | None = None) -> str:
        """A one-time link for the holder of this key."""
        key = parse_token(token or self.server.admin_key)
        assert key is not None
        return f"{self.url}/login?link={LinkBook(self.home).new_link(key.key_id)}"

    async def visitor(
        self,
        token: str | None = None,
        *,
        logged_in: bool = True,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
    ) -> Page:
        """A new browser window, logged in as the holder of this key (else the admin)."""
        context = await self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            base_url=self.url,
            locale="en-GB",
            reduced_motion="reduce",
        )
        self.stack.push_async_callback(context.close)
        await self._watch(context)
        page = await context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.said.append(f"script: {error}"))
        page.on("console", self._heard)
        if logged_in:
            await page.goto(self.link(token))
            if not scripts:
                await page.get_by_role("button", name="Log in").click()
            await page.wait_for_url(f"{self.url}/")
        return page

    async def _watch(self, context: BrowserContext) -> None:
        """The policy's own word on what was refused."""
        await context.add_init_script(
            "document.addEventListener('securitypolicyviolation', (event) => "
            "console.error('POLICY ' + event.violatedDirective + ' ' + event.blockedURI));"
        )

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(ALLOWED):
            self.said.append(f"{message.type}: {message.text}")


StartSite = Callable[..., Awaitable[Site]]


@pytest.fixture
def site_home(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory) as directory:
        yield Path(directory)


@pytest_asyncio.fixture(loop_scope="session")
async def start_site(browser: Browser, site_home: Path) -> AsyncIterator[StartSite]:
    """Starts a server with pages: `await start_site(model, reset={"mode": "idle"})`."""
    async with AsyncExitStack() as stack:

        async def start(model: Model | None = None, /, **settings: Mapping[str, Any]) -> Site:
            server = await stack.enter_async_context(running_server(site_home, model, settings))
            return Site(server, site_home, browser, stack)

        yield start


@pytest_asyncio.fixture(loop_scope="session")
async def site(start_site: StartSite) -> AsyncIterator[Site]:
    found = await start_site()
    yield found
    assert found.said == [], "the browser's console must have nothing to complain about"


async def form_of(client: httpx.AsyncClient, path: str) -> str:
    """The mark that forms of this login carry."""
    text = (await client.get(path, headers={"accept": "text/html"})).text
    return text.partition('name="form" value="')[2].partition('"')[0]
