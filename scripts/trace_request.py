#!/usr/bin/env python3
"""Measures what runs: the files in which a line runs for one chat request, and the calls from
`store.resolve()` to its SQL statement.

    .venv/bin/python scripts/trace_request.py            # the table; --files names the files

A server answers in this process with a scripted model, on a new SQLite store. A file counts if a line of it
runs in each of several requests, so that agents which happen to run meanwhile do not count. The statement is
reached over a reader thread: the calls of both threads are added.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src" / "holdfast"
sys.path.insert(0, str(SOURCE.parent))

import uvicorn  # noqa: E402

from holdfast.app import Holdfast  # noqa: E402
from holdfast.dashboard.browser_sessions import LinkBook  # noqa: E402
from holdfast.domain.api_keys import Scope, new_key  # noqa: E402
from holdfast.domain.conversations import Address  # noqa: E402
from holdfast.domain.nodes import NodeKind  # noqa: E402
from holdfast.models.scripted import ScriptedModel  # noqa: E402
from holdfast.server.connections import Connections, http_config  # noqa: E402
from holdfast.server.server import application, bound, services_of  # noqa: E402
from holdfast.settings import load  # noqa: E402

REQUESTS = 5
OWNER = "default"


class LineTrace:
    """Records the files of holdfast in which a line runs, in every thread that starts after it."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.recording = False

    def install(self) -> None:
        threading.settrace(self)  # type: ignore[arg-type]
        sys.settrace(self)  # type: ignore[arg-type]

    def __call__(self, frame: FrameType, event: str, _: object) -> LineTrace | None:
        name = frame.f_code.co_filename
        if not name.startswith(str(SOURCE)):
            return None
        if self.recording and event == "line":
            self.files.add(name)
        return self


class SqlDepth:
    """The calls between an entry of the store and its first SELECT, over all threads."""

    def __init__(self) -> None:
        self.before: list[str] = []
        """The calls up to the hand-over to another thread."""
        self.statement: list[str] = []
        self.recording = False

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if not self.recording or self.statement:
            return
        if event == "call" and frame.f_code.co_name == "run_in_executor":
            self.before = _calls_below(frame)
        elif event == "c_call" and called.__name__ == "execute" and frame.f_code.co_name == "_execute":
            self.statement = [*self.before, *_calls_below(frame)]


def _calls_below(frame: FrameType | None) -> list[str]:
    """The functions of holdfast on this stack, outermost first."""
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(SOURCE)):
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found[::-1]


@asynccontextmanager
async def server(home: Path) -> AsyncIterator[tuple[Holdfast, int, str]]:
    """A server on a new store: its node, port, and a token."""
    settings = load(
        environment={"HOLDFAST_HOME": str(home)},
        given={"store": {"url": f"sqlite:///{home / 'holdfast.db'}"}},
    )
    node = Holdfast(settings, kind=NodeKind.SERVER, catch_signals=False)
    await node.start()
    services = services_of(node, ScriptedModel())
    key, token = new_key(OWNER, Scope.CHAT, (), node.store.now())
    await node.store.add_key(key, token.hash)
    listening = bound("127.0.0.1", 0)
    config = http_config(application(services, LinkBook(home)), Connections(100), grace_seconds=1)
    serving = _Server(config)
    task = asyncio.create_task(serving.serve(sockets=[listening]))
    try:
        await serving.listens.wait()
        yield node, listening.getsockname()[1], str(token)
    finally:
        services.draining.set()
        serving.should_exit = True
        await task
        await services.runner.close()
        await node.stop()


class _Server(uvicorn.Server):
    """uvicorn without signals, which says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def ask(port: int, token: str, text: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"messages": [{"role": "user", "content": text}]})
    named = {"authorization": f"Bearer {token}", "x-holdfast-session-key": "cli:trace"}
    connection.request("POST", "/v1/chat/completions", body, named)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    connection.close()


async def files_of_a_request(home: Path) -> list[str]:
    """The files in which a line runs for each of several chat requests, below `src/holdfast`."""
    trace = LineTrace()
    trace.install()
    found: list[set[str]] = []
    async with server(home) as (_, port, token):
        await asyncio.to_thread(ask, port, token, "the first opens the conversation")
        for number in range(REQUESTS):
            trace.files, trace.recording = set(), True
            await asyncio.to_thread(ask, port, token, f"number {number}")
            trace.recording = False
            found.append(trace.files)
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    return sorted(str(Path(name).relative_to(SOURCE)) for name in set.intersection(*found))


async def calls_to_sql(home: Path) -> list[str]:
    """The functions on the way from `store.resolve()` to its statement, the first included."""
    depth = SqlDepth()
    threading.setprofile(depth)
    async with server(home) as (node, port, token):
        await asyncio.to_thread(ask, port, token, "hello")
        conversation = await node.store.resolve(OWNER, Address(key="cli:trace"))
        for _ in range(8):  # every reader thread has its connection
            await node.store.resolve(OWNER, Address(id=conversation.conversation.id))
        resolving = node.store.resolve(OWNER, Address(id=conversation.conversation.id))
        sys.setprofile(depth)
        depth.recording = True
        await asyncio.create_task(resolving)  # a task of its own: nothing of ours is above it
        depth.recording = False
        sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    return ["resolve", *depth.statement]


def main() -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        calls = asyncio.run(calls_to_sql(Path(second)))
        files = asyncio.run(files_of_a_request(Path(first)))
    print(f"{'files in which a line runs for one chat request':58} {len(files)}")
    print(f"{'calls from store.resolve() to SQL':58} {len(calls)}")
    if "--files" in sys.argv[1:]:
        print(*files, sep="\n")
        print(" -> ".join(calls))


if __name__ == "__main__":
    main()
