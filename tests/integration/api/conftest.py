"""A real server in the test's own event loop: real sockets, real store, a scripted model.

`server` is one with the defaults. A test that needs another model or other settings takes `start_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from holdfast.app import Holdfast
from holdfast.dashboard.browser_sessions import LinkBook
from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.nodes import NodeKind
from holdfast.models.base import Model
from holdfast.models.scripted import ScriptedModel
from holdfast.server.connections import Connections, http_config
from holdfast.server.http import Services
from holdfast.server.limits import connection_limit
from holdfast.server.server import allow_files, application, bound, services_of
from holdfast.settings import load
from holdfast.store.store import Store

ADMIN_OWNER = "default"


@dataclass(slots=True)
class Running:
    """A server that answers at `url`."""

    url: str
    admin_key: str
    """An admin's token, of owner `default`; `client` sends it."""
    services: Services
    model: Any
    """A ScriptedModel, unless the test brought another."""
    connections: Connections
    _clients: AsyncExitStack
    client: httpx.AsyncClient = field(init=False)

    @property
    def store(self) -> Store:
        return self.services.holdfast.store

    async def key(self, owner: str = "ada", scope: str = "chat") -> str:
        """The token of a new key."""
        key, token = new_key(owner, Scope(scope), (), self.store.now())
        await self.store.add_key(key, token.hash)
        return str(token)

    async def with_token(self, token: str | None, **headers: str) -> httpx.AsyncClient:
        """A client that sends this token (None: no token), and these headers, with every request."""
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return await self._clients.enter_async_context(
            httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, trust_env=False)
        )

    async def client_of(self, owner: str = "ada", scope: str = "chat", **headers: str) -> httpx.AsyncClient:
        """A client with a new key."""
        return await self.with_token(await self.key(owner, scope), **headers)

    async def say(
        self, text: str = "hello", *, client: httpx.AsyncClient | None = None, **headers: str
    ) -> dict[str, Any]:
        """One turn over HTTP; returns the whole answer. Headers by their names with underscores."""
        response = await (client or self.client).post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": text}]},
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


StartServer = Callable[..., Awaitable[Running]]


class _Server(uvicorn.Server):
    """uvicorn without signals, which says when it listens, and stops at once when nobody is connected: by
    itself it takes 0.2 s, looking ten times a second whether it should stop, and then waiting."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self._told_to_stop = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._told_to_stop.set()

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told_to_stop.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for _ in range(10):  # clients that have just closed are still counted for a moment
            if not self.server_state.connections:
                break
            await asyncio.sleep(0.005)
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for each in (*self.servers, *(sockets or ())):
            each.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def running_server(
    home: Path, model: Model | None = None, settings: Mapping[str, Mapping[str, Any]] | None = None
) -> AsyncIterator[Running]:
    """A server on the store in `home`, until the block is left. It flushes only if `settings` name memory:
    the others count what their model is asked."""
    given: dict[str, Any] = {name: dict(section) for name, section in (settings or {}).items()}
    given.setdefault("store", {}).setdefault("url", f"sqlite:///{home / 'holdfast.db'}")
    given.setdefault("server", {}).setdefault("drain_seconds", 1)
    answers = model or ScriptedModel()
    holdfast = Holdfast(
        load(environment={"HOLDFAST_HOME": str(home)}, given=given),
        kind=NodeKind.SERVER,
        catch_signals=False,
        model=answers if "memory" in given else None,
    )
    await holdfast.start()
    services = services_of(holdfast, answers)
    assert holdfast.queue_runner is not None
    holdfast.queue_runner.start()
    listening = bound("127.0.0.1", 0)
    connections = Connections(connection_limit(allow_files(1000), 1000))
    server = _Server(
        http_config(
            application(services, LinkBook(home)),
            connections,
            grace_seconds=2,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        async with AsyncExitStack() as clients:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            running = Running(url, "", services, answers, connections, clients)
            running.admin_key = await running.key(ADMIN_OWNER, "admin")
            running.client = await running.with_token(running.admin_key)
            await server.listens.wait()
            yield running
    finally:
        services.draining.set()
        server.stop()
        await services.runner.drain(0)
        await serving
        await services.runner.close()
        await holdfast.stop()


@pytest.fixture
def server_home(tmp_path: Path) -> Iterator[Path]:
    """A directory for the server's store, in memory where the system offers that."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory) as directory:
        yield Path(directory)


@pytest.fixture
async def start_server(server_home: Path) -> AsyncIterator[StartServer]:
    """Starts a server: `await start_server(model, server={"busy_wait_seconds": 0.1})`. Several of them share
    one store."""
    async with AsyncExitStack() as servers:

        async def start(model: Model | None = None, /, **settings: Mapping[str, Any]) -> Running:
            return await servers.enter_async_context(running_server(server_home, model, settings))

        yield start


@pytest.fixture
async def server(start_server: StartServer) -> Running:
    return await start_server()
