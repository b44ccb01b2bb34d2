"""Another program on a server's store, in a separate process, until its standard input is closed.

    python -m tests.reliability.neighbour KIND URL

Prints a line once it is running. It acts as programs that do not know the server's settings:

- `library`: a program without a model, with the server's reset policies; it sweeps twenty times a second
- `impatient`: a program without a model that would reset after a tenth of a second, and considers a node that
  sent no heartbeat for a second hung
- `chat`: starts and ends repeatedly, each time with only the local model
- `commands`: one command after the other
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

from tests.reliability.mutants import break_on_purpose

IDLE_MINUTES = 0.03
SERVER = {"reset": {"mode": "idle", "idle_minutes": IDLE_MINUTES}, "memory": {"min_messages": 2}}
QUICK = {"sweep_seconds": 0.05}
IMPATIENT = {"heartbeat_seconds": 0.2, "stale_seconds": 1.0, "sweep_seconds": 0.05}


async def until_told(gone: asyncio.Event) -> None:
    await asyncio.to_thread(sys.stdin.read)
    gone.set()


async def library(url: str, gone: asyncio.Event, settings: dict[str, Any]) -> None:
    import holdfast

    async with holdfast.open(url, settings=settings) as hf:
        session = await hf.session(f"library:{os.getpid()}")
        number = 0
        print("ready", flush=True)
        while not gone.is_set():
            number += 1
            async with session.turn(f"note {number}") as turn:
                await turn.append("noted")
            with suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), 0.1)


async def chat(url: str, gone: asyncio.Event) -> None:
    from holdfast.app import Holdfast, effective_settings
    from holdfast.domain.nodes import NodeKind
    from holdfast.models.local import LocalModel

    while not gone.is_set():
        settings = effective_settings(url, {"lease": QUICK})
        async with Holdfast(settings, kind=NodeKind.CLI, catch_signals=False, model=LocalModel()):
            print("ready", flush=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), 0.2)


async def commands(url: str, gone: asyncio.Event) -> None:
    while not gone.is_set():
        for words in (("sweep",), ("sessions", "list"), ("nodes",), ("memories", "list")):
            command = [sys.executable, "-m", "holdfast", *words, "--store", url, "--owner", "*"]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
            if done.returncode not in (0,):
                print(f"{' '.join(words)} failed: {done.stdout} {done.stderr}", flush=True)
            print("ready", flush=True)
            if gone.is_set():
                return


async def main(kind: str, url: str) -> None:
    gone = asyncio.Event()
    telling = asyncio.create_task(until_told(gone))
    if kind == "library":
        await library(url, gone, {**SERVER, "lease": QUICK})
    elif kind == "impatient":
        reset = {"mode": "idle", "idle_minutes": 0.0017}
        await library(url, gone, {"reset": reset, "lease": IMPATIENT, "memory": {"flush": False}})
    elif kind == "chat":
        await chat(url, gone)
    else:
        await commands(url, gone)
    await telling


if __name__ == "__main__":
    break_on_purpose()
    asyncio.run(main(sys.argv[1], sys.argv[2]))
