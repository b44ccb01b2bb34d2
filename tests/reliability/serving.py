"""`holdfast serve` processes by the hundred, to be killed.

A process that has imported everything forks them (`forkserver.py`), so that a restart costs a tenth of a new
interpreter. Each is then the command itself: its own arguments, environment and pipe. `cold` starts the
installed program instead.

A port is reserved as long as it is needed: between a kill and a restart no other test and no outgoing
connection gets it (a client's own would then reach itself).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec

from .forkserver import fork_server
from .mutants import break_on_purpose

READY = b"holdfast answers at"
API_KEY = "a-key-for-the-crash-suites"


class Program(msgspec.Struct, frozen=True):
    arguments: list[str]
    environment: dict[str, str]


class Waits(Protocol):
    def __call__(self, pid: int) -> int: ...


class Server:
    """A `holdfast serve` process, seen from its parent."""

    def __init__(self, pid: int, pipe: int, wait: Waits) -> None:
        self.pid = pid
        self._pipe = pipe
        self._wait = wait
        self._printed = b""

    async def ready(self) -> bool:
        """Wait until it listens. False if it ended before."""
        return await asyncio.to_thread(self._until_ready)

    def _until_ready(self) -> bool:
        while READY not in self._printed:
            piece = os.read(self._pipe, 65536)
            if not piece:
                return False
            self._printed += piece
        return True

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """Its exit status, once the kernel has let go of everything it held."""
        status = await asyncio.to_thread(self._wait, self.pid)
        os.close(self._pipe)
        return status


class Servers:
    """Starts servers on one home."""

    def __init__(self, line: socket.socket, home: Path, model_url: str) -> None:
        self._line = line
        self.home = home
        self.database = home / "holdfast.db"
        self.log = home.parent / "servers.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self.environment = {
            **kept,
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_API_KEY": API_KEY,
            "HOLDFAST_MODEL__KIND": "openai",
            "HOLDFAST_MODEL__BASE_URL": model_url,
            "HOLDFAST_MODEL__CONTEXT_WINDOW": "1000000",
            "HOLDFAST_LOG__LEVEL": "warning",
        }

    def start(
        self,
        port: int,
        checkpoint_seconds: float,
        *,
        cold: bool = False,
        tracer: Sequence[str] = (),
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Server:
        """`tracer`: the command that runs it, for a cold start; it must exec the server in its own process.
        `more`: what this one alone has in its environment."""
        arguments = ["serve", "--port", str(port)]
        own = {**self.environment, "HOLDFAST_SERVER__CHECKPOINT_SECONDS": str(checkpoint_seconds), **more}
        reading, writing = os.pipe()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if cold:
                command = [*tracer, str(Path(sys.executable).with_name("holdfast")), *arguments]
                process = subprocess.Popen(command, env=own, stdout=writing, stderr=log)
                return Server(process.pid, reading, lambda pid: process.wait())
            program = msgspec.json.encode(Program(arguments, own))
            socket.send_fds(self._line, [b"start " + program], [writing, log])
            return Server(int(self._line.recv(64)), reading, self._wait)
        finally:
            os.close(writing)
            os.close(log)

    def _wait(self, pid: int) -> int:
        self._line.send(f"wait {pid}".encode())
        return int(self._line.recv(64))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command in the same home, to its end."""
        program = str(Path(sys.executable).with_name("holdfast"))
        return subprocess.run(
            [program, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@contextmanager
def servers(home: Path, model_url: str) -> Iterator[Servers]:
    """A warm process for as long as the block lasts; what it started ends with it. Breakages are read from
    the environment now."""
    home.mkdir(mode=0o700)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = fork_server().start(fork_as_told, theirs)
    theirs.close()
    try:
        yield Servers(ours, home, model_url)
    finally:
        ours.close()
        fork_server().wait(pid)


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Ports that only servers get: they are bound here, without listening, and may be bound once more."""
    with ExitStack() as sockets:
        reserved = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in reserved:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in reserved]


def _become(program: Program, out: int, err: int) -> None:
    """In the forked child: from here on it is the command."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(program.environment)
    sys.argv = ["holdfast", *program.arguments]
    from holdfast.__main__ import main

    main()


def fork_as_told(line: socket.socket) -> None:
    """The warm process's own side: fork and wait, until the parent is gone; then end what still runs."""
    break_on_purpose()
    living: set[int] = set()
    while True:
        request, pipes, _, _ = socket.recv_fds(line, 1 << 20, 2)
        if not request:
            break
        verb, _, rest = request.partition(b" ")
        if verb == b"wait":
            _, status = os.waitpid(int(rest), 0)
            living.discard(int(rest))
            line.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            code = 1
            try:
                _become(msgspec.json.decode(rest, type=Program), *pipes)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        living.add(pid)
        for pipe in pipes:
            os.close(pipe)
        line.send(str(pid).encode())
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
