"""Field report D, replayed: sessions expire, and servers are killed while they flush them and started again.

Each session must produce one memory. The model counts its calls: at most one for each session, and one more
for each flush that a kill interrupted. Once the last is done it is never called again, however often servers
are started.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from holdfast.store.sqlite.engine import open_store
from holdfast.store.store import Store
from tests.contract.steps import Clock, new_node, say
from tests.reliability.conftest import Tell
from tests.reliability.mutants import NAME
from tests.reliability.serving import Server, Servers, reserved_ports, servers
from tests.reliability.sizes import Size, short_and_soak

CONCURRENCY = 4
SETTINGS = {
    "HOLDFAST_RESET__MODE": "both",
    "HOLDFAST_RESET__IDLE_MINUTES": "1",
    "HOLDFAST_RESET__QUIET_MINUTES": "0",
    "HOLDFAST_MEMORY__MIN_MESSAGES": "2",
    "HOLDFAST_MEMORY__CONCURRENCY": str(CONCURRENCY),
    "HOLDFAST_MEMORY__PER_MINUTE": "100000",
    "HOLDFAST_MEMORY__RETRY_SECONDS": "0.1",
}
QUIET_SECONDS = 1.5
"""How long a server that was started again is watched: it looks for flushes every second."""


@dataclass
class Model:
    """Answers after a moment, and counts what it is asked, by key."""

    seconds: float = 0.03
    url: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    purposes: Counter[str] = field(default_factory=Counter)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read())
        self.calls[request.headers["idempotency-key"]] += 1
        self.purposes[request.headers["x-holdfast-purpose"]] += 1
        self.asked.set()
        await asyncio.sleep(self.seconds)
        said = asked["messages"][-1]["content"].split()
        number = next(word for word in said if word.startswith("number-"))
        message = {"role": "assistant", "content": f"They said {number}."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return web.json_response(answer)

    async def until_asked(self, often: int) -> None:
        """Wait until it was asked so often in all."""
        async with asyncio.timeout(120):
            while self.total < often:
                self.asked.clear()
                await self.asked.wait()


@asynccontextmanager
async def answering(model: Model) -> AsyncIterator[Model]:
    application = web.Application(client_max_size=64 << 20)
    application.router.add_get("/v1/models", model.models)
    application.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield model
    finally:
        await runner.cleanup()


@contextmanager
def somewhere(directory: Path | None) -> Iterator[Path]:
    """On a disk, or in memory where the system offers that: whether a commit survives is asked elsewhere."""
    if directory is not None or not os.access("/dev/shm", os.W_OK):
        with tempfile.TemporaryDirectory(prefix="holdfast-", dir=directory) as path:
            yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir="/dev/shm") as path:
        yield Path(path)


async def old_sessions(database: Path, number: int) -> None:
    """Conversations that nobody has spoken in for two days; their sessions are still open."""
    store = await open_store(database, clock=Clock(datetime.now(UTC) - timedelta(days=2)))
    node = await new_node(store)
    for start in range(0, number, 50):
        several = range(start, min(start + 50, number))
        await asyncio.gather(
            *(say(store, node, f"I am number-{each}", key=f"telegram:dm:{each}") for each in several)
        )
    await store.leave(node.id, "closed")
    await store.close()


@dataclass
class Storm:
    """Servers on one store, and what has come of it."""

    model: Model
    servers: Servers
    ports: list[int]
    sessions: int
    kills: int = 0
    after_the_last: int = 0

    async def start(self, port: int = 0) -> Server:
        server = self.servers.start(self.ports[port], 0.5)
        assert await server.ready(), self.servers.log.read_text()[-2000:]
        return server

    async def kill(self, server: Server) -> None:
        server.send(signal.SIGKILL)
        await server.ended()
        self.kills += 1

    async def stop(self, server: Server) -> None:
        server.send(signal.SIGTERM)
        assert await server.ended() == 0

    async def until_done(self) -> None:
        async with asyncio.timeout(180), self.store() as store:
            while len((await store.memories(None, limit=1000)).items) < self.sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def until_reset(self) -> None:
        async with asyncio.timeout(180), self.store() as store:
            while (await store.figures()).open_sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def restart_and_watch(self, times: int) -> None:
        """Start servers again though everything is done: nothing may happen."""
        before = self.model.total
        for _ in range(times):
            server = await self.start()
            await asyncio.sleep(QUIET_SECONDS)
            await self.stop(server)
        self.after_the_last = self.model.total - before

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        store = await open_store(self.servers.database)
        try:
            yield store
        finally:
            await store.close()

    async def faults(self) -> list[str]:
        """Everything that is not as it should be."""
        found = []
        async with self.store() as store:
            told = Counter(memory.text for memory in (await store.memories(None, limit=1000)).items)
            wanted = Counter(f"They said number-{each}." for each in range(self.sessions))
            if told != wanted:
                found.append(
                    f"{(wanted - told).total()} memories are missing, {(told - wanted).total()} too many"
                )
            figures = await store.flush_figures()
            if figures.pending or figures.running or figures.dead:
                found.append(f"not all is done: {figures}")
            found += [finding.invariant for finding in await store.check()]
        if self.model.total > self.sessions + self.kills * CONCURRENCY:
            found.append(f"{self.model.total} calls for {self.sessions} sessions and {self.kills} kills")
        if self.after_the_last:
            found.append(f"{self.after_the_last} calls after everything was done")
        return found


@asynccontextmanager
async def storm(sessions: int, directory: Path | None = None, nodes: int = 1) -> AsyncIterator[Storm]:
    with somewhere(directory) as place, reserved_ports(nodes) as ports:
        async with answering(Model()) as model:
            with servers(place / "home", model.url) as started:
                started.environment |= SETTINGS
                await old_sessions(started.database, sessions)
                yield Storm(model, started, ports, sessions)


@short_and_soak(Size("short", 5), Size("soak", 20))
async def test_sessions_that_expire_under_kills_are_flushed_once_each(
    size: Size, seed: int, tmp_path: Path, figures: Tell
) -> None:
    full = size.name == "soak"
    number, restarts = (500, 10) if full else (60, 2)
    chance = random.Random(seed)
    began = time.monotonic()
    async with storm(number, tmp_path if full else None) as here:
        for kill in range(size.least):
            server = await here.start()
            await here.model.until_asked(number * (kill + 1) // (size.least + 2))
            await asyncio.sleep(chance.random() * here.model.seconds)
            await here.kill(server)
        server = await here.start()
        await here.until_done()
        await here.stop(server)
        calls = here.model.total
        await here.restart_and_watch(restarts)
        assert await here.faults() == []
        assert set(here.model.purposes) == {"flush"}
        assert len(here.model.calls) == number, "each call names its session"
    figures(
        f"flush storm: {number} sessions, {here.kills} kills, {restarts} restarts: {number} memories by "
        f"{calls} calls, 0 after the last; {time.monotonic() - began:.0f} s"
    )


async def test_two_servers_on_one_store_flush_nothing_twice(figures: Tell) -> None:
    async with storm(40, nodes=2) as here:
        both = [await here.start(0), await here.start(1)]
        await here.until_done()
        for server in both:
            await here.stop(server)
        assert await here.faults() == []
        assert set(here.model.calls.values()) == {1}
    figures("flush storm, two servers: 40 sessions, 40 calls, 0 double flushes")


@short_and_soak(Size("short", 150), Size("soak", 3000))
async def test_a_policy_switched_on_over_old_sessions_is_told_bounded_and_skippable(
    size: Size, figures: Tell
) -> None:
    number, per_minute = size.least, 10
    async with storm(number) as here:
        here.servers.environment |= {
            "HOLDFAST_MEMORY__PER_MINUTE": str(per_minute),
            "HOLDFAST_LOG__LEVEL": "info",
        }
        began = time.monotonic()
        server = await here.start()
        ready = time.monotonic() - began
        minutes = number // per_minute
        span = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
        told = f"{number:,} sessions become due; about {span} at {per_minute} a minute; "
        assert told in here.servers.log.read_text()
        await here.until_reset()
        reset = time.monotonic() - began
        await here.model.until_asked(per_minute)
        await asyncio.sleep(QUIET_SECONDS)
        assert time.monotonic() - began > 60 or here.model.total == per_minute
        tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}"
        skipped = here.servers.command("--owner", "*", "memories", "skip", "--before", tomorrow, "--json")
        assert skipped.returncode == 0, skipped.stderr
        left = msgspec.json.decode(skipped.stdout)["count"]
        assert left == number - here.model.total
        asked = here.model.total
        await here.stop(server)
        await here.restart_and_watch(1)
        assert (here.model.total, here.after_the_last) == (asked, 0)
    figures(
        f"none to both over {number:,} sessions: ready in {ready:.1f} s, reset in {reset:.1f} s, told, "
        f"{asked} calls in the first minute, {left:,} skipped"
    )


async def test_a_flushed_set_in_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "flushed-set-in-memory")
    async with storm(10) as here:
        server = await here.start()
        await here.until_done()
        await here.stop(server)
        await here.restart_and_watch(1)
        assert any("calls after everything was done" in fault for fault in await here.faults())
