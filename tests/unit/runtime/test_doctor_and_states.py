"""The doctor's two living invariants, and reads that tell the truth before a sweep."""

from __future__ import annotations

from holdfast.domain.sessions import SessionState
from holdfast.runtime.agents.doctor import LIVING_HOLDERS, LIVING_OWNERS, Doctor
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.agents.sweeper import Sweeper
from holdfast.runtime.states import states_of
from holdfast.store.sqlite.engine import SQLiteStore

from .conftest import Joined, begin, kill


async def test_states_are_true_before_any_sweep(store: SQLiteStore, joined: Joined) -> None:
    living, dying = await joined(), await joined()
    busy = await begin(store, living, "a")
    idle = await begin(store, living, "b")
    await store.commit_reply(idle.lease)
    over = await begin(store, living, "c")
    await store.commit_reply(over.lease)
    await store.end_session(None, over.session.id, "closed")
    orphan = await begin(store, dying, "d")
    quiet_orphan = await begin(store, dying, "e")
    await store.commit_reply(quiet_orphan.lease)
    detached_orphan = await begin(store, dying, "f", attached=False)
    kill(store, dying)
    turns = [busy, idle, over, orphan, quiet_orphan, detached_orphan]
    sessions = [await store.session(None, turn.session.id) for turn in turns]
    states = await states_of(store, sessions)
    assert [states[session.id] for session in sessions] == [
        SessionState.ACTIVE,
        SessionState.IDLE,
        SessionState.ENDED,
        SessionState.ORPHANED,
        SessionState.ORPHANED,
        SessionState.ORPHANED,
    ]


async def test_the_doctor_names_orphans_and_repairs_them(store: SQLiteStore, joined: Joined) -> None:
    node = await joined()
    turn = await begin(store, node, "a")
    kill(store, node)
    doctor = Doctor(store, Reaper(store, lambda: None))
    broken = {d.invariant: d.finding for d in await doctor.examine() if d.finding}
    assert set(broken) == {LIVING_OWNERS, LIVING_HOLDERS}
    assert broken[LIVING_OWNERS].examples == [turn.session.id]
    done = await doctor.repair()
    assert "ended 1 sessions" in done[0] and "search index" in done[1]
    assert all(diagnosis.ok for diagnosis in await doctor.examine())


async def test_two_sweepers_do_each_thing_once(store: SQLiteStore, joined: Joined) -> None:
    import asyncio

    node = await joined()
    for number in range(20):
        await begin(store, node, f"k{number}")
    kill(store, node)
    sweepers = [Sweeper(Reaper(store, lambda: None), 5) for _ in range(4)]
    swept = await asyncio.gather(*(sweeper.sweep_once() for sweeper in sweepers))
    assert sum(len(one.reaped.conversations) for one in swept) == 20
    assert sum(len(one.reaped.sessions) for one in swept) == 20
    ended = [event for event in await store.events(owner=None) if event.type == "session.ended"]
    assert len(ended) == 20
