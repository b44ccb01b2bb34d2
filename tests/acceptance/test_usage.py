"""Wrong usage, help, and leaving early: quick, quiet, and with a way on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .command import Home, installed, until, write_lock_held


def test_wrong_usage_exits_2_and_shows_how_it_is_used(home: Home) -> None:
    for arguments in (["no-such-command"], ["sessions", "--state", "sleeping"], ["run"]):
        done = home.run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Usage: holdfast" in done.stderr
        assert "Traceback" not in done.stderr
    assert not home.path.exists()


def test_stdin_that_is_not_text_is_wrong_usage(home: Home) -> None:
    done = home.run("run", "-", said=b"\xff\xfe")
    assert done.returncode == 2
    assert "UTF-8" in done.stderr


def test_an_argument_that_cannot_be_stored_is_refused(home: Home) -> None:
    done = subprocess.run(
        [*installed(), "run", b"bad \xff byte"], env=home.environment, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"cannot be stored" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_reader_that_leaves_early_hears_nothing_more(home: Home) -> None:
    home.ok("run", "hello")
    command = " ".join(installed())
    for arguments in ("sessions", "sessions --json", "config"):
        done = subprocess.run(
            ["bash", "-c", f"{command} {arguments} | true; echo ${{PIPESTATUS[0]}}"],
            env=home.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == "", arguments
        assert done.stdout in ("0\n", "141\n"), arguments


def has_open(pid: int, file: Path) -> bool:
    try:
        return any(
            os.readlink(handle) == os.path.realpath(file) for handle in Path(f"/proc/{pid}/fd").iterdir()
        )
    except FileNotFoundError:  # one was closed meanwhile
        return False


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
def test_ctrl_c_ends_any_command_at_once_and_quietly(home: Home) -> None:
    home.ok("run", "--key", "k", "hello")
    home.ok("sessions", "resume", "k")
    with write_lock_held(home.store):
        running = home.start("sessions", "end", "k")
        until(lambda: has_open(running.process.pid, home.store), "it has opened the store")
        running.send(signal.SIGINT)
        assert running.end() == (-signal.SIGINT, "", "")
    assert home.json("sessions", "show", "k")["state"] == "idle"


def test_a_server_says_where_it_answers_also_into_a_pipe(home: Home) -> None:
    running = home.start("serve", "--port", "0", env={"PYTHONUNBUFFERED": ""})
    try:
        running.wait_for("holdfast answers at")
    finally:
        running.send(signal.SIGKILL)
        running.end()


def test_python_dash_m_is_the_same_command(home: Home) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--help"],
        env=home.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == home.ok("--help")


def test_help_is_quick(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    times = []
    for _ in range(5):
        began = time.monotonic()
        home.ok("--help")
        times.append(time.monotonic() - began)
    with capsys.disabled():
        print(f"\nholdfast --help: {min(times):.3f} s (the best of {len(times)})")


def test_output_survives_a_terminal_that_speaks_no_utf_8(home: Home) -> None:
    home.ok("run", "--key", "k", "héllo")
    env = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    assert home.run("doctor", env=env).returncode == 0
    assert home.run("sessions", "messages", "k", env=env).returncode == 0
    assert "héllo" in home.run("sessions", "messages", "k", "--json", env=env).stdout
    assert home.run("run", "--key", "k", "héllo", env=env).returncode == 0
