"""The link in `holdfast serve`'s start lines: on a terminal only, and it logs a browser in once."""

from __future__ import annotations

import re
import signal

import httpx

from .command import Home, installed
from .shell import free_port
from .terminal import CTRL_C, terminal


def test_a_terminal_is_shown_a_link_that_logs_in_once(home: Home) -> None:
    home.environment["HOLDFAST_SERVER__PORT"] = str(free_port())
    with terminal([*installed(), "serve"], home.environment, home.path.parent) as screen:
        shown = screen.expect("logs your browser in, once")
        link = re.search(r"http://127\.0\.0\.1:\d+/login\?link=\S+", shown)
        assert link is not None, shown
        url, _, token = link[0].partition("/login?link=")
        for status in (303, 403):
            with httpx.Client(base_url=url, headers={"origin": url}, trust_env=False) as browser:
                assert browser.get(link[0]).status_code == 200
                assert browser.post("/login", data={"link": token}).status_code == status
                page = browser.get("/", headers={"accept": "text/html"})
                assert page.status_code == (200 if status == 303 else 303)
        screen.press(CTRL_C)
        assert screen.end() == 0


def test_a_pipe_is_shown_neither_key_nor_link(home: Home) -> None:
    home.environment["HOLDFAST_SERVER__PORT"] = str(free_port())
    running = home.start("serve")
    try:
        running.wait_for("(log in with the key)")
        assert b"link=" not in running.printed and b"hf_" not in running.printed
        assert not (home.path / "links").exists()
    finally:
        running.send(signal.SIGTERM)
        assert running.end()[0] == 0
