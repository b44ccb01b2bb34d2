"""Reads what is known of background processes on this machine (their state, what they say), and feeds them.

It changes nothing in the store, so one-shot commands may use it. What it tells is true even while no node
looks after a process.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from ..domain.processes import Process
from ..errors import Conflict
from ..platforms import identity
from ..store.base import Store
from .process_files import LogPart, ProcessFiles
from .process_looks import as_seen, is_here

POLL_SECONDS = 0.05


class ProcessReader:
    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory

    async def seen(self, process: Process) -> Process:
        """The process as it is right now, whoever has or has not noted it yet. Changes nothing."""
        return await asyncio.to_thread(as_seen, process, self._directory, self._store.now())

    async def wait(self, owner: str | None, process_id: str, timeout: float | None = None) -> Process:
        """Wait until the command itself has ended, or time is up; returns the process as it is then."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            process = await self.seen(await self._store.process(owner, process_id))
            if process.finished or (until is not None and time.monotonic() >= until):
                return process
            await asyncio.sleep(POLL_SECONDS)

    async def log(
        self, owner: str | None, process_id: str, *, after: int = 0, tail: int | None = None
    ) -> LogPart:
        """What it has said from byte `after` on; only the last `tail` lines."""
        files = await self._files(owner, process_id)
        return await asyncio.to_thread(lambda: files.log(after=after, tail=tail))

    async def write(self, owner: str | None, process_id: str, text: str) -> None:
        """Give it this as input. Conflict if it has ended, takes none, or does not read."""
        files = await self._files(owner, process_id)
        if (await self.seen(await self._store.process(owner, process_id))).finished:
            raise Conflict(f"process {process_id} has ended; nobody would read it")
        await asyncio.to_thread(files.write, text)

    async def _files(self, owner: str | None, process_id: str) -> ProcessFiles:
        process = await self._store.process(owner, process_id)
        if process.watched:
            raise Conflict(f"process {process_id} was started elsewhere; holdfast neither hears nor feeds it")
        if not is_here(process, identity()):
            raise Conflict(f"process {process_id} runs on {process.host}; what it says is kept there")
        return ProcessFiles(self._directory, process_id)
