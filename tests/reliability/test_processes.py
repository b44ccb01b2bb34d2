"""Background processes after holdfast is killed: all known, every exit recorded, no stranger signalled.

A program starts processes and is killed with `kill -9` while some have ended, some are about to and some go
on; the next one must know the state of each. Reused pids are simulated by rows with another start time: what
runs under them now is another process and must not be signalled.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.app import Holdfast
from holdfast.domain.processes import Process, ProcessState, hold_of
from holdfast.os_support import running_processes, send_signal, start_of
from holdfast.runtime.processes.probe import members
from tests.reliability.conftest import Tell
from tests.reliability.sizes import Size, short_and_soak

STARTER = Path(__file__).with_name("starter.py")
SETTINGS = {"processes": {"grace_seconds": 2, "active_window_seconds": 2.5}}


def killed_starter(database: Path, number: int, after: float) -> dict[str, int]:
    """Run the program until it has started all, or for so long, and kill it; the number of each process."""
    program = subprocess.Popen(
        [sys.executable, str(STARTER), str(database), str(number)], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    orders: dict[str, int] = {}
    until = time.monotonic() + after
    for line in program.stdout:
        words = line.split()
        if words[0] == "all" or time.monotonic() > until:
            break
        orders[words[2]] = int(words[1])
    program.kill()
    program.wait()
    for line in program.stdout:  # what it had said by then counts too
        if line.startswith("started") and line.endswith("\n"):
            _, order, process_id, _ = line.split()
            orders[process_id] = int(order)
    program.stdout.close()
    return orders


async def everything(hf: Holdfast) -> dict[str, Process]:
    page = await hf.store.processes(None, limit=1000)
    assert not page.has_more
    return {process.id: process for process in page.items}


async def settled(hf: Holdfast, also: str = "nothing") -> dict[str, Process]:
    """All processes, when whatever ends by itself has ended, and those that say this."""
    async with asyncio.timeout(60):
        while True:
            found = await everything(hf)
            going = [each.command for each in found.values() if not each.ended]
            if not [each for each in going if also in each or "sleep 1000" not in each]:
                return found
            await asyncio.sleep(0.1)


@contextmanager
def cleaned_up(database: Path) -> Iterator[None]:
    """Whatever the test leaves running is killed."""
    try:
        yield
    finally:
        marks = {path.name for path in database.with_name(f"{database.name}.processes").glob("proc_*")}
        for one in running_processes().values():
            try:
                environment = Path(f"/proc/{one.pid}/environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if any(f"HOLDFAST_PROCESS={mark}" in environment for mark in marks):
                send_signal(one.pid, one.start, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(600)
@short_and_soak(Size("50", 1), Size("soak", 10))
async def test_processes_outlive_a_killed_holdfast_and_are_all_accounted_for(
    tmp_path: Path, seed: int, figures: Tell, size: Size
) -> None:
    chance = random.Random(seed)
    total = codes = adopted = never = lost = unharmed = 0
    for round_ in size.rounds():
        database = tmp_path / f"{round_}.db"
        with cleaned_up(database):
            # The first time all are started; later it is killed at any moment, also in the middle of a start.
            after = 60.0 if round_ == 0 else chance.uniform(0.2, 4)
            orders = killed_starter(database, 50, after)
            strangers = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(5)]
            try:
                usurped = usurp(database, strangers)
                async with holdfast.open(f"sqlite:///{database}", settings=SETTINGS) as hf:
                    known = await everything(hf)
                    assert set(orders) <= set(known), "nothing that was started is unknown"
                    found = await settled(hf)
                    for process in found.values():
                        if process.id in usurped:
                            continue
                        order = orders.get(process.id, order_of(process))
                        check(process, order)
                        total += 1
                        codes += process.exit_code is not None
                        adopted += not process.ended
                        never += process.state is ProcessState.LOST
                        if process.state is not ProcessState.LOST:
                            log = await hf.supervisor.log(None, process.id)
                            assert log.text == f"{order}\n"
                    for process_id in usurped:
                        stopped = await hf.supervisor.stop(None, process_id, "the test is over")
                        assert stopped.ended
                        lost += 1
                    running = [process for process in found.values() if not process.ended]
                    for process in running:
                        await hf.store.request_stop(None, process.id, "the test is over")
                    await settled(hf, also="sleep 1000")
                    for process in running:
                        over = await hf.store.process(None, process.id)
                        assert (over.state, over.exit_code) == (ProcessState.STOPPED, -signal.SIGTERM)
                        assert members(over, running_processes(), thorough=True) == []
                unharmed += sum(stranger.poll() is None for stranger in strangers)
                assert all(stranger.poll() is None for stranger in strangers), "a stranger was signalled"
            finally:
                for stranger in strangers:
                    stranger.kill()
                    stranger.wait()
    assert codes == total - adopted - never
    figures(
        f"processes: {total + lost} started, holdfast killed {round_ + 1} times: all known, "
        f"{adopted} taken over, {codes} of {total - adopted - never} exit codes learnt, {never} never began, "
        f"{lost} used pids recognised, {unharmed} strangers unharmed"
    )


def usurp(database: Path, strangers: list[subprocess.Popen[bytes]]) -> list[str]:
    """Let some rows name pids that strangers have now; their own processes are gone, without a record."""
    connection = apsw.Connection(str(database))
    try:
        rows: list[Any] = connection.execute(
            "SELECT id FROM processes WHERE state = 'running' AND command NOT LIKE '%sleep%' LIMIT 5"
        ).fetchall()
        for (process_id,), stranger in zip(rows, strangers, strict=False):
            connection.execute(
                "UPDATE processes SET pid = ?, pid_start = '1', shim_pid = ?, shim_start = '1' WHERE id = ?",
                (stranger.pid, stranger.pid, process_id),
            )
            (database.with_name(f"{database.name}.processes") / process_id / "exit").unlink(missing_ok=True)
        return [process_id for (process_id,) in rows]
    finally:
        connection.close()


def order_of(process: Process) -> int:
    """One that was being started when the program was killed: it had no time to tell."""
    return int(process.command.split(";")[0].removeprefix("echo "))


def check(process: Process, order: int) -> None:
    if process.state is ProcessState.LOST:
        # Killed between the row and the shim: it never began, and never will.
        assert process.pid is None, process
    elif order % 3 == 2:
        assert process.state is ProcessState.RUNNING, process
        assert process.pid is not None
        assert start_of(process.pid) == process.identity.pid_start
    else:
        assert (process.state, process.exit_code) == (ProcessState.EXITED, order), process


@pytest.mark.slow
async def test_an_idle_server_never_holds_a_reset_and_a_busy_worker_only_until_its_limit(
    tmp_path: Path, figures: Tell
) -> None:
    """The field report's preview server, and a build beside it, as the guard of a reset sees them."""
    database = tmp_path / "agent.db"
    with cleaned_up(database):
        async with holdfast.open(f"sqlite:///{database}", settings=SETTINGS) as hf:
            session = await hf.session(key="telegram:dm:42", attached=False)
            server = [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]
            idle = await session.spawn(server, tmp_path)
            busy = await session.spawn("while :; do :; done")
            limits, now = hf.supervisor.limits, hf.store.now()

            async def holding() -> list[bool]:
                at = hf.store.now()
                return [hold_of(each, at, at, limits).holds for each in await session.processes()]

            async with asyncio.timeout(120):
                while await holding() != [True, False]:  # noqa: ASYNC110 - until the idle one has started
                    await asyncio.sleep(0.1)
            held = []
            for _ in range(20):
                await asyncio.sleep(0.1)
                held.append(await holding())
            assert held == [[True, False]] * 20
            now = hf.store.now()
            overdue = now - limits.max_block
            (worker, forgotten) = await session.processes()
            assert (worker.id, forgotten.id) == (busy.id, idle.id)
            assert not hold_of(worker, overdue, now, limits).holds
            assert "no connections" in hold_of(forgotten, now, now, limits).reason.message
            for process in (idle, busy):
                assert (await hf.supervisor.stop(None, process.id, "reset")).ended
    figures(
        "processes: an idle server held a reset in 0 of 20 looks, a busy worker in 20, past its limit in 0"
    )
