"""Every file that holdfast makes is its owner's alone, whatever the umask.

The real commands make them, and the tests walk everything that was left.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import Home, installed, until
from .serving import serving
from .terminal import CTRL_C, CTRL_D, terminal

LIBRARY = """
import asyncio, sys, holdfast

async def main():
    async with holdfast.open() as hf:
        session = await hf.session("cli:ada")
        process = await session.spawn("echo out; echo err >&2; cat", stdin=True)
        await session.spawn("true")
        print("spawned", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await hf.supervisor.stop("default", process.id, "the test is over")

asyncio.run(main())
"""


@pytest.fixture(params=[0o000, 0o002], ids=["umask 000", "umask 002"])
def masked(request: pytest.FixtureRequest) -> Iterator[None]:
    """A umask that the commands inherit. (They are not forked: a warm process would have its own.)"""
    before = os.umask(request.param)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def home(tmp_path: Path, masked: None) -> Home:
    """A home whose parents are missing too, and a working directory elsewhere."""
    (tmp_path / "tmp").mkdir()
    place = tmp_path / "cwd"
    place.mkdir()
    made = tmp_path / "made" / "deeper" / "home"
    return Home(place / "unused", {"TMPDIR": str(tmp_path / "tmp"), "HOLDFAST_HOME": str(made)})


def opened_to_others(*places: Path) -> dict[str, str]:
    """What others may read, write or enter below these places, with its mode."""
    found = [each for place in places for each in (place, *place.rglob("*")) if not each.is_symlink()]
    assert len(found) > len(places), "nothing was made"
    modes = {each: stat.S_IMODE(each.stat().st_mode) for each in found if not is_socket(each)}
    return {str(each): f"{mode:04o}" for each, mode in modes.items() if mode & 0o077}


def is_socket(path: Path) -> bool:
    return stat.S_ISSOCK(path.stat().st_mode)  # the directory around it protects it


def test_what_commands_make_is_private(home: Home, tmp_path: Path) -> None:
    made, place = tmp_path / "made", home.path.parent
    (place / "holdfast.toml").write_text('[log]\nlevel = "info"\n')
    home.ok("config", "trust")
    home.ok("run", "--key", "cli:ada", "hello")
    home.ok("memories", "add", "cli:ada", "likes kelp")
    home.ok("sessions", "export", "cli:ada", "--output", str(made / "one.jsonl"))
    home.ok("sessions", "export", "--output", str(made / "all.jsonl"))
    home.ok("backup", str(made / "copy.db"))
    home.ok("chat", "--key", "cli:ada", said=f"hi\n/save {made / 'said.md'}\n")
    home.ok("restore", str(made / "copy.db"))
    home.ok("sessions", "search", "hello")
    home.ok("keys", "create", "--owner", "ada")
    names = {each.name for each in made.rglob("*")}
    assert {"trusted.json", "holdfast.db", "one.jsonl", "all.jsonl", "copy.db", "said.md"} <= names
    assert opened_to_others(made) == {}


def test_what_a_server_and_a_chat_at_a_terminal_make_is_private(home: Home, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with serving(home) as server:
        server.say("hello")
        assert (made / "deeper" / "home" / "server.url").is_file()
        assert opened_to_others(made) == {}
    with terminal([*installed(), "serve"], home.environment, home.path.parent) as screen:
        screen.expect("logs your browser in", seconds=60)
        assert (made / "deeper" / "home" / "links").is_dir()
        screen.press(CTRL_C)
        screen.end()
    with terminal([*installed(), "chat"], home.environment, home.path.parent) as screen:
        screen.expect("> ", seconds=60)
        screen.type("hello")
        screen.expect("\nYou said: hello\n", seconds=60)
        screen.expect("> ", seconds=60)
        screen.press(CTRL_D)
        screen.end()
    assert any("history" in each.name for each in made.rglob("*"))
    assert opened_to_others(made) == {}


def test_what_background_processes_leave_is_private(home: Home, tmp_path: Path) -> None:
    made = tmp_path / "made"
    program = subprocess.Popen(
        [sys.executable, "-c", LIBRARY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=home.environment,
        cwd=home.path.parent,
    )
    try:
        assert program.stdout is not None and program.stdout.readline() == b"spawned\n"
        until(lambda: list(made.rglob("exit")), "a process has ended")
        names = {each.name for each in made.rglob("*")}
        assert {"stdin", "identity", "exit", "exit.tmp"} <= names
        assert opened_to_others(made) == {}
    finally:
        program.communicate(b"", timeout=60)
    assert program.returncode == 0


def test_what_a_launch_makes_is_private(home: Home, tmp_path: Path) -> None:
    """The program looks at its own temporary files, which hold a key."""
    listing = tmp_path / "listing"
    for name, words in (("pi", ()), ("aider", ()), ("llm", ("chat",))):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(
            f"#!/bin/sh\nfind '{tmp_path / 'tmp'}' '{tmp_path / 'made'}' \\( -type f -o -type d \\) "
            f"-perm /077 >>'{listing}'\nfind '{tmp_path / 'tmp'}' -type f | wc -l >>'{listing}.files'\n"
        )
        (folder / name).chmod(0o755)
        environment = {
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "LLM_USER_PATH": str(tmp_path / "llm"),
            "HOLDFAST_SERVER__PORT": "0",
        }
        done = home.run("launch", name, *words, env=environment)
        assert done.returncode == 0, done.stderr
    counts = [int(each) for each in Path(f"{listing}.files").read_text().split()]
    assert len(counts) == 3 and all(counts), "each had a file of its own"
    assert set(listing.read_text().splitlines()) <= {str(tmp_path / "tmp")}
    assert opened_to_others(tmp_path / "made") == {}


def test_what_the_demo_makes_is_private(home: Home, tmp_path: Path) -> None:
    places = tmp_path / "tmp"
    with terminal([*installed(), "demo"], home.environment, home.path.parent) as screen:
        screen.expect("AN ID KEEPS WORKING", seconds=120)
        (place,) = places.glob("holdfast-demo-*")
        assert {"holdfast.toml", "demo.log"} <= {each.name for each in place.iterdir()}
        found = opened_to_others(place)
        screen.press(CTRL_C)  # first: a demo that is killed would leave its server
        screen.end()
    assert found == {}
