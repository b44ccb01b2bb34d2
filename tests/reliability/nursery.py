"""Forks writing processes by the hundred from one process that has imported everything (`forkserver.py`).

The nursery itself never opens a store. A child is a separate process with its own pipe. When it is killed,
`Child.wait` returns after the kernel has released everything it held.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from .forkserver import fork_server
from .records import Record, read_record
from .scribe import Task, run_task


class Child:
    """A writing process, seen from its parent."""

    def __init__(self, pid: int, pipe: int, line: socket.socket) -> None:
        self.pid = pid
        self._pipe = pipe
        self._line = line
        self._rest = b""
        self._lines: deque[bytes] = deque()

    def records(self, seconds: float | None = None) -> Iterator[Record]:
        """What it tells, until it has ended or the time is up. May be left and taken up again."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            while self._lines:
                yield read_record(self._lines.popleft())
            left = None if until is None else until - time.monotonic()
            if left is not None and left < 0:
                return
            if not select.select([self._pipe], [], [], left)[0]:
                return
            data = os.read(self._pipe, 65536)
            if not data:
                assert not self._rest, f"a torn line: {self._rest!r}"
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(lines)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit status, once it is completely gone (minus the signal's number if it was killed)."""
        self._line.send(f"wait {self.pid}".encode())
        status = int(self._line.recv(64))
        os.close(self._pipe)
        return status


class Nursery:
    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def start(self, task: Task) -> Child:
        reading, writing = os.pipe()
        socket.send_fds(self._line, [b"start " + msgspec.json.encode(task)], [writing])
        os.close(writing)
        return Child(int(self._line.recv(64)), reading, self._line)


@contextmanager
def nursery() -> Iterator[Nursery]:
    """A warm process for as long as the block lasts. Breakages are read from the environment now."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = fork_server().start(serve, theirs)
    theirs.close()
    try:
        yield Nursery(ours)
    finally:
        ours.close()
        fork_server().wait(pid)


def serve(line: socket.socket) -> None:
    """The nursery's own side: fork and wait, as told, until the parent is gone."""
    while True:
        request, pipes, _, _ = socket.recv_fds(line, 1 << 20, 1)
        if not request:
            return
        verb, _, rest = request.partition(b" ")
        if verb == b"wait":
            _, status = os.waitpid(int(rest), 0)
            line.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            status = 1
            try:
                run_task(msgspec.json.decode(rest, type=Task), pipes[0])
                status = 0
            finally:
                os._exit(status)
        os.close(pipes[0])
        line.send(str(pid).encode())
