"""`terminal` with real commands: what they say, how long they may run, what they leave behind."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from holdfast.os_support import Running, own_umask, private_umask, running_processes, send_signal
from holdfast.runtime.processes.supervisor import Supervisor
from holdfast.runtime.tools import terminal as commands
from holdfast.runtime.tools.terminal import Terminal
from holdfast.runtime.tools.toolbox import LONGEST_OUTPUT
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.tools.conftest import OWNER, Caller


@pytest.fixture
def terminal(supervisor: Supervisor) -> Terminal:
    return Terminal(supervisor, {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"})


def running(words: str) -> list[int]:
    """What runs with this in its command line."""
    found = []
    for pid in running_processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if words.encode() in line:
            found.append(pid)
    return found


async def until(words: str, count: int) -> None:
    """Wait until as many run with this in their command line."""
    async with asyncio.timeout(60):
        while True:
            if len(running(words)) == count:
                return
            await asyncio.sleep(0.02)


def test_a_command_runs_on_the_event_loop_of_the_server_too(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop", reason="not on this platform")
    with private_umask():
        done = uvloop.run(commands.run_command("umask", str(tmp_path), dict(os.environ), 60, 1000))
    assert (done.output.strip(), done.exit_code) == (f"{own_umask():04o}", 0)


async def test_output_of_both_kinds_and_the_exit_code_are_told(terminal: Terminal, call: Caller) -> None:
    assert await call(terminal, command="echo out; echo err >&2; exit 3") == "out\nerr\n[exit code 3]"
    assert await call(terminal, command="true") == "[no output]\n[exit code 0]"
    assert await call(terminal, command="kill -9 $$") == "[no output]\n[ended by signal 9]"


async def test_a_command_that_does_not_exist_is_told_as_a_shell_tells_it(
    terminal: Terminal, call: Caller
) -> None:
    told = await call(terminal, command="no-such-command-here")
    assert "not found" in told
    assert "[exit code 127]" in told


async def test_it_runs_where_it_is_told_to(terminal: Terminal, call: Caller, tmp_path: Path) -> None:
    assert (await call(terminal, command="pwd", cwd=str(tmp_path))).startswith(str(tmp_path))
    assert "no directory" in await call(terminal, command="pwd", cwd=str(tmp_path / "gone"))


async def test_a_command_has_no_input_to_wait_for(terminal: Terminal, call: Caller) -> None:
    async with asyncio.timeout(60):
        assert await call(terminal, command="cat; echo done") == "done\n[exit code 0]"


async def test_a_command_past_its_time_is_stopped_with_everything_it_started(
    terminal: Terminal, call: Caller
) -> None:
    began = time.monotonic()
    command = "echo begun; sleep 61.25 & setsid sleep 61.25 & sleep 61.25"
    told = await call(terminal, command=command, timeout_seconds=0.5)
    assert told.startswith("begun\n[it ran longer than 0.5 s and was stopped")
    assert time.monotonic() - began < 60
    assert running("sleep 61.25") == []


async def test_what_leaves_its_session_and_clears_its_environment_is_stopped_too(
    terminal: Terminal, call: Caller
) -> None:
    command = "env -i setsid sleep 61.75 & (setsid env -i sleep 61.75 &); echo begun; sleep 61.75"
    told = await call(terminal, command=command, timeout_seconds=1)
    assert told.startswith("begun\n[it ran longer than 1 s and was stopped")
    assert "still run" not in told
    await until("sleep 61.75", 0)


async def test_the_model_is_told_what_could_not_be_stopped(
    terminal: Terminal, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.1)
    signal_one = send_signal
    spared: list[tuple[int, str]] = []

    def send(pid: int, start: str, number: int) -> bool:
        if pid in running("sleep 61.8"):
            spared.append((pid, start))
            raise PermissionError  # as of a program with another user's rights
        return signal_one(pid, start, number)

    monkeypatch.setattr(commands, "send_signal", send)
    try:
        told = await call(terminal, command="setsid sleep 61.8 & sleep 61.9", timeout_seconds=1)
        assert "1 of the processes it started could not be stopped and still run" in told
    finally:
        for pid, start in set(spared):
            signal_one(pid, start, 9)


async def test_a_command_that_cannot_be_stopped_is_not_waited_for(
    terminal: Terminal, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell has become the command, as it does with a single one: sudo, or a read of a hung disk."""
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.1)
    spared: list[tuple[int, str]] = []

    def send(pid: int, start: str, number: int) -> bool:
        spared.append((pid, start))
        raise PermissionError

    monkeypatch.setattr(commands, "send_signal", send)
    try:
        async with asyncio.timeout(60):
            told = await call(terminal, command="exec sleep 62.75", timeout_seconds=0.3)
        assert "1 of the processes it started could not be stopped and still run" in told
    finally:
        for pid, start in set(spared):
            send_signal(pid, start, 9)


async def test_a_command_that_ignores_sigterm_is_killed(
    terminal: Terminal, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.3)
    told = await call(terminal, command="trap '' TERM; while true; do sleep 61.5; done", timeout_seconds=0.3)
    assert "was stopped" in told
    await until("sleep 61.5", 0)


async def test_a_command_that_nobody_waits_for_any_more_ends(terminal: Terminal, call: Caller) -> None:
    task = asyncio.create_task(call(terminal, command="sleep 62.25 & sleep 62.25"))
    await until("sleep 62.25", 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until("sleep 62.25", 0)


async def test_a_command_that_is_given_up_while_it_begins_ends(terminal: Terminal, call: Caller) -> None:
    task = asyncio.create_task(call(terminal, command="setsid sleep 62.5 & sleep 62.5"))
    await asyncio.sleep(0)  # the shell is forked, and nothing has taken note of it yet
    deadline = time.monotonic() + 60
    while len(running("sleep 62.5")) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)  # the loop must not run
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until("sleep 62.5", 0)


def test_a_process_that_is_just_being_removed_is_not_taken_for_one_of_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel lists it with -1 for group and session, and its former children may be in the same list."""
    removed = Running(2**22 + 1, 1, -1, -1, "1", 0.0)
    child = Running(2**22 + 2, removed.pid, 7, 7, "1", 0.0)
    monkeypatch.setattr(commands, "running_processes", lambda: {one.pid: one for one in (removed, child)})
    assert commands._Tree(None, "proc_1").living() == []


async def test_what_a_command_leaves_running_is_stopped_and_told(terminal: Terminal, call: Caller) -> None:
    async with asyncio.timeout(60):
        told = await call(terminal, command="nohup sleep 63.25 > /dev/null 2>&1 & echo started")
    assert told.startswith("started\n[exit code 0]")
    assert "background=true" in told
    await until("sleep 63.25", 0)


async def test_what_detaches_itself_is_left_alone_and_told(terminal: Terminal, call: Caller) -> None:
    try:
        told = await call(terminal, command="setsid sleep 64.25 > /dev/null 2>&1 & sleep 0.3; echo ok")
        assert "detached themselves" in told
        assert running("sleep 64.25")
    finally:
        for pid in running("sleep 64.25"):
            os.kill(pid, 9)


async def test_long_output_keeps_its_beginning_and_its_end(terminal: Terminal, call: Caller) -> None:
    told = await call(terminal, command="echo first; seq 1 200000; echo last")
    assert told.startswith("first\n1\n2\n")
    assert told.endswith("200000\nlast\n[exit code 0]")
    assert "bytes left out" in told
    assert len(told) < LONGEST_OUTPUT + 200


async def test_a_command_that_never_stops_talking_fills_nothing(terminal: Terminal, call: Caller) -> None:
    told = await call(terminal, command="yes kelp", timeout_seconds=0.5)
    assert len(told) < LONGEST_OUTPUT + 200
    assert "was stopped" in told


async def test_output_that_is_no_text_is_told_all_the_same(terminal: Terminal, call: Caller) -> None:
    told = await call(terminal, command=r"printf 'a\377\000b'")
    assert told == "a\ufffd\ufffdb\n[exit code 0]"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ("not json", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("", "needs command"),
        ('{"command": 3}', "command must be a text"),
        ('{"command": ""}', "a command"),
        ('{"command": "true", "background": "yes"}', "background must be true or false"),
        ('{"command": "true", "timeout_seconds": 601}', "from 0.1 to 600"),
        ('{"command": "true", "timeout_seconds": true}', "from 0.1 to 600"),
        ('{"command": "true", "cwd": 1}', "cwd must be a text"),
    ],
)
async def test_bad_arguments_are_told_to_the_model(
    terminal: Terminal, call: Caller, raw: str, told: str
) -> None:
    assert told in await call(terminal, raw)


async def test_only_the_environment_it_was_given_is_there(terminal: Terminal, call: Caller) -> None:
    names = {line.partition("=")[0] for line in (await call(terminal, command="env")).splitlines()}
    ours = {"HOLDFAST_PROCESS", "HOLDFAST_TOOL_CALL_ID"}
    assert names - ours <= {"PATH", "LANG", "PWD", "[exit code 0]", "_", "OLDPWD", "SHLVL"}


async def test_a_command_has_the_key_of_its_call(terminal: Terminal, call: Caller) -> None:
    assert "turn.2.0" in await call(terminal, command='echo "$HOLDFAST_TOOL_CALL_ID"')
    said = await call(terminal, command='echo "$HOLDFAST_TOOL_CALL_ID"; sleep 0', background=True)
    assert "turn.2.0" in said or "Started in the background" in said


# --- in the background ---------------------------------------------------------------------------------


async def test_a_background_command_is_a_process_of_the_session(
    terminal: Terminal, call: Caller, store: SQLiteStore
) -> None:
    told = await call(terminal, command="sleep 60.75", background=True)
    (process,) = (await store.processes(OWNER)).items
    assert told == f"[Started in the background as {process.id}.]"
    assert (process.session_id, process.command) == (call.session.id, "sleep 60.75")


async def test_a_background_command_that_fails_at_once_is_told(terminal: Terminal, call: Caller) -> None:
    told = await call(terminal, command="echo sorry; exit 4", background=True)
    assert told.startswith("sorry")
    assert "has ended already: exit code 4" in told
