"""`kill -9` of a program that writes through an adapter: no acknowledged step is lost, none is doubled."""

from __future__ import annotations

import asyncio
import random
import sys
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
    for _ in size.rounds():
        first = acknowledged[-1] + 1 if acknowledged else 0
        written = await _until_killed(adapter, url, first, chance.uniform(0.02, 0.4))
        kills += 1
        found = await steps(adapter, url)
        assert found == [*range(len(found))], "a step is missing, doubled or out of order"
        assert len(found) in (first + len(written), first + len(written) + 1), "an acknowledged step is lost"
        acknowledged = found
    figures(f"{adapter} on {engine}: {kills} kills, {len(acknowledged)} steps, 0 lost, 0 doubled")


async def _until_killed(adapter: str, url: str, first: int, seconds: float) -> list[int]:
    """Run the writer, kill it this long after its first acknowledgement; returns what it acknowledged."""
    command = (sys.executable, "-m", "tests.reliability.adapter_writer", adapter, url, str(first))
    program = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert program.stdout is not None
    try:
        line = await program.stdout.readline()
        assert line, "the writer ended before it wrote a step"
        await asyncio.sleep(seconds)
    finally:
        program.kill()
    rest = await program.stdout.read()
    await program.wait()
    lines = (line + rest).split(b"\n")[:-1]  # a line that was cut off acknowledged nothing
    return [int(each) for each in lines]
