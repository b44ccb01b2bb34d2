"""`holdfast launch`: the server, the key, the environment, signals and the end of a run.

The program here is a small script under a real program's name; `tests/agents` runs the real ones.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .command import PATIENCE, Home, installed, until
from .serving import serving
from .terminal import CTRL_C, terminal

PROGRAM = """\
#!{python}
import json, os, select, signal, sys, time, urllib.request

def ask(base, words, thread):
    body = {{"model": "x", "input": words, "store": False}}
    headers = {{"authorization": "Bearer " + os.environ["HOLDFAST_LAUNCH_KEY"],
               "content-type": "application/json", "thread-id": thread, "x-holdfast-source": "codex"}}
    request = urllib.request.Request(base + "/responses", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer), dict(answer.headers)

def base():
    [given] = [each for each in sys.argv if ".base_url=" in each]
    return json.loads(given.split("=", 1)[1])

words = sys.argv[sys.argv.index("exec") + 1:] if "exec" in sys.argv else []
record = {{"argv": sys.argv[1:], "env": dict(os.environ), "base": base(), "pid": os.getpid()}}
if words and words[0] == "say":
    record["answer"], record["headers"] = ask(base(), words[1], "thread-of-codex")
with open(os.environ["RECORD"], "w") as file:
    json.dump(record, file)
if words and words[0] == "exit":
    sys.exit(int(words[1]))
if words and words[0] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if words and words[0] == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(43))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(44))
    open(os.environ["RECORD"] + ".ready", "w").close()
    while True:
        time.sleep(0.05)
if words and words[0] == "count":
    heard = []

    def hear(*_):
        heard.append("Ctrl-C")
        os.write(1, b"heard")

    signal.signal(signal.SIGINT, hear)
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"told"))
    print("ready", flush=True)
    while not select.select([0], [], [], 0.05)[0]:
        pass  # a signal just before a read would be handled only after it
    sys.exit(len(heard) if input() == "enough" else 99)
"""


class Launcher:
    def __init__(self, home: Home, place: Path) -> None:
        self.home = home
        self.record = place / "record.json"
        bin_ = place / "bin"
        bin_.mkdir()
        program = bin_ / "codex"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        home.environment["PATH"] = f"{bin_}{os.pathsep}{os.environ['PATH']}"
        home.environment["RECORD"] = str(self.record)
        with socket.create_server(("127.0.0.1", 0)) as free:
            home.environment["HOLDFAST_SERVER__PORT"] = str(free.getsockname()[1])

    @property
    def recorded(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.record.read_text())
        return found


@pytest.fixture
def launcher(home: Home, tmp_path: Path) -> Launcher:
    return Launcher(home, tmp_path)


def test_a_run_gets_a_chat_key_that_ends_with_it_and_names_its_session(launcher: Launcher) -> None:
    home = launcher.home
    home.environment["HOLDFAST_API_KEY"] = "an-admin-key-of-this-shell-that-stays-here"
    home.environment["OPENAI_API_KEY"] = home.json("env")["OPENAI_API_KEY"]  # the local admin key
    admin = home.environment["OPENAI_API_KEY"]
    before = {path: path.read_bytes() for path in home.path.iterdir() if path.name in ("api.key",)}
    done = home.run("launch", "codex", "exec", "say", "the tide is low")
    assert done.returncode == 0, done.stderr
    seen = launcher.recorded
    assert seen["answer"]["output"][0]["content"][0]["text"] == "You said: the tide is low"
    assert seen["headers"]["x-holdfast-stored"] == "yes"

    handed = "\n".join([*seen["env"].values(), *seen["argv"]])
    assert admin not in handed
    assert home.environment["HOLDFAST_API_KEY"] not in handed
    token = seen["env"]["HOLDFAST_LAUNCH_KEY"]
    assert token not in " ".join(seen["argv"])
    [key] = [each for each in home.json("keys", "list")["data"] if each["scope"] == "chat"]
    assert (key["owner"], key["tools"]) == ("default", [])
    assert key["revoked_at"] is not None

    assert "store: false" in done.stderr
    assert "--store never" in done.stderr
    assert "holdfast chat --resume thread-of-codex" in done.stderr
    assert "holdfast launch codex resume thread-of-codex" in done.stderr
    assert home.json("sessions", "show", "thread-of-codex")["source"] == "codex"
    assert {path: path.read_bytes() for path in before} == before


def test_claude_code_is_also_known_by_the_name_that_import_has_for_it(launcher: Launcher) -> None:
    claude = launcher.record.parent / "bin" / "claude"
    claude.write_text("#!/bin/sh\nexit 9\n")
    claude.chmod(0o755)
    assert launcher.home.run("launch", "claude-code").returncode == 9


def test_arguments_exit_codes_and_deaths_pass_through(launcher: Launcher) -> None:
    home = launcher.home
    with serving(home):  # one server for all of these
        assert home.run("launch", "codex", "--", "exec", "exit", "7").returncode == 7
        assert launcher.recorded["argv"][-3:] == ["exec", "exit", "7"]
        assert home.run("launch", "codex", "exec", "--json", "--help", "--owner").returncode == 0
        assert launcher.recorded["argv"][-4:] == ["exec", "--json", "--help", "--owner"]
        assert home.run("launch", "codex", "exec", "die").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 43), (signal.SIGINT, 44)])
def test_a_signal_reaches_the_program_and_the_run_ends_in_order(
    launcher: Launcher, number: signal.Signals, code: int
) -> None:
    home = launcher.home
    running = home.start("launch", "codex", "exec", "wait")
    ready = Path(f"{launcher.record}.ready")
    until(ready.exists, "the program runs")
    running.send(number)
    ended, _, err = running.end()
    assert ended == code, err
    assert "is stopped" in err
    assert not (home.path / "server.url").exists()
    assert all(each["revoked_at"] for each in home.json("keys", "list")["data"] if each["scope"] == "chat")


def test_ctrl_c_at_a_terminal_reaches_the_program_once_and_does_not_stop_the_server(
    launcher: Launcher, tmp_path: Path
) -> None:
    arguments = [*installed(), "launch", "codex", "exec", "count"]
    with terminal(arguments, launcher.home.environment, tmp_path) as screen:
        screen.expect("ready")
        screen.press(CTRL_C)
        screen.expect("heard")
        screen.process.send_signal(signal.SIGUSR1)  # passed on after any Ctrl-C that would be
        screen.expect("told")
        screen.type("enough")
        assert screen.end() == 1  # how many it got
        assert "is stopped" in screen.screen  # by the end of the run, not by Ctrl-C


def test_the_last_of_two_runs_stops_the_server_that_the_first_started(
    launcher: Launcher, tmp_path: Path
) -> None:
    home = launcher.home
    first = home.start("launch", "codex", "exec", "wait")
    ready = Path(f"{launcher.record}.ready")
    until(ready.exists, "the first program runs")
    base = launcher.recorded["base"]
    ready.unlink()
    second = home.start("launch", "codex", "exec", "wait")
    until(ready.exists, "the second program runs")
    assert launcher.recorded["base"] == base
    first.send(signal.SIGTERM)
    code, _, err = first.end()
    assert (code, "keeps running" in err) == (43, True), err
    assert (home.path / "server.url").exists()
    second.send(signal.SIGTERM)
    code, _, err = second.end()
    assert (code, "is stopped" in err) == (43, True), err
    assert not (home.path / "server.url").exists()


def test_a_server_of_the_user_is_used_and_stays(launcher: Launcher) -> None:
    with serving(launcher.home) as server:
        done = launcher.home.run("launch", "codex", "exec", "say", "hello")
        assert done.returncode == 0, done.stderr
        assert launcher.recorded["base"] == f"{server.url}/v1"
        assert "stopped" not in done.stderr
        assert server.ask("GET", "/healthz")[0] == 200


def test_store_never_keeps_nothing(launcher: Launcher) -> None:
    done = launcher.home.run("launch", "--store", "never", "codex", "exec", "say", "hello")
    assert done.returncode == 0, done.stderr
    assert "Nothing of its sessions is kept" in done.stderr
    assert launcher.home.sessions() == []


def test_a_conversation_is_handed_to_another_program(launcher: Launcher) -> None:
    home = launcher.home
    home.ok("run", "--key", "cli:ada", "my name is Ada")
    done = home.run("launch", "--resume", "cli:ada", "codex", "exec", "exit", "0")
    assert done.returncode == 0, done.stderr
    [session] = home.sessions("--key", "cli:ada")
    [headers] = [each for each in launcher.recorded["argv"] if ".http_headers=" in each]
    assert session["conversation_id"] in headers
    missing = home.run("launch", "--resume", "nobody", "codex")
    assert (missing.returncode, "nobody" in missing.stderr) == (1, True)


def test_a_program_that_is_not_installed_is_an_error_with_its_install_command(home: Home) -> None:
    home.environment["PATH"] = os.path.dirname(sys.executable)
    done = home.run("launch", "codex")
    assert done.returncode == 1
    assert "npm install -g @openai/codex" in done.stderr
    assert home.run("launch", "nonsense").returncode == 2
    assert home.run("launch").returncode == 2


def test_the_programs_are_listed(launcher: Launcher) -> None:
    listed = launcher.home.json("launch", "--list")
    programs = {each["id"]: each for each in listed["data"]}
    assert {"codex", "claude", "opencode", "pi", "llm", "aider"} <= set(programs)
    assert programs["codex"]["installed"] is True
    assert programs["codex"]["path"].endswith("/bin/codex")
    assert (
        "npm install -g @openai/codex" in launcher.home.ok("launch", "--list") or programs["codex"]["install"]
    )
    assert listed["has_more"] is False


def test_a_server_of_another_store_is_refused(launcher: Launcher, tmp_path: Path) -> None:
    with serving(launcher.home):
        done = launcher.home.run("launch", "--store", f"sqlite:///{tmp_path}/other.db", "codex", "exec")
        assert done.returncode == 1
        assert "another store" in done.stderr
        assert not launcher.record.exists()


def test_a_server_that_cannot_start_is_reported_with_its_reason(launcher: Launcher) -> None:
    launcher.home.environment["HOLDFAST_MODEL__KIND"] = "openai"  # and no base_url
    began = time.monotonic()
    done = launcher.home.run("launch", "codex", "exec")
    assert done.returncode == 1, done
    assert "base_url" in done.stderr
    assert time.monotonic() - began < PATIENCE
    assert not launcher.record.exists()
