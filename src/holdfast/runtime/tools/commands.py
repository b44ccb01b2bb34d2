"""Runs one shell command to its end, within a time, and leaves nothing of it behind.

The command has a session of its own. Of what it says the beginning and the end are kept. When its time is up,
or nobody waits for it any more, everything it has started is ended. When it has ended by itself, what it left
running in its session is ended too: what should go on is a background process, which everybody can see. What
has detached itself on purpose, as daemons do, is left alone and told of.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from ...domain.ids import new_id
from ...platforms import Running, environment_of, own_umask, running_processes, send_signal
from ..process_looks import MARK

SHELL = "/bin/sh"
GRACE_SECONDS = 2.0
"""How long after SIGTERM comes SIGKILL."""
LAST_WORDS_SECONDS = 0.5
"""How long what a command has said may take to arrive once it has ended."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    output: str
    exit_code: int
    """Negative: ended by that signal."""
    timed_out: bool = False
    left_behind: int = 0
    """How many processes it had left running; they have been ended."""
    detached: int = 0
    """How many have left its session, and run on."""


class Output:
    """What a command says: all of it, or its beginning and its end."""

    def __init__(self, limit: int) -> None:
        self._head_limit, self._tail_limit = limit // 3, limit - limit // 3
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, said: bytes) -> None:
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += said[:room]
            said = said[room:]
        self._tail += said
        if len(self._tail) > 2 * self._tail_limit:
            self._shorten()

    def _shorten(self) -> None:
        excess = max(0, len(self._tail) - self._tail_limit)
        del self._tail[:excess]
        self._dropped += excess

    def text(self) -> str:
        self._shorten()
        gap = f"\n[… {self._dropped:,} bytes left out …]\n".encode() if self._dropped else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode(errors="replace")


async def run_command(
    command: str, cwd: str, environment: Mapping[str, str], seconds: float, limit: int
) -> Finished:
    """Run it; OSError if it cannot be started. If the task is cancelled, everything it started is ended."""
    mark = new_id("proc")
    read_end, write_end = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            SHELL,
            "-c",
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            cwd=cwd,
            env={**environment, MARK: mark},
            start_new_session=True,
            umask=own_umask(),
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    output = Output(limit)
    listening = asyncio.create_task(_listen(read_end, output))
    timed_out = False
    try:
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            timed_out = True
            await _end_all(process.pid, mark)
            await process.wait()
        left = await asyncio.to_thread(_signal_all, process.pid, mark if timed_out else None, signal.SIGKILL)
        detached = 0 if timed_out else len(await asyncio.to_thread(_started_by, process.pid, mark))
        await asyncio.wait({listening}, timeout=LAST_WORDS_SECONDS)
    except BaseException:
        _signal_all(process.pid, mark, signal.SIGKILL)
        raise
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert process.returncode is not None
    return Finished(output.text(), process.returncode, timed_out, 0 if timed_out else left, detached)


async def _listen(read_end: int, output: Output) -> None:
    """Take down what is said until nobody can say anything any more."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
    )
    try:
        while said := await reader.read(65536):
            output.add(said)
    finally:
        transport.close()


async def _end_all(leader: int, mark: str) -> None:
    """SIGTERM, and after the grace SIGKILL, to everything that the command has started."""
    await asyncio.to_thread(_signal_all, leader, mark, signal.SIGTERM)
    waited = 0.0
    while waited < GRACE_SECONDS:
        if not await asyncio.to_thread(_started_by, leader, mark):
            break
        await asyncio.sleep(POLL_SECONDS)
        waited += POLL_SECONDS
    await asyncio.to_thread(_signal_all, leader, mark, signal.SIGKILL)


def _signal_all(leader: int, mark: str | None, number: signal.Signals) -> int:
    """Returns how many it reached. What they start meanwhile is found by looking again."""
    reached: set[tuple[int, str]] = set()
    for _ in range(5):
        new = [one for one in _started_by(leader, mark) if (one.pid, one.start) not in reached]
        for one in new:
            try:
                send_signal(one.pid, one.start, number)
            except PermissionError:
                continue
            finally:
                reached.add((one.pid, one.start))
        if not new:
            break
    return len(reached)


def _started_by(leader: int, mark: str | None) -> list[Running]:
    """Everything that runs in the command's session or carries this mark, wherever it has gone."""

    def is_ours(one: Running) -> bool:
        if leader in (one.session, one.group):
            return True
        return mark is not None and f"{MARK}={mark}".encode() in environment_of(one.pid).split(b"\0")

    return [
        one
        for one in running_processes().values()
        if not one.zombie and one.pid != os.getpid() and is_ours(one)
    ]
