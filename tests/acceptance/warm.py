"""The `holdfast` command as a process of its own that need not import anything: forked from a warm one.

To start an interpreter and import holdfast takes most of the time of a short command. A warm process has done
both and forks for each command; the child gets the arguments, environment, directory and pipes of the test,
calls the entry point of the installed script, and exits as an interpreter does. It has a pid, takes signals,
and holds locks like any other process.

TESTS_RETRY_AT_ONCE=1 in its environment: turns of a dead server are retried at once, not after seconds.

It is not the same process in three respects: `/proc/PID/cmdline` and `environ` are those of the warm one; its
parent is the warm one; and what an interpreter does before `main` was done under another environment. Tests
of any of these start the installed command itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from holdfast.domain import recovery

ROOT = Path(__file__).parents[2]
PRELOADED = (
    "holdfast.__main__",
    "holdfast.cli.groups",
    *(f"holdfast.cli.{name}" for name in ("logs", "run", "serve", "sessions", "session_actions")),
    "holdfast.cli.processes",
    "holdfast.dashboard.routes",
    "holdfast.server.server",
    "holdfast.store.postgres.engine",
    "holdfast.store.sqlite.engine",
    *(f"holdfast.models.{name}" for name in ("choose", "connection", "local", "scripted", "upstream")),
    *("encodings.idna", "uvicorn.lifespan.off", "uvicorn.loops.uvloop"),
    *("uvicorn.protocols.http.httptools_impl", "uvicorn.protocols.websockets.websockets_sansio_impl"),
)


class Forked:
    """A command under way, with what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, args: Sequence[str], stdout: int, stderr: int, line: _Line) -> None:
        self.pid = pid
        self.args = list(args)
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = os.fdopen(stdout, "rb")
        self.stderr: IO[bytes] | None = os.fdopen(stderr, "rb")
        self._line = line
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = self._line.status(self.pid)
            os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if (
            self.poll() is None
        ):  # nobody else takes its pid: the warm process keeps the status until it is asked
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """All it has printed, once it has ended and closed both."""
        until = None if timeout is None else time.monotonic() + timeout
        printed: dict[IO[bytes], bytes] = {
            pipe: b"" for pipe in (self.stdout, self.stderr) if pipe is not None
        }
        while pipes := [pipe for pipe in printed if not pipe.closed]:
            left = None if until is None else max(0.0, until - time.monotonic())
            ready, _, _ = select.select(pipes, [], [], left)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            for pipe in ready:
                piece = os.read(pipe.fileno(), 65536)
                printed[pipe] += piece
                if not piece:
                    pipe.close()
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        out, err = printed.values()
        return out, err


class _Line:
    """The way to the warm process. Tests may start commands from several threads."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours = ours
        self._lock = threading.Lock()

    def start(self, request: Mapping[str, object], files: Sequence[int]) -> int:
        with self._lock:
            socket.send_fds(self._ours, [json.dumps(request).encode()], files)
            return int(self._ours.recv(64))

    def status(self, pid: int) -> int:
        with self._lock:
            self._ours.send(json.dumps({"status": pid}).encode())
            return int(self._ours.recv(64))


@cache
def _line() -> _Line:
    """The warm process of this worker. It ends with the worker, whose side of the socket is then closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for side in (ours, theirs):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    subprocess.Popen(
        [sys.executable, "-m", "tests.acceptance.warm", str(theirs.fileno())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    return _Line(ours)


def start(
    arguments: Sequence[str], environment: Mapping[str, str], place: Path, said: bytes | None = None
) -> Forked:
    """Start `holdfast` with these arguments. `said` is what it can read; None: it has /dev/null."""
    out, to_out = os.pipe()
    err, to_err = os.pipe()
    if said is None:
        reading = os.open(os.devnull, os.O_RDONLY)
    else:
        reading, writing = os.pipe()
        threading.Thread(target=_write, args=(writing, said), daemon=True).start()
    try:
        request = {"arguments": list(arguments), "environment": dict(environment), "place": str(place)}
        pid = _line().start(request, [reading, to_out, to_err])
    finally:
        for file in (reading, to_out, to_err):
            os.close(file)
    return Forked(pid, ["holdfast", *arguments], out, err, _line())


def _write(pipe: int, said: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(pipe, "wb") as file:
        file.write(said)


# --- the warm process -------------------------------------------------------------------------------------


def serve(line: socket.socket) -> bool:
    """Fork as told until the other side is closed. Returns True in a child that is to be the command."""
    while True:
        data, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
        if not data:
            return False
        request = json.loads(data)
        if "status" in request:
            _, status = os.waitpid(request["status"], 0)
            line.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            _become(request, files)
            return True
        for file in files:
            os.close(file)
        line.send(str(pid).encode())


def _become(request: Mapping[str, object], files: Sequence[int]) -> None:
    """What the kernel and a new interpreter would have done."""
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    for file in files:
        os.close(file)
    environment, arguments = request["environment"], request["arguments"]
    assert isinstance(environment, dict) and isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    if os.environ.pop("TESTS_RETRY_AT_ONCE", ""):
        recovery.DEATH_SECONDS = (0, 0, 0, 0, 0)
    os.chdir(str(request["place"]))
    sys.argv = ["holdfast", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, standard in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        stream = _opened(standard, before.encoding, before.errors)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _opened(standard: int, encoding: str, errors: str) -> io.TextIOWrapper:
    """A standard stream as an interpreter opens it."""
    if standard == 0:
        return open(standard, encoding=encoding, errors=errors, closefd=False)
    if os.environ.get("PYTHONUNBUFFERED"):
        raw = io.FileIO(standard, "w", closefd=False)
        return io.TextIOWrapper(raw, encoding, errors, write_through=True)
    by_line = standard == 2 or os.isatty(standard)
    return open(standard, "w", 1 if by_line else -1, encoding, errors, closefd=False)


if __name__ == "__main__":
    import gc
    import importlib

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != ROOT]
    for module in PRELOADED:
        importlib.import_module(module)
    from starlette.routing import compile_path

    from holdfast.dashboard.routes import PAGES
    from holdfast.server.server import ROUTES

    for path in {*(route.path for route in ROUTES), *(page.path for page in PAGES)}:
        compile_path(path)  # `re` keeps the pattern
    assert threading.active_count() == 1, "a thread would not be there in the children"
    gc.collect()
    gc.freeze()
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        from holdfast.__main__ import main

        main()
