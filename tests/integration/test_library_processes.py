"""Background processes in a program's hands: `spawn`, `watch`, `processes`; with and without a loop."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import BadInput, Conflict


async def test_a_process_outlives_the_program_that_started_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    async with holdfast.open(url) as hf:
        session = await hf.session(key="cli:ada", attached=False)
        long = await session.spawn(["sleep", "100"], tmp_path)
        brief = await session.spawn("sleep 0.3; exit 7")
        assert (long.state, long.cwd, long.session_id) == ("running", str(tmp_path), session.id)
    time.sleep(1)  # no node is alive when it ends
    async with holdfast.open(url) as hf:
        again = await hf.session(key="cli:ada", attached=False)
        found = {each.id: each for each in await again.processes()}
        assert (found[brief.id].state, found[brief.id].exit_code) == ("exited", 7)
        assert found[long.id].supervisor == hf.node_id, "whoever opens the store looks after it"
        assert [each.id for each in await again.processes(running=True)] == [long.id]
        assert [each.id for each in await again.processes(running=False)] == [brief.id]
        assert (await hf.supervisor.stop("default", long.id, "the test is over")).state == "stopped"


async def test_a_program_without_a_sweep_starts_no_supervisor(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path / 'agent.db'}", sweep=False) as hf:
        session = await hf.session(key="cli:ada")
        process = await session.spawn("exit 2")
        assert (await hf.supervisor.wait("default", process.id, 20)).exit_code == 2
        assert (await hf.store.process("default", process.id)).state == "running", "only seen, not noted"


async def test_what_cannot_be_started_or_watched_is_refused(tmp_path: Path) -> None:
    async with holdfast.open(f"sqlite:///{tmp_path / 'agent.db'}") as hf:
        session = await hf.session(key="cli:ada")
        with pytest.raises(BadInput, match="no directory"):
            await session.spawn("true", tmp_path / "gone")
        with pytest.raises(BadInput):
            await session.watch(0)
        await session.end()
        with pytest.raises(Conflict, match="has ended"):
            await session.spawn("true")


def test_a_program_without_an_event_loop_does_the_same(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as bystander:
        with holdfast.open_sync(f"sqlite:///{tmp_path / 'agent.db'}") as hf:
            session = hf.session(key="cli:ada")
            process = session.spawn("exit 5")
            watched = session.watch(bystander.pid)
            assert (watched.pid, watched.watched) == (bystander.pid, True)
            bystander.kill()
            bystander.wait()
            until = time.monotonic() + 60
            while session.processes(running=True) and time.monotonic() < until:
                time.sleep(0.05)
            ends = {each.id: (each.state.value, each.exit_code) for each in session.processes()}
            assert ends == {process.id: ("exited", 5), watched.id: ("exited", None)}
