"""`run_program`: a program in the place of `holdfast launch`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.launch import run_program

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
