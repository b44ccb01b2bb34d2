"""A server closes every descriptor once.

Closing one twice gives an error that libraries ignore. But its number may be in use again by then: the second
close then ends a socket or a file of another thread, once in a great many times. strace shows it every time.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests import postgres_server

from .serving import API_KEY, reserved_ports, servers
from .tracing import require_strace
from .upstream import COMMANDS, TOOLS, upstream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")

CLOSED_BEFORE = re.compile(r"^(\d+) +close\((\d+)\) += -1 EBADF", re.MULTILINE)


async def _use(client: aiohttp.ClientSession, url: str, lines: Path) -> None:
    """Answers whole, streamed and abandoned, with commands of the server's own tool; events; a WebSocket."""

    async def ask(number: int, **more: Any) -> None:
        body = {"messages": [{"role": "user", "content": f"q{number} {TOOLS} {lines}"}], **more}
        headers = {"x-holdfast-session-key": f"s{number}"}
        async with client.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    await asyncio.gather(*(ask(number, stream=number % 2 == 0) for number in range(4)))
    with suppress(TimeoutError):
        await asyncio.wait_for(ask(4, stream=True), 0.2)
    async with client.get(f"{url}/api/events", headers={"accept": "text/event-stream"}) as answer:
        assert answer.status == 200
    async with client.ws_connect(f"{url}/v1/responses") as socket:
        await socket.send_json({"type": "response.create", "input": "hello"})
        assert (await socket.receive_json())["type"] == "response.created"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    if request.param == "sqlite":
        yield {}
        return
    with postgres_server.private() as database:
        database.create("holdfast")
        yield {"HOLDFAST_STORE__URL": database.url("holdfast")}


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_no_descriptor_is_closed_twice(workers: str, store: dict[str, str], tmp_path: Path) -> None:
    require_strace()
    log, lines = tmp_path / "closes", tmp_path / "lines"
    tracer = ["strace", "-D", "-f", "-qq", "--seccomp-bpf", "-e", "trace=close", "-o", str(log)]
    more = {**store, "HOLDFAST_AGENT__TOOLS": "terminal", "HOLDFAST_SERVER__WORKERS": workers}
    with upstream(tmp_path, breaks_off=0.0) as model, servers(tmp_path / "home", model.url) as many:
        with reserved_ports(1) as (port,):
            server = many.start(port, 0.05, cold=True, tracer=tracer, more=more)
            assert await server.ready(), many.log.read_text()
            async with aiohttp.ClientSession(headers={"authorization": f"Bearer {API_KEY}"}) as client:
                await _use(client, f"http://127.0.0.1:{port}", lines)
            server.send(signal.SIGTERM)
            assert await server.ended() == 0, many.log.read_text()
    assert lines.read_text().count("q0-") == sum(map(len, COMMANDS))
    closes = log.read_text()
    assert closes.count("close(") > 100
    assert CLOSED_BEFORE.findall(closes) == []
