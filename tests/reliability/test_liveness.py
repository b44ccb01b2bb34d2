"""No session stays open by accident: agents are killed, stopped, blocked and signalled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.app import Holdfast
from holdfast.domain.sessions import SessionState
from holdfast.domain.turns import TurnStatus
from holdfast.runtime.agents.doctor import Doctor
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.agents.sweeper import Sweeper
from holdfast.runtime.states import states_of
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.values import SessionFilter
from tests import quiet_time

from .agents import QUICK_BEATS
from .conftest import Tell
from .sizes import Size, short_and_soak

AGENTS = Path(__file__).with_name("agents.py")
LIVING = 12
"""Programs that talk at the same time."""


class Agent:
    """A child process that tells line by line what it does."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(AGENTS), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hears(self, word: str) -> list[str]:
        """The rest of the next line that begins with `word`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, *rest = line.split()
            if first == word:
                return rest
        raise AssertionError(f"the agent ended ({self.process.wait()}) before it said {word!r}")

    def ask(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    async def stop_between_writes(self, database: Path) -> None:
        """SIGSTOP. A program that is stopped within a commit keeps SQLite's write lock, so nobody can write,
        not even to reap it: such a one is continued and stopped again."""
        with closing(apsw.Connection(str(database))) as other:
            other.set_busy_timeout(1000)  # the observer writes too, briefly
            for _ in range(50):
                self.process.send_signal(signal.SIGSTOP)
                try:
                    other.execute("BEGIN IMMEDIATE; ROLLBACK")
                    return
                except apsw.BusyError:
                    self.process.send_signal(signal.SIGCONT)
                    await asyncio.sleep(0.01)
        raise AssertionError("stopped 50 times, each time within a commit")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SQLiteStore]:
    store = await open_store(path)
    try:
        yield store
    finally:
        await store.close()


async def all_sessions(store: SQLiteStore) -> dict[str, str | None]:
    """Every session's key and end reason; the newest of a key wins."""
    page = await store.sessions(SessionFilter(None), limit=1000)
    return {session.key or session.id: session.end_reason for session in page.items}


@short_and_soak(Size("short", 60), Size("soak", 200))
@pytest.mark.timeout(900)
async def test_killed_programs_are_all_reaped_by_the_next_sweep_and_no_living_one_is_touched(
    tmp_path: Path, seed: int, size: Size, figures: Tell
) -> None:
    path, chance = tmp_path / "store.db", random.Random(seed)
    nursery = Agent("nursery", f"sqlite:///{path}")
    living: dict[int, int] = {}
    killed: list[int] = []
    try:
        for number in range(size.least + LIVING):
            nursery.ask(str(number))
            _, pid = nursery.hears("born")
            living[number] = int(pid)
            while len(living) > LIVING:
                victim = chance.choice(list(living)[:8])  # the newest are mostly not at work yet
                if victim % 3 == 0:
                    await _session_exists(path, f"cli:{victim}")  # at work, however slow the machine is
                await asyncio.sleep(chance.random() * 0.05)  # the others also while they are still starting
                os.kill(living.pop(victim), signal.SIGKILL)
                killed.append(victim)
        for number in sorted(living):
            await _session_exists(path, f"cli:{number}")
        began, quiet = time.monotonic(), quiet_time.now()
        async with opened(path) as store:
            await Sweeper(Reaper(store, lambda: None), 5).sweep_once()
            took, quiet = time.monotonic() - began, quiet_time.now() - quiet
            reasons = await all_sessions(store)
            ended = {number: reasons.get(f"cli:{number}", "never opened") for number in killed}
            assert set(ended.values()) <= {"reaped", "never opened"}, "every killed one is settled"
            assert sum(reason == "reaped" for reason in ended.values()) > size.least / 4, "many were at work"
            spared = [reasons[f"cli:{number}"] for number in living]
            assert spared == [None] * len(living), "no living one was touched"
            assert all(d.ok for d in await Doctor(store, Reaper(store, lambda: None)).examine())
            assert (await store.statistics(None)).open == len(living)
        assert quiet < 2
    finally:
        for process in living.values():
            os.kill(process, signal.SIGKILL)
        nursery.end()
    open_when_killed = sum(reason == "reaped" for reason in ended.values())
    figures(
        f"liveness: {len(killed)} programs killed with kill -9 ({open_when_killed} with an open session), "
        f"all settled {took:.2f} s after the sweep began, {len(living)} living untouched, leak rate 0 %"
    )


async def _session_exists(path: Path, key: str) -> None:
    async with opened(path) as store:
        deadline = time.monotonic() + 60
        while key not in await all_sessions(store):
            assert time.monotonic() < deadline, f"{key} never opened its session"
            await store.changed(store.version(), 0.5)


@asynccontextmanager
async def observer(path: Path) -> AsyncIterator[Holdfast]:
    """A node that sweeps with short limits, as a server would with its own."""
    async with holdfast.open(f"sqlite:///{path}", settings=QUICK_BEATS) as hf:
        yield hf


@pytest.mark.parametrize("takeover", [True, False], ids=["taken over", "left alone"])
async def test_a_stopped_program_writes_nothing_late_and_goes_on_by_itself(
    tmp_path: Path, takeover: bool, figures: Tell
) -> None:
    path = tmp_path / "store.db"
    async with observer(path) as hf:
        agent = Agent("stopped", f"sqlite:///{path}")
        try:
            (session_id,) = agent.hears("session")
            for _ in range(5):
                agent.hears("drafted")
            await agent.stop_between_writes(path)
            await _ended(hf, session_id, "reaped")
            before = await hf.store.messages(None, (await hf.store.session(None, session_id)).conversation_id)
            assert before.items[-1].status == "interrupted", "its draft is kept"
            if takeover:
                session = await hf.session(key="cli:stopped")
                async with session.turn("are you there?") as turn:
                    await turn.append("yes, in its place")
            agent.process.send_signal(signal.SIGCONT)
            agent.hears("lost")
            (continued,) = agent.hears("continued")
            after = await hf.store.messages(None, before.items[0].conversation_id)
            texts = [message.content()["content"] for message in after.items]
            middle = ["are you there?", "yes, in its place"] if takeover else []
            assert texts[2:] == [*middle, "go on", "Here I am again"], "0 late writes were stored"
            newest = await hf.store.session(None, continued)
            assert newest.id != session_id and newest.edge == "resume"
            turns = await hf.store.turns(None, newest.conversation_id)
            assert [turn.status for turn in turns][-1] is TurnStatus.INTERRUPTED
        finally:
            agent.end()
    how = "taken over" if takeover else "reaped"
    figures(f"liveness: stopped past the limit, {how}, continued: 0 late writes stored")


async def _ended(hf: Holdfast, session_id: str, reason: str) -> None:
    deadline = time.monotonic() + 60
    while (await hf.store.session(None, session_id)).end_reason != reason:
        assert time.monotonic() < deadline, f"{session_id} never ended as {reason}"
        await hf.store.changed(hf.store.version(), 0.5)


async def test_a_sync_program_blocked_ten_times_the_limit_commits_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with observer(path) as hf:
        agent = Agent("blocked", f"sqlite:///{path}", "6")
        try:
            await asyncio.to_thread(agent.hears, "thinking")
            (session_id,) = await asyncio.to_thread(agent.hears, "committed")
            page = await hf.store.messages(None, (await hf.store.session(None, session_id)).conversation_id)
            assert [message.content()["content"] for message in page.items] == ["think hard", "the answer"]
            assert not [event for event in await hf.store.events(owner=None) if event.type == "node.reaped"]
        finally:
            agent.end()


@pytest.mark.parametrize(
    ("program", "how", "number", "exit_code"),
    [
        ("waiting", "signal", signal.SIGTERM, 143),
        ("waiting", "signal", signal.SIGHUP, 129),
        ("waiting", "signal", signal.SIGINT, -signal.SIGINT),
        ("waiting", "exit", None, 3),
        ("waiting_sync", "signal", signal.SIGTERM, 143),
        ("waiting_sync", "signal", signal.SIGINT, -signal.SIGINT),
        ("waiting_sync", "forget", None, 0),
    ],
)
async def test_every_orderly_exit_interrupts_releases_and_ends(
    tmp_path: Path, program: str, how: str, number: signal.Signals | None, exit_code: int
) -> None:
    path = tmp_path / "store.db"
    agent = Agent(program, f"sqlite:///{path}", how)
    try:
        (session_id,) = agent.hears("session")
        if number is not None:
            agent.process.send_signal(number)
        assert agent.process.wait(60) == exit_code
    finally:
        agent.end()
    async with opened(path) as store:
        session = await store.session(None, session_id)
        assert session.end_reason == "closed"
        (turn,) = await store.turns(None, session.conversation_id)
        assert turn.status is TurnStatus.INTERRUPTED
        page = await store.messages(None, session.conversation_id)
        assert page.items[-1].content()["content"] == "I was say" and page.items[-1].status == "interrupted"
        assert await store.nodes() == [], "the node has left"
        assert not list((tmp_path / "store.db.nodes").iterdir()), "and so has its lock file"


async def test_a_killed_program_is_orphaned_at_once_for_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    agent = Agent("waiting", f"sqlite:///{path}", "signal")
    try:
        (session_id,) = agent.hears("session")
        async with opened(path) as store:
            session = await store.session(None, session_id)
            assert (await states_of(store, [session]))[session_id] is SessionState.ACTIVE
            agent.process.kill()
            agent.process.wait()
            assert (await states_of(store, [session]))[session_id] is SessionState.ORPHANED
    finally:
        agent.end()
