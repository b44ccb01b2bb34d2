"""`kill -9` of a program that writes through an adapter: no acknowledged step is lost, none is doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from .adapter_writer import ADAPTERS, steps
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
    request: pytest.FixtureRequest,
) -> None:
    if adapter == "google_adk":
        pytest.importorskip(
            "google.adk", reason="has an environment of its own: run by `make peers`, also in CI"
        )
    else:
        pytest.importorskip(NEEDS[adapter], reason="not in the ADK's environment: run by `make test`")
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if engine == "postgres":
        url = request.getfixturevalue("reused_database").url()
    chance = random.Random(seed)
    acknowledged: list[int] = []
    kills = 0
    async with _forking(adapter, url) as program:
        for _ in size.rounds():
            first = acknowledged[-1] + 1 if acknowledged else 0
            written = await _until_killed(program, first, chance.uniform(0.02, 0.4))
            kills += 1
            found = await steps(adapter, url)
            assert found == [*range(len(found))], "a step is missing, doubled or out of order"
            assert len(found) in (first + len(written), first + len(written) + 1), "a step is lost"
            acknowledged = found
    figures(f"{adapter} on {engine}: {kills} kills, {len(acknowledged)} steps, 0 lost, 0 doubled")


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
