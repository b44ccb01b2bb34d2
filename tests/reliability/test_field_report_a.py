"""Field report A, replayed: a forgotten preview server kept a session from resetting for days, silently.

Two real `python3 -m http.server`s are started through the session and left running; idle two hours, daily at
six; days pass on a moved clock. The reset must come on time, stop both, and be explained at every moment
before.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import holdfast
from holdfast.app import Holdfast
from holdfast.domain.processes import BUSY_SECONDS, BUSY_SHARE, Process
from holdfast.domain.resets import Decision
from holdfast.domain.why import Why
from holdfast.os_support import running_processes, start_of
from holdfast.runtime.shutdown import SuspendSignal
from holdfast.store.sqlite.engine import SQLiteStore
from tests.contract.steps import Clock
from tests.reliability.conftest import Tell

BERLIN = ZoneInfo("Europe/Berlin")
BUSY = "import time; end = time.monotonic() + 300\nwhile time.monotonic() < end: pass"
"""A worker that ends by itself, should the test not get to stop it."""
KEY = "telegram:dm:42"
RESET = {"mode": "both", "idle_minutes": 120, "at_hour": 6, "timezone": "Europe/Berlin"}
TICK = timedelta(minutes=1)


class Life:
    """A node whose loops stand still, so that a minute passes when the test says so."""

    def __init__(self, hf: Holdfast, clock: Clock) -> None:
        self.hf = hf
        self.clock = clock
        self.explained = 0

    async def minute(self) -> dict[str, str]:
        """A minute passes; returns what was reset in it."""
        self.clock.now += TICK
        for seen in self.hf.supervisor._seen.values():
            seen.noted = float("-inf")  # a minute ago, in the time of this clock
        await self.hf.supervisor.sample_once()
        return (await self.hf.sweeper.sweep_once()).reset.reset

    async def said(self, session: holdfast.LiveSession, text: str = "hello") -> None:
        async with session.turn(text) as turn:
            await turn.append("hi")

    async def why(self, session_id: str) -> Why:
        from holdfast.runtime.states import why_of

        self.explained += 1
        return await why_of(self.hf.store, self.hf.owner, session_id)

    def local(self) -> str:
        return f"{self.clock.now.astimezone(BERLIN):%m-%d %H:%M}"

    async def stopped(self, *processes: Process) -> list[Process]:
        """Carry out what was asked for; both must be gone from this machine."""
        async with asyncio.timeout(60):
            while True:
                await self.hf.supervisor.supervise_once()
                now = [await self.hf.store.process(None, each.id) for each in processes]
                if all(each.ended for each in now):
                    break
                await asyncio.sleep(0.1)
        for each in processes:
            assert each.pid is not None and start_of(each.pid) != each.identity.pid_start
        return now


@asynccontextmanager
async def living(tmp_path: Path, start: str, **settings: dict[str, Any]) -> AsyncIterator[Life]:
    given = {"reset": RESET, "processes": {"grace_seconds": 2}, **settings}
    hf = holdfast.open(f"sqlite:///{tmp_path / 'a.db'}", settings=given)
    hf._signals = SuspendSignal(nullcontext)  # leaves SIGTERM to the tests
    async with hf:
        await hf.sweeper.stop()
        await hf.supervisor.stop_loop()
        clock = Clock(datetime.fromisoformat(start).replace(tzinfo=BERLIN).astimezone(UTC))
        assert isinstance(hf.store, SQLiteStore)
        hf.store._clock = clock
        yield Life(hf, clock)
        for process in (await hf.store.processes(None, running=True)).items:
            await hf.supervisor.stop(None, process.id, "the test is over")


async def has_worked(process: Process, life: Life) -> None:
    """Wait until this process has been given enough CPU since the last look to be taken for busy, whatever
    else the machine is busy with."""
    seen = life.hf.supervisor._seen.get(process.id)
    assert process.pid is not None
    async with asyncio.timeout(120):
        while True:
            await asyncio.sleep(0.01)
            if seen is None:
                return
            passed = time.monotonic() - seen.sample.at
            used = running_processes()[process.pid].cpu_seconds - seen.sample.cpu_seconds
            if used >= max(BUSY_SECONDS, BUSY_SHARE * passed):
                return


def free_ports(number: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports


async def previews(session: holdfast.LiveSession, directory: Path) -> list[Process]:
    """Two preview servers that listen."""
    (directory / "index.html").write_text("a page")
    ports = free_ports(2)
    started = [
        await session.spawn(f"{sys.executable} -m http.server {port} --bind 127.0.0.1", directory)
        for port in ports
    ]
    for port in ports:
        async with asyncio.timeout(60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                    continue
                writer.close()
                break
    return started


@pytest.mark.slow
async def test_silence_resets_on_time_and_stops_what_was_forgotten(tmp_path: Path, figures: Tell) -> None:
    async with living(tmp_path, "2026-11-02 20:00") as life:
        session = await life.hf.session(KEY, attached=False)
        await life.said(session, "preview these pages")
        servers = await previews(session, tmp_path)
        await life.said(session, "thanks")
        first = session.id
        for minute in range(1, 120):
            assert await life.minute() == {}, life.local()
            if minute % 10 == 0:
                why = await life.why(first)
                assert why.decision is Decision.NOT_DUE
                rule = "(idle 120 min, from [reset])"
                assert why.sentence.startswith(
                    f"{KEY} has been idle since 20:00 and will be reset at 22:00 {rule}. "
                ), why.sentence
                assert why.sentence.count("http.server") == 2
                assert why.sentence.count("no connections) does not delay it; it will be stopped.") == 2
        assert await life.minute() == {first: "idle"}
        assert life.local() == "11-02 22:00"
        assert [each.state.value for each in await life.stopped(*servers)] == ["stopped", "stopped"]
        (notice,) = (await life.hf.store.notices(None)).items
        assert notice.text.count("http.server") == 2 and "Stopped:" in notice.text
        for _ in range(36 * 60 // 30):  # the 36 hours of the report
            life.clock.now += timedelta(minutes=29)
            assert await life.minute() == {}
        assert len((await life.hf.store.notices(None)).items) == 1, "missed days are no more resets"
        await life.said(session, "hello again")
        assert session.id != first
        assert [each["content"] for each in await session.context()] == ["hello again", "hi"]
        figures(f"field report A, silence: reset on the minute; {life.explained} moments explained")


@pytest.mark.slow
async def test_somebody_who_speaks_all_day_is_reset_once_a_day_at_six(tmp_path: Path, figures: Tell) -> None:
    async with living(tmp_path, "2026-11-02 20:00") as life:
        session = await life.hf.session(KEY, attached=False)
        resets: list[str] = []
        servers: list[Process] = []
        for minute in range(3 * 24 * 60):
            if minute % 90 == 0:  # never two hours of silence
                await life.said(session)
                if not servers:
                    servers = await previews(session, tmp_path)
            if minute % 300 == 137:  # never between a reset and the next message
                why = await life.why(session.id)
                assert why.decision is Decision.NOT_DUE
                assert why.reasons[0].code in ("idle", "daily")
                assert why.sentence.count("does not delay it; it will be stopped.") == 2, why.sentence
            if minute % 30 == 29 or life.local().endswith(("05:59", "06:00")):
                done = await life.minute()
            else:
                life.clock.now += TICK
                continue
            for reason in done.values():
                resets.append(f"{life.local()} {reason}")
                await life.stopped(*servers)
                servers = []
        assert resets == ["11-03 06:00 daily", "11-04 06:00 daily", "11-05 06:00 daily"]
        figures(f"field report A, talk: daily on the minute, 3 of 3; {life.explained} moments explained")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_busy_build_defers_is_named_and_is_not_waited_for_longer_than_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    seen_busy = {
        "active_window_seconds": 600,
        "grace_seconds": 2,
    }  # the machine may be busy with other things
    async with living(tmp_path, "2026-11-02 20:00", processes=seen_busy) as life:
        session = await life.hf.session(KEY, attached=False)
        await life.said(session)
        build = await session.spawn([sys.executable, "-c", BUSY])
        first = session.id
        deferred = 0
        for minute in range(1, 4 * 60):
            if minute % 5 == 1:  # half the window in which it counts as active
                await has_worked(build, life)
            assert await life.minute() == {}, life.local()
            if minute >= 120 and minute % 20 == 0:
                why = await life.why(first)
                assert why.decision is Decision.DEFERRED
                assert f"(pid {build.pid}) may delay it until Tue 00:00: it used the CPU" in why.sentence
                deferred += 1
        assert deferred == 6
        assert await life.minute() == {first: "idle"}, "two hours of holding it are the longest"
        await life.stopped(build)
        events = [event.type for event in await life.hf.store.history(None, first)]
        assert events.count("session.reset_deferred") == 1
        lines = [record.getMessage() for record in caplog.records if "deferred" in record.getMessage()]
        assert len(lines) == 1 and f"pid {build.pid}" in lines[0] and "until Tue 00:00" in lines[0]


@pytest.mark.slow
async def test_a_pinned_server_holds_until_then_and_survives_where_processes_are_kept(tmp_path: Path) -> None:
    async with living(tmp_path, "2026-11-02 12:00", processes={"on_reset": "keep"}) as life:
        session = await life.hf.session(KEY, attached=False)
        await life.said(session)
        server = (await previews(session, tmp_path))[0]
        await life.hf.store.pin_process(None, server.id, life.clock.now + timedelta(hours=5))
        first = session.id
        life.clock.now += timedelta(hours=4, minutes=58)
        assert await life.minute() == {}
        why = await life.why(first)
        assert why.decision is Decision.DEFERRED
        assert "is pinned until 17:00." in why.sentence
        assert await life.minute() == {first: "idle"}
        await life.hf.supervisor.supervise_once()
        running = [each.id for each in await session.processes(running=True)]
        assert server.id in running and len(running) == 2
        (notice,) = (await life.hf.store.notices(None)).items
        assert "Left running:" in notice.text and "Stopped:" not in notice.text
        await life.said(session, "is it still there?")
        assert server.id in [each.id for each in await session.processes(running=True)]
