"""Processes that need not import anything: forked from one of this worker that has imported everything.

To start an interpreter and import holdfast takes most of a second of a processor, and the suites need a
hundred such processes. Each gets the environment, standard output and standard error of the caller as they
are now, so that breakages put in on purpose apply to it alone. The fork server itself opens no store and
starts no thread.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import holdfast

ROOT = Path(__file__).parents[2]
END_SECONDS = 60.0
PRELOADED = (
    *("aiohttp", "encodings.idna", "nio", "uvloop"),
    *("uvicorn.lifespan.off", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl"),
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "holdfast.__main__",
    *(f"holdfast.cli.{name}" for name in ("groups", "logs", "serve")),
    *(f"holdfast.models.{name}" for name in ("choose", "connection", "local", "upstream")),
    *("tests.reliability.nursery", "tests.reliability.serving"),
)


class Start(msgspec.Struct, frozen=True):
    """A function by its module and name, called with one end of a socket; and the environment it has then."""

    module: str
    function: str
    environment: dict[str, str]


class ForkServer:
    """The way to the fork server. Tests may use it from several threads."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lock = threading.Lock()

    def start(self, function: Callable[[socket.socket], None], line: socket.socket) -> int:
        """Fork a process that calls this function with this socket; returns its pid."""
        start = Start(function.__module__, function.__name__, environment())
        with self._lock:
            socket.send_fds(self._line, [b"start " + msgspec.json.encode(start)], [line.fileno(), 1, 2])
            return int(self._line.recv(64))

    def wait(self, pid: int) -> None:
        """Wait until it has ended; whatever runs longer than END_SECONDS is an error."""
        with self._lock:
            self._line.send(f"wait {pid}".encode())
            ended = self._line.recv(64)
        if ended != b"ended":
            raise subprocess.TimeoutExpired(f"process {pid}", END_SECONDS)


def environment() -> dict[str, str]:
    """What a process of ours needs to find the tests and the holdfast under test."""
    source = str(Path(holdfast.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join((source, str(ROOT)))}


@cache
def fork_server() -> ForkServer:
    """The one of this worker. It ends with the worker, whose side of the socket is then closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for side in (ours, theirs):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    subprocess.Popen(
        [sys.executable, "-m", "tests.reliability.forkserver", str(theirs.fileno())],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    return ForkServer(ours)


def warm_up() -> None:
    """Import whatever a server needs, and compile the patterns of its routes: `re` keeps them."""
    from starlette.routing import compile_path

    for name in PRELOADED:
        importlib.import_module(name)
    from holdfast.dashboard.routes import PAGES
    from holdfast.server.server import ROUTES

    for path in {*(route.path for route in ROUTES), *(page.path for page in PAGES)}:
        compile_path(path)


def _serve(line: socket.socket) -> None:
    """The fork server's own side: fork and wait, until the worker is gone."""
    while True:
        request, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
        if not request:
            return
        verb, _, rest = request.partition(b" ")
        if verb == b"wait":
            line.send(_ended(int(rest)))
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            _become(msgspec.json.decode(rest, type=Start), *files)
        for file in files:
            os.close(file)
        line.send(str(pid).encode())


def _ended(pid: int) -> bytes:
    until = time.monotonic() + END_SECONDS
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            return b"late"
        time.sleep(0.005)
    return b"ended"


def _become(start: Start, line: int, out: int, err: int) -> None:
    """In the forked child: call the function, and exit."""
    code = 1
    try:
        for standard, file in ((1, out), (2, err)):
            os.dup2(file, standard)
            os.close(file)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(start.environment)
        time.tzset()
        function: Any = getattr(importlib.import_module(start.module), start.function)
        function(socket.socket(fileno=line))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    warm_up()
    assert threading.active_count() == 1, "a thread would not be there in the children"
    gc.collect()
    gc.freeze()  # else every server, which collects once before it answers, would walk and copy all of this
    _serve(socket.socket(fileno=int(sys.argv[1])))
