"""`process`: what an agent sees of its conversation's processes and does with them, and with no others."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.domain.conversations import Address
from holdfast.runtime.processes.supervisor import Supervisor
from holdfast.runtime.tools.process import ProcessTool
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.conftest import Joined
from tests.unit.runtime.tools.conftest import OWNER, Caller


@pytest.fixture
def tool(store: SQLiteStore, supervisor: Supervisor) -> ProcessTool:
    return ProcessTool(store, supervisor)


async def start(supervisor: Supervisor, call: Caller, command: str, *, stdin: bool = False) -> str:
    process = await supervisor.start(OWNER, call.session.id, command, stdin=stdin)
    return process.id


async def test_the_processes_of_the_conversation_are_listed(
    tool: ProcessTool, call: Caller, supervisor: Supervisor
) -> None:
    assert "no background process" in await call(tool, action="list")
    running, ended = await start(supervisor, call, "sleep 60"), await start(supervisor, call, "exit 7")
    await supervisor.wait(OWNER, ended, 10)
    told = (await call(tool, action="list")).splitlines()
    assert told[0] == f"{ended} (exit code 7): exit 7"
    assert told[1].startswith(f"{running} (running, for 0 s")
    assert told[1].endswith("): sleep 60")


async def test_waiting_tells_how_it_ended_and_what_it_said(
    tool: ProcessTool, call: Caller, supervisor: Supervisor
) -> None:
    process = await start(supervisor, call, "sleep 0.3; echo built")
    async with asyncio.timeout(60):
        told = await call(tool, action="wait", id=process)
    assert told == f"{process} (exit code 0): sleep 0.3; echo built\nbuilt"


async def test_what_a_command_left_running_is_told(
    tool: ProcessTool, call: Caller, supervisor: Supervisor
) -> None:
    process = await start(supervisor, call, "sleep 60 & exit 3")
    told = await call(tool, action="wait", id=process)
    assert f"{process} (exit code 3, what it started runs for 0 s" in told


async def test_waiting_has_an_end(tool: ProcessTool, call: Caller, supervisor: Supervisor) -> None:
    process = await start(supervisor, call, "sleep 60")
    assert "(running" in await call(tool, action="wait", id=process, timeout_seconds=0.1)


async def test_polling_tells_the_last_it_said_and_the_log_tells_more(
    tool: ProcessTool, call: Caller, supervisor: Supervisor
) -> None:
    process = await start(supervisor, call, "seq 1 100")
    await supervisor.wait(OWNER, process, 10)
    assert (await call(tool, action="poll", id=process)).splitlines()[1:] == [str(n) for n in range(81, 101)]
    assert (await call(tool, action="log", id=process)).split() == [str(n) for n in range(1, 101)]
    assert (await call(tool, action="log", id=process, lines=2)).split() == ["99", "100"]


async def test_it_can_be_written_to(tool: ProcessTool, call: Caller, supervisor: Supervisor) -> None:
    process = await start(supervisor, call, "read line; echo got $line", stdin=True)
    assert await call(tool, action="write", id=process, text="kelp\n") == "[Written.]"
    assert (await call(tool, action="wait", id=process)).endswith("got kelp")
    assert "has ended" in await call(tool, action="write", id=process, text="more\n")


async def test_it_can_be_stopped(tool: ProcessTool, call: Caller, supervisor: Supervisor) -> None:
    process = await start(supervisor, call, "sleep 60")
    async with asyncio.timeout(60):
        assert "ended by signal 15" in await call(tool, action="stop", id=process)
    assert "has ended already" in await call(tool, action="stop", id=process)


async def test_it_can_be_pinned_for_a_day_at_most(
    tool: ProcessTool, call: Caller, supervisor: Supervisor, store: SQLiteStore
) -> None:
    process = await start(supervisor, call, "sleep 60")
    assert "pinned until 2026-11-01 14:00 UTC" in await call(tool, action="pin", id=process, hours=2)
    assert "from 0 to 24" in await call(tool, action="pin", id=process, hours=25)
    await call(tool, action="pin", id=process)
    pinned = (await store.process(OWNER, process)).pinned_until
    assert pinned == store.now() + timedelta(hours=24)
    await call(tool, action="pin", id=process, hours=0)
    assert (await store.process(OWNER, process)).pinned_until is None


async def test_writing_needs_the_terminal_right_because_it_may_be_a_shell(
    tool: ProcessTool, call: Caller, supervisor: Supervisor, tmp_path: Path
) -> None:
    shell = await supervisor.start(OWNER, call.session.id, ["sh"], stdin=True)
    limited, made = call.with_rights("process"), tmp_path / "made"
    answer = await limited(tool, action="write", id=shell.id, text=f"touch {made}\nexit\n")
    assert "needs a key with the tool `terminal`" in answer
    assert "running" in await limited(tool, action="poll", id=shell.id)
    assert await call(tool, action="write", id=shell.id, text="exit\n") == "[Written.]"
    await supervisor.wait(OWNER, shell.id, 20)
    assert not made.exists()


@pytest.mark.parametrize("action", ["poll", "log", "wait", "write", "stop", "pin"])
async def test_a_process_of_another_conversation_is_like_one_that_is_not_there(
    tool: ProcessTool, call: Caller, supervisor: Supervisor, store: SQLiteStore, joined: Joined, action: str
) -> None:
    other = await store.open_session(OWNER, Address(key="cli:other"), (await joined()).id)
    process = await start(supervisor, call.of(other), "sleep 60")
    told = await call(tool, action=action, id=process, text="x")
    nobody = await call(tool, action=action, id="proc_0", text="x")
    assert told == nobody.replace("proc_0", process)
    assert "no background process" in await call(tool, action="list")
    assert not (await supervisor.seen(await store.process(OWNER, process))).ended


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ("{}", "needs action"),
        ('{"action": "dance"}', "there is no action 'dance'"),
        ('{"action": "poll"}', "needs id"),
        ('{"action": "poll", "id": ["x"]}', "id must be a text"),
    ],
)
async def test_bad_arguments_are_told_to_the_model(
    tool: ProcessTool, call: Caller, raw: str, told: str
) -> None:
    assert told in await call(tool, raw)
