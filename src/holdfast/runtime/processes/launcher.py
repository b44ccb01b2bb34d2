"""Starts commands under shims, and registers processes that were started elsewhere.

A row is written before every start, so no process ever runs without one. If this node dies half-way, the next
supervisor finds the row, and beside it the shim's record of the outcome.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...domain.ids import new_id, storable
from ...domain.nodes import Identity
from ...domain.processes import LogPart, Process, ProcessState, check_command, log_name
from ...errors import BadInput, Conflict
from ...os_support import described, identity, own_umask, owner_of, running_processes, start_of
from ...store.store import Store
from .files import ProcessFiles, ShimIdentity
from .probe import MARK, as_seen, is_here, started_for_another

log = logging.getLogger(__name__)

SHIM = str(Path(__file__).with_name("shim.py"))
START_SECONDS = 30.0
"""How long a shim may take to begin; after that the start is given up."""

Command = str | Sequence[str]


class Launcher:
    def __init__(
        self,
        store: Store,
        own_node: Callable[[], str],
        directory: Path,
        environment: Mapping[str, str] | None,
        log_bytes: int,
    ) -> None:
        self._store = store
        self._own_node = own_node
        self._directory = directory
        self._environment = environment
        self._log_bytes = log_bytes
        self.starting: set[str] = set()
        """Ids of processes that this node is starting now."""

    async def start(
        self,
        owner: str,
        session_id: str,
        command: Command,
        cwd: str | Path | None = None,
        *,
        stdin: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a background command in an open session; a string is run by the shell.

        The row is written before anything is started. `stdin`: input can be written; else stdin is empty.
        `variables` are added to its environment.
        """
        text, arguments = _command(command)
        place = await asyncio.to_thread(_directory, cwd)
        new = await self._store.add_process(self._new(owner, session_id, text, storable(place)))
        self.starting.add(new.id)
        try:
            await asyncio.shield(self._launch(new, place, arguments, stdin, variables or {}))
        finally:
            self.starting.discard(new.id)
        return await self._store.process(owner, new.id)

    def _new(self, owner: str, session_id: str, command: str, cwd: str) -> Process:
        here = replace(identity(), pid=0, pid_start="")
        return Process(
            id=new_id("proc"),
            owner=owner,
            conversation_id="",
            session_id=session_id,
            identity=here,
            command=command,
            cwd=cwd,
            state=ProcessState.STARTING,
            started_at=self._store.now(),
            supervisor=self._own_node(),
        )

    async def _launch(
        self,
        new: Process,
        cwd: str,
        arguments: Sequence[bytes],
        stdin: bool,
        variables: Mapping[str, str],
    ) -> None:
        files = ProcessFiles(self._directory, new.id)
        kind, *words = arguments
        spec = [kind, os.fsencode(cwd), b"pipe" if stdin else b"", b"%d" % self._log_bytes, *words, b"end"]
        given = os.environ if self._environment is None else self._environment
        environment = {**given, **variables, MARK: new.id}

        def run() -> None:
            files.make()
            subprocess.run(
                [sys.executable, "-I", "-S", SHIM, str(files.directory)],
                input=b"\0".join(spec),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                umask=own_umask(),
                timeout=START_SECONDS,
                check=False,
            )

        trouble = "its shim did not start"
        try:
            await asyncio.to_thread(run)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # also: no thread to start it in
            trouble = f"its shim did not start: {error}"
        begun = files.begun()
        if begun is None and await asyncio.to_thread(files.abandon):
            log.error("%s could not be started: %s", log_name(new), trouble)
            await self._store.end_process(new.id, ProcessState.LOST, why=storable(trouble)[:500])
            return
        await self.note_start(new, files.begun())
        log.info("%s started", log_name(new))

    async def note_start(self, process: Process, begun: ShimIdentity | None) -> None:
        """Store the identity that its shim has recorded."""
        if begun is not None and begun.pid_start:
            who = replace(process.identity, pid=begun.pid, pid_start=begun.pid_start)
            await self._store.process_started(
                process.id, who, shim_pid=begun.shim_pid, shim_start=begun.shim_start
            )

    async def watch(self, owner: str, session_id: str, pid: int, *, may_stop: bool = True) -> Process:
        """Supervise a process of this machine and user that was started elsewhere. It has no log, and its
        exit code is not known. Idempotent within a session.

        `may_stop`: it may be stopped, by a person or with its session.
        """
        who = await asyncio.to_thread(self._identify, pid)
        nodes = await self._store.nodes()
        if any(who.pid == node.identity.pid and who.pid_ns == node.identity.pid_ns for node in nodes):
            raise BadInput(f"process {pid} is holdfast itself")
        here = await self._store.unended_processes(identity())
        if await asyncio.to_thread(started_for_another, pid, owner, here):
            raise BadInput(f"process {pid} was not started by this owner; it cannot be watched from here")
        page = await self._store.processes(owner, session_id=session_id, running=True)
        for known in page.items:
            if known.watched and known.identity == who:
                return known
        command, cwd = await asyncio.to_thread(described, pid)
        new = replace(
            self._new(owner, session_id, storable(command) or f"process {pid}", storable(cwd)),
            identity=who,
            watched=True,
            may_stop=may_stop,
        )
        added = await self._store.add_process(new)
        await self._store.process_started(added.id, who)
        return await self._store.process(owner, added.id)

    def _identify(self, pid: int) -> Identity:
        start = start_of(pid) if 0 < pid < 2**31 else None
        if start is None:
            raise BadInput(f"no process {pid} is running on this machine")
        if owner_of(pid) != os.getuid():
            raise BadInput(f"process {pid} belongs to another user; it cannot be supervised from here")
        table = running_processes()
        above = table.get(os.getpid())
        while above is not None:
            if above.pid == pid:
                raise BadInput(f"process {pid} is holdfast itself, or what started it")
            above = table.get(above.parent) if above.parent != above.pid else None
        return replace(identity(), pid=pid, pid_start=start)


def _directory(cwd: str | Path | None) -> str:
    """The directory to start in: `cwd`, else this program's."""
    place = os.path.abspath(os.getcwd() if cwd is None else cwd)
    if not os.path.isdir(place):
        raise BadInput(f"there is no directory {storable(place)!r} to start it in")
    return place


def _command(command: Command) -> tuple[str, list[bytes]]:
    """A command as display text and as the shim's arguments: a string for the shell, or a list to execute."""
    if isinstance(command, str):
        return check_command(command), [b"shell", command.encode()]
    words = list(command)
    if not words or not all(isinstance(word, str) for word in words):
        raise BadInput("a command is a shell string or a list of arguments")
    return check_command(shlex.join(words)), [b"exec", *(word.encode() for word in words)]


POLL_SECONDS = 0.05


class ProcessReader:
    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory

    async def seen(self, process: Process) -> Process:
        """The process as it is right now, even if its row is not updated yet. Changes nothing."""
        return await asyncio.to_thread(as_seen, process, self._directory, self._store.now())

    async def wait(self, owner: str | None, process_id: str, timeout: float | None = None) -> Process:
        """Wait until the command itself has ended, or for the timeout; returns the process as it is then."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            process = await self.seen(await self._store.process(owner, process_id))
            if process.finished or (until is not None and time.monotonic() >= until):
                return process
            await asyncio.sleep(POLL_SECONDS)

    async def log(
        self, owner: str | None, process_id: str, *, after: int = 0, tail: int | None = None
    ) -> LogPart:
        """Its output from byte `after` on, or only the last `tail` lines."""
        files = await self._files(owner, process_id)
        return await asyncio.to_thread(lambda: files.log(after=after, tail=tail))

    async def write(self, owner: str | None, process_id: str, text: str) -> None:
        """Write this to its stdin. Conflict if it has ended, has no stdin, or does not read."""
        files = await self._files(owner, process_id)
        if (await self.seen(await self._store.process(owner, process_id))).finished:
            raise Conflict(f"process {process_id} has ended; it reads no input")
        await asyncio.to_thread(files.write, text)

    async def _files(self, owner: str | None, process_id: str) -> ProcessFiles:
        process = await self._store.process(owner, process_id)
        if process.watched:
            raise Conflict(
                f"process {process_id} was started elsewhere; holdfast has no access to its input and output"
            )
        if not is_here(process, identity()):
            raise Conflict(f"process {process_id} runs on {process.host}; its output is kept there")
        return ProcessFiles(self._directory, process_id)
