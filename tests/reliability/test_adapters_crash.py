"""`kill -9` of a program that writes through an adapter: no acknowledged step is lost, none is doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests import postgres_server

from .adapter_writer import ADAPTERS, reading, whole
from .conftest import Tell
from .sizes import Size

ROOT = Path(__file__).parents[2]
NEEDS = {
    "openai_agents": "agents",
    "langgraph": "langgraph",
    "claude_agent_sdk": "claude_agent_sdk",
    "google_adk": "google.adk",
    "pydantic_ai": "pydantic_ai",
}


SHORT, SOAK = Size("short", 2), Size("soak", 100)
WRITER = "adapter_writer"
"""Name of the connections of the program that is killed."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "size"),
    [
        ("sqlite", SHORT),
        pytest.param("sqlite", SOAK, marks=pytest.mark.soak),
        pytest.param("postgres", SOAK, marks=[pytest.mark.soak, pytest.mark.postgres]),
    ],
    ids=str,
)
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_killed_program_loses_no_acknowledged_step(
    size: Size,
    adapter: str,
    engine: str,
    seed: int,
    figures: Tell,
    tmp_path: Path,
) -> None:
    """After each kill the newest steps are read, by a node that stays open, and after the last all of them by
    a new one: reading everything each time would take longer than all the rest."""
    if adapter == "google_adk":
        pytest.importorskip(
            "google.adk", reason="has an environment of its own: run by `make peers`, also in CI"
        )
    else:
        pytest.importorskip(NEEDS[adapter], reason="not in the ADK's environment: run by `make test`")
    chance = random.Random(seed)
    stored = 0
    with _store(engine, tmp_path) as url:
        named = f"{url}&application_name={WRITER}" if engine == "postgres" else url
        async with _forking(adapter, named) as program, reading(adapter, url) as read:
            for _ in size.rounds():
                written = await _until_killed(program, stored, chance.uniform(0.02, 0.4))
                assert written == [*range(stored, stored + len(written))]
                if engine == "postgres":
                    await _until_disconnected(url)
                # The one before and, if it was stored without an acknowledgement, the one after.
                found = await read(len(written) + 2)
                assert found == [*range(found[0], found[-1] + 1)], "a step is doubled or out of order"
                assert found[0] <= stored, "a step is lost"
                assert found[-1] - written[-1] in (0, 1), "an acknowledged step is lost, or one is doubled"
                stored = found[-1] + 1
        assert await whole(adapter, url) == [*range(stored)], "a step is lost, doubled or out of order"
    figures(f"{adapter} on {engine}: {size.least} kills, {stored} steps, 0 lost, 0 doubled")


@contextmanager
def _store(engine: str, directory: Path) -> Iterator[str]:
    """A store on the disk that the tests use. The server syncs every commit."""
    if engine == "sqlite":
        yield f"sqlite:///{directory / 'store.db'}"
        return
    with postgres_server.private(durable=True) as server:
        yield server.url(server.new_database())


@asynccontextmanager
async def _forking(adapter: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", "tests.reliability.adapter_writer", adapter, url)
    program = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield program
    finally:
        program.kill()
        await program.wait()


async def _until_killed(program: asyncio.subprocess.Process, first: int, seconds: float) -> list[int]:
    """Have a writer forked, kill it this long after its first acknowledgement; returns what it
    acknowledged."""
    assert program.stdin is not None and program.stdout is not None
    program.stdin.write(b"%d\n" % first)
    writer = int(await program.stdout.readline())
    try:
        lines = [await program.stdout.readline()]
        assert lines[0][:-1].isdigit(), "the writer ended before it wrote a step"
        await asyncio.sleep(seconds)
    finally:
        os.kill(writer, signal.SIGKILL)
    while (line := await program.stdout.readline()) != b"ended\n":
        assert line, "the program ended"
        lines.append(line)
    return [int(line) for line in lines]


async def _until_disconnected(url: str) -> None:
    """Wait until the server has ended the connections of the killed writer. Until then it may still commit
    what the writer sent last: a step that is neither acknowledged nor visible yet, and would be written a
    second time."""
    left = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s"
    async with asyncio.timeout(60), await psycopg.AsyncConnection.connect(url, autocommit=True) as server:
        while True:
            found = await server.execute(left, [WRITER])
            if await found.fetchone() is None:
                return
            await asyncio.sleep(0.01)
