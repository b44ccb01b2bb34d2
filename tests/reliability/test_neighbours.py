"""A server, programs, chats and commands on one store at once, each with its own settings.

None of them may act for the whole store on its own settings. Each session of the server is reset by the
server's policy and not earlier, produces one memory, and is lost or skipped by no other program. No live node
is reaped. Every acknowledged message is there.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from holdfast.domain.conversations import Address
from holdfast.store.postgres.engine import open_store as open_postgres
from holdfast.store.sqlite.engine import open_store as open_sqlite
from holdfast.store.store import Store
from tests.reliability.conftest import Tell
from tests.reliability.forkserver import ROOT, environment
from tests.reliability.mutants import NAME
from tests.reliability.neighbour import IDLE_MINUTES
from tests.reliability.serving import API_KEY, reserved_ports
from tests.reliability.sizes import Size, short_and_soak

pytestmark = pytest.mark.timeout(600)  # six interpreters start, beside whatever else runs

IDLE = timedelta(minutes=IDLE_MINUTES)
KINDS = ("library", "impatient", "chat", "commands")
SPEAKERS = 12
SETTINGS = {
    "HOLDFAST_API_KEY": API_KEY,
    "HOLDFAST_RESET__MODE": "idle",
    "HOLDFAST_RESET__IDLE_MINUTES": str(IDLE_MINUTES),
    "HOLDFAST_MEMORY__MIN_MESSAGES": "2",
    "HOLDFAST_MEMORY__PER_MINUTE": "100000",
    "HOLDFAST_LOG__LEVEL": "warning",
}


@asynccontextmanager
async def process(log: Path, *command: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that leaves when its input is closed, or when it is asked to."""
    with log.open("ab") as errors:
        started = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=ROOT,
            env={**environment(), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield started
    finally:
        assert started.stdin is not None
        started.stdin.close()
        if "serve" in command:
            started.terminate()
        try:
            await asyncio.wait_for(started.wait(), 60)
        except TimeoutError:
            started.kill()
            await started.wait()


async def said(started: asyncio.subprocess.Process, words: bytes, log: Path) -> None:
    assert started.stdout is not None
    async with asyncio.timeout(300):
        while words not in (line := await started.stdout.readline()):
            assert line, f"it ended before it said {words!r}: {log.read_text()[-2000:]}"


class Neighbourhood:
    """Everything on one store, and what was said at the server."""

    def __init__(self, url: str, store: Store, speaker: aiohttp.ClientSession, port: int) -> None:
        self.url, self.store, self._speaker, self._port = url, store, speaker, port
        self.acknowledged: dict[str, list[str]] = {}
        self.sessions: set[str] = set()

    async def speak(self, key: str) -> None:
        """Two turns of one person."""
        for number in (1, 2):
            text = f"{key} says {number}"
            answer = await self._speaker.post(
                f"http://127.0.0.1:{self._port}/v1/chat/completions",
                json={"messages": [{"role": "user", "content": text}]},
                headers={"authorization": f"Bearer {API_KEY}", "x-holdfast-session-key": key},
            )
            assert answer.status == 200, await answer.text()
            reply = await answer.json()
            self.acknowledged.setdefault(key, []).extend((text, reply["choices"][0]["message"]["content"]))
            self.sessions.add(reply["holdfast"]["session_id"])

    async def problems(self) -> list[str]:
        """What is wrong once every session is over; waits for that, but not for ever."""
        deadline = time.monotonic() + 300
        while (found := await self.look()) and time.monotonic() < deadline:  # noqa: ASYNC110 - the store is asked
            await asyncio.sleep(0.25)
        return found

    async def look(self) -> list[str]:
        store, found = self.store, []
        flushes = await store.flushes_of(sorted(self.sessions))
        for session_id in sorted(self.sessions):
            session = await store.session(None, session_id)
            flush = flushes.get(session_id)
            if not session.ended:
                found.append(f"{session_id} has not been reset")
            elif session.end_reason != "idle":
                found.append(f"{session_id} ended: {session.end_reason}")
            elif session.ended_at is None or session.ended_at - session.last_activity_at < IDLE:
                found.append(f"{session_id} was reset before its time")
            elif flush is None:
                found.append(f"{session_id} ended without a flush")
            elif flush.state.value != "done":
                found.append(f"the flush of {session_id} is {flush.state.value}: {flush.error}")
        for key, texts in self.acknowledged.items():
            place = await store.resolve("default", Address(key=key))
            page = await store.messages(None, place.conversation.id, limit=1000)
            stored = [message.content()["content"] for message in page.items]
            if stored != texts:
                found.append(f"{key}: {len(texts)} messages were acknowledged, {len(stored)} are there")
        reaped = [event for event in await store.events(owner=None) if event.type == "node.reaped"]
        return found + [f"a living node was reaped: {event.data}" for event in reaped]


@asynccontextmanager
async def neighbourhood(
    database: str | None = None, mutant: str = "", **settings: str
) -> AsyncIterator[Neighbourhood]:
    """All programs on this PostgreSQL database, or on a SQLite file of their own."""
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-neighbours-")))
        (port,) = stack.enter_context(reserved_ports(1))
        log, url = home / "log", database or f"sqlite:///{home}/holdfast.db"
        own = {"HOLDFAST_HOME": str(home)}
        serve = ("-m", "holdfast", "serve", "--port", str(port), "--model", "scripted", "--store", url)
        server = await stack.enter_async_context(process(log, *serve, **{**own, **SETTINGS, **settings}))
        await said(server, b"holdfast answers at", log)
        started = [
            await stack.enter_async_context(
                process(log, "-m", "tests.reliability.neighbour", kind, url, **own, **{NAME: mutant})
            )
            for kind in KINDS
        ]
        stack.callback(_let_go, started)  # all at once, before one after the other is waited for
        await asyncio.gather(*(said(each, b"ready", log) for each in started))
        draining = [asyncio.create_task(_drain(each)) for each in started]
        stack.callback(lambda: [each.cancel() for each in draining])
        store: Store = await open_postgres(database) if database else await open_sqlite(home / "holdfast.db")
        stack.push_async_callback(store.close)
        speaker = await stack.enter_async_context(aiohttp.ClientSession())
        yield Neighbourhood(url, store, speaker, port)
        assert server.returncode is None, log.read_text()[-2000:]


def _let_go(started: list[asyncio.subprocess.Process]) -> None:
    for each in started:
        assert each.stdin is not None
        each.stdin.close()


async def _drain(started: asyncio.subprocess.Process) -> None:
    """Read what it prints, so that a full pipe never holds it up."""
    assert started.stdout is not None
    while await started.stdout.read(65536):
        pass


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    new_database: Callable[[], str] = request.getfixturevalue("new_database")
    return new_database()


@short_and_soak(Size("short", 1), Size("soak", 20))
async def test_neighbours_harm_nothing_of_each_other(database: str | None, size: Size, figures: Tell) -> None:
    async with neighbourhood(database) as place:
        began = time.monotonic()
        for number in size.rounds():
            await asyncio.gather(*(place.speak(f"telegram:{number}:{each}") for each in range(SPEAKERS)))
            problems = await place.problems()
            assert problems == []
        assert await place.store.check() == []
        took = time.monotonic() - began
    engine = "PostgreSQL" if database else "SQLite"
    figures(
        f"neighbours, {engine}: {len(place.sessions)} sessions of a server beside {len(KINDS)} kinds of "
        f"programs in {took:.0f} s: 0 flushes lost or skipped, 0 reset by another's policy, "
        "0 living nodes reaped"
    )


@pytest.mark.parametrize("mutant", ["node-skips-store-flushes", "library-writes-no-flush"])
async def test_a_neighbour_that_acts_for_the_whole_store_is_seen(mutant: str) -> None:
    slow = {"HOLDFAST_MEMORY__PER_MINUTE": "1"}  # so that flushes have to wait
    async with neighbourhood(mutant=mutant, **slow) as place, asyncio.timeout(300):
        for number in count():  # the server may be the first to reset every session, and it does so correctly
            await asyncio.gather(*(place.speak(f"telegram:{number}:{each}") for each in range(SPEAKERS)))
            open_sessions = True
            while open_sessions:
                await asyncio.sleep(0.25)
                wrong = await place.look()
                if any("without a flush" in each or "is skipped" in each for each in wrong):
                    return
                open_sessions = any("has not been reset" in each for each in wrong)
