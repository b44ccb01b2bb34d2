"""`holdfast launch`: the program in its place, and the server that is started for it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import shared_server
from holdfast.cli.launch import run_program
from holdfast.settings import load

UNTIL_USR1 = 'trap "exit 7" USR1; : >"$0"; n=0; while [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done; exit 1'


async def test_a_signal_before_asyncio_returns_the_started_program_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    ours: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: ours.append(number))
    start = asyncio.create_subprocess_exec

    async def start_slowly(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        while not ready.exists():
            time.sleep(0.01)  # the loop is held up, as on a loaded machine
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0.01)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    try:
        code = await run_program(["sh", "-c", UNTIL_USR1, str(ready)], dict(os.environ))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (code, ours) == (7, [])


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "], ids=["stops", "does not stop"])
async def test_a_launch_that_is_interrupted_while_its_server_starts_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    ready, is_started = tmp_path / "ready", asyncio.Event()

    def spawn(*_: object) -> subprocess.Popen[bytes]:
        script = f'{trap}: >"$0"; n=0; while [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done'
        started.append(subprocess.Popen(["sh", "-c", script, str(ready)], start_new_session=True))
        while not ready.exists():
            time.sleep(0.01)
        is_started.set()
        return started[0]

    monkeypatch.setattr(shared_server, "_spawn", spawn)
    monkeypatch.setattr(shared_server, "LEAVE_SECONDS", 0.2)

    async def launch() -> None:
        settings = load(environment={"HOLDFAST_HOME": str(tmp_path)})
        async with shared_server.server_in_use(settings, tmp_path, {}):
            raise AssertionError("it never listens")

    running = asyncio.create_task(launch())
    await is_started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    try:
        assert started[0].poll() is not None
    finally:
        started[0].kill()
        started[0].wait()
