"""Runs one shell command to its end, within a timeout, and ends everything it started.

The command runs in its own session. The beginning and the end of its output are kept. On timeout or
cancellation everything it started is ended: processes in its session, with its mark, or descended from it.
The shell is a subreaper and adopts orphans, so a process that detached itself and cleared its environment is
still a descendant; survivors are counted. After a normal end, processes left running in its session are ended
too: what should continue must be a background process, which is visible. Processes that detached themselves
on purpose, as daemons do, are left alone and reported.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...domain.api_keys import TERMINAL, check_right
from ...domain.ids import new_id
from ...domain.processes import Process, check_command
from ...errors import BadInput
from ...os_support import Running, before_exec, environment_of, running_processes, send_signal
from ..processes.probe import MARK, add_descendants
from ..processes.supervisor import Supervisor
from .toolbox import LONGEST_OUTPUT, Arguments, ToolCall, function, shortened

SHELL = "/bin/sh"
GRACE_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL."""
LAST_WORDS_SECONDS = 0.5
"""How long the last output may take to arrive after the command has ended."""
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    output: str
    exit_code: int
    """Negative: ended by that signal, or about to be."""
    timed_out: bool = False
    left_behind: int = 0
    """How many processes it had left running; they were ended."""
    detached: int = 0
    """How many have left its session and still run."""
    surviving: int = 0
    """How many could not be ended after the timeout."""


class Output:
    """A command's output: all of it, or its beginning and its end."""

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
    """Run the command. Raises OSError if it cannot be started. On cancellation everything it started is
    ended."""
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
            preexec_fn=before_exec(),
        )
    except BaseException as error:
        os.close(read_end)
        if isinstance(error, asyncio.CancelledError):  # it may have begun
            _Tree(None, mark).signal(signal.SIGKILL)
        raise
    finally:
        os.close(write_end)
    output = Output(limit)
    pipe = _OutputPipe(read_end, output)
    timed_out, surviving = False, 0
    tree = _Tree(process.pid, mark)
    try:
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            timed_out = True
            await _end_all(tree)
            with suppress(TimeoutError):  # it may be hung in the kernel, or belong to another user (sudo)
                async with asyncio.timeout(GRACE_SECONDS):
                    await process.wait()
            surviving = len(await asyncio.to_thread(tree.living))
        left = detached = 0
        if not timed_out:
            left = await asyncio.to_thread(_Tree(process.pid).signal, signal.SIGKILL)
            detached = len(await asyncio.to_thread(_Tree(process.pid, mark).living))
        await pipe.wait_closed(LAST_WORDS_SECONDS)
    except BaseException:
        tree.signal(signal.SIGKILL)
        raise
    finally:
        pipe.close()
    code = process.returncode if process.returncode is not None else -signal.SIGKILL
    return Finished(output.text(), code, timed_out, left, detached, surviving)


class _OutputPipe:
    """Reads a command's output until all its writers have closed it.

    Not by `connect_read_pipe`: uvloop closes a pipe's descriptor twice, and the second close may be that of a
    socket or file which another thread has opened meanwhile.
    """

    def __init__(self, read_end: int, output: Output) -> None:
        self._read_end = read_end
        self._output = output
        self._closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(read_end, False)
        self._loop.add_reader(read_end, self._read)

    def _read(self) -> None:
        try:
            said = os.read(self._read_end, 65536)
        except BlockingIOError:
            return
        if said:
            self._output.add(said)
        else:
            self.close()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until all writers have closed it, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)


async def _end_all(tree: _Tree) -> None:
    """SIGTERM, and after the grace period SIGKILL, to everything that the command has started."""
    await asyncio.to_thread(tree.signal, signal.SIGTERM)
    waited = 0.0
    while waited < GRACE_SECONDS:
        if not await asyncio.to_thread(tree.living):
            break
        await asyncio.sleep(POLL_SECONDS)
        waited += POLL_SECONDS
    await asyncio.to_thread(tree.signal, signal.SIGKILL)


class _Tree:
    """The processes a command has started: its session, those with its mark, and their descendants. A process
    found once stays known, by pid and start time, when its parents are gone."""

    def __init__(self, leader: int | None, mark: str | None = None) -> None:
        """Without a mark: only the command's session. Without a leader: only what has the mark."""
        self._leader = leader
        self._mark = None if mark is None else f"{MARK}={mark}".encode()
        self._known: set[tuple[int, str]] = set()

    def living(self) -> list[Running]:
        """The processes that run now."""
        table = running_processes()
        found = {one.pid: one for one in table.values() if self._is_ours(one)}
        if self._mark is not None:
            add_descendants(found, table)
        found.pop(os.getpid(), None)
        self._known.update((one.pid, one.start) for one in found.values())
        return [one for one in found.values() if not one.zombie]

    def signal(self, number: signal.Signals) -> int:
        """Signal all of them; returns how many were reached. Repeats, to find what they start meanwhile."""
        reached: set[tuple[int, str]] = set()
        for _ in range(5):
            new = [one for one in self.living() if (one.pid, one.start) not in reached]
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

    def _is_ours(self, one: Running) -> bool:
        if self._leader in (one.session, one.group) or (one.pid, one.start) in self._known:
            return True
        return self._mark is not None and self._mark in environment_of(one.pid).split(b"\0")


SECONDS = 120.0
MOST_SECONDS = 600.0
FIRST_LOOK_SECONDS = 0.3
"""How long a background process is watched for an immediate end."""


CALL_ID = "HOLDFAST_TOOL_CALL_ID"
"""The variable that has the call's idempotency key, in a command's environment."""


class Terminal:
    name = TERMINAL
    idempotent = False

    def __init__(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        self._supervisor = supervisor
        self._environment = environment

    @property
    def schema(self) -> dict[str, Any]:
        return function(
            self.name,
            "Run a shell command and get its output and exit code. Each call is a new shell without input. "
            "What should keep running, such as a server or a long build, needs background=true; the result "
            "is a process id for the process tool.",
            ("command",),
            command={"type": "string", "description": "For /bin/sh."},
            background={"type": "boolean", "description": "Start it and return at once.", "default": False},
            cwd={"type": "string", "description": "The directory to run it in."},
            timeout_seconds={
                "type": "number",
                "description": f"Foreground only; {SECONDS:g} unless given, {MOST_SECONDS:g} at most.",
            },
        )

    async def run(self, call: ToolCall) -> str:
        check_right(call.rights, TERMINAL, "running a command")
        arguments = Arguments(call)
        command = check_command(arguments.text("command"))
        cwd = directory(arguments.maybe_text("cwd"))
        if arguments.flag("background"):
            return await self._start(call, command, cwd)
        seconds = arguments.number("timeout_seconds", SECONDS, 0.1, MOST_SECONDS)
        return result_text(
            await run_command(command, cwd, self._environment_of(call), seconds, LONGEST_OUTPUT), seconds
        )

    def _environment_of(self, call: ToolCall) -> Mapping[str, str]:
        return {**self._environment, CALL_ID: call.key}

    async def _start(self, call: ToolCall, command: str, cwd: str) -> str:
        started = await self._supervisor.start(
            call.owner, call.session_id, command, cwd, stdin=True, variables={CALL_ID: call.key}
        )
        seen = await self._supervisor.wait(call.owner, started.id, FIRST_LOOK_SECONDS)
        if not seen.finished:
            return f"[Started in the background as {started.id}.]"
        said = (await self._supervisor.log(call.owner, started.id)).text
        return f"{shortened(said)}\n[{started.id} has ended already: {ending(seen)}]".lstrip()


def directory(cwd: str | None) -> str:
    """The directory to run in: `cwd`, else the server's."""
    place = os.path.abspath(os.path.expanduser(cwd)) if cwd else os.getcwd()
    if not os.path.isdir(place):
        raise BadInput(f"there is no directory {place!r}")
    return place


def result_text(finished: Finished, seconds: float) -> str:
    """The result of a foreground command, as text for the model."""
    said = finished.output.rstrip("\n") or "[no output]"
    if finished.timed_out:
        why = f"it ran longer than {seconds:g} s and was stopped; what may take longer needs background=true"
        if finished.surviving:
            why += f". {finished.surviving} of the processes it started could not be stopped and still run"
        return f"{said}\n[{why}]"
    lines = [said, f"[{code(finished.exit_code)}]"]
    if finished.left_behind:
        lines.append(
            f"[Processes it had left running have been stopped ({finished.left_behind}); what should keep "
            "running needs background=true]"
        )
    if finished.detached:
        lines.append(
            f"[{finished.detached} of the processes it started have detached themselves and still run; "
            "holdfast does not supervise them]"
        )
    return "\n".join(lines)


def code(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else f"ended by signal {-exit_code}"


def ending(process: Process) -> str:
    return process.state.value if process.exit_code is None else code(process.exit_code)
