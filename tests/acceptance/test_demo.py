"""`holdfast demo`, whole, at a terminal: every proof, the page that comes back, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from .command import Home, installed, until
from .terminal import CTRL_C, terminal

PROMISES = (
    "NOTHING SAID IS LOST",
    "NOTHING STAYS OPEN BY ACCIDENT",
    "AN ID KEEPS WORKING",
    "RESETS HAPPEN WHEN THEY SHOULD, AND SAY WHY",
    "MEMORY IS FLUSHED ONCE",
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Where the demo must not touch anything, and a place for its own home."""
    (tmp_path / "places").mkdir()
    environment = {"TMPDIR": str(tmp_path / "places"), "SSH_CONNECTION": "no browser, please"}
    return Home(tmp_path / "home", environment)


def left_behind(home: Home) -> list[str]:
    """What the demo's home and its processes left."""
    places = Path(home.environment["TMPDIR"])
    found = [str(path) for path in places.iterdir()]
    for process in Path("/proc").glob("[0-9]*/environ") if Path("/proc").exists() else ():
        try:
            if str(places).encode() in process.read_bytes() and int(process.parent.name) != os.getpid():
                found.append((process.parent / "cmdline").read_text())
        except OSError:
            continue  # it has ended meanwhile
    return found


@pytest.mark.timeout(300)
def test_the_demo_keeps_its_promises_and_its_page_comes_back_until_ctrl_c(home: Home, tmp_path: Path) -> None:
    with terminal([*installed(), "demo"], home.environment, tmp_path) as screen:
        for promise in PROMISES:
            screen.expect(promise, seconds=120)
        screen.expect("Five promises kept", seconds=120)
        link = re.search(r"http://127\.0\.0\.1:\d+/login\S+", screen.expect("Ctrl-C here ends the demo"))
        assert link is not None
        before = server(home)
        os.kill(before, signal.SIGKILL)
        screen.expect("killed 1 time; the server is process ")
        assert server(home) != before
        with urllib.request.urlopen(link[0], timeout=60) as page:
            assert page.status == 200
        screen.press(CTRL_C)
        assert screen.end() == 0
    shown = screen.screen
    assert "marked interrupted" in shown
    assert "2 turns, all completed" in shown
    assert re.search(r"process \d+ has completed attempt 2", shown)
    assert "0 of 3 sessions leaked" in shown
    assert "holdfast why: telegram:dm:42 was reset at" in shown
    assert re.search(r"ended as idle; proc_\w+ is stopped", shown)
    assert "3 servers, 2 model calls" in shown
    assert "✗" not in shown
    assert not home.path.exists(), "the person's own home was not touched"
    assert left_behind(home) == []


def server(home: Home) -> int:
    """The pid of the demo's server."""
    (place,) = Path(home.environment["TMPDIR"]).iterdir()
    nodes = Home(place).json("nodes")["data"]
    (pid,) = [node["pid"] for node in nodes if node["kind"] == "server"]
    return int(pid)


def test_without_a_terminal_a_signal_ends_it_and_everything_it_made(home: Home) -> None:
    demo = home.start("demo")
    demo.wait_for("holdfast serve is process")
    demo.send(signal.SIGTERM)
    code, _, err = demo.end()
    assert code == 128 + signal.SIGTERM
    assert "everything that the demo made is gone" in err
    assert "Traceback" not in err
    until(lambda: left_behind(home) == [], "nothing is left")


def test_a_step_that_goes_wrong_says_so_and_exits_1(home: Home, tmp_path: Path) -> None:
    program = (
        "from holdfast.demo import storyteller\n"
        "async def nothing(self, purpose, messages):\n"
        "    yield ''\n"
        "storyteller.Storyteller._words = nothing\n"
        "import sys; sys.argv = ['holdfast', 'demo']\n"
        "from holdfast.__main__ import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=home.environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "the demo failed" in done.stderr
    assert "Five promises kept" not in done.stdout
    assert left_behind(home) == []
