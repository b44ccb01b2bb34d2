"""The resetter: bounded passes, rows that fail alone, and whose policies date what."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Holdfast
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.resets import NEVER, ResetPolicies, Verdict
from holdfast.errors import StoreClosed
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.agents.resetter import AGAIN_SECONDS, BATCH, DATED_AT_ONCE, RescheduleMode, Resetter
from holdfast.runtime.agents.sweeper import Sweeper
from holdfast.settings import load
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.wiring import reschedule_mode_of
from tests.contract.steps import POLICIES, Clock, begin, new_node, say


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    store = await open_store(tmp_path / "store.db", clock=clock, policies=POLICIES)
    yield store
    assert await store.check() == []
    await store.close()


@pytest.fixture
async def node(store: SQLiteStore) -> Node:
    return await new_node(store)


async def quiet(store: SQLiteStore, node: Node, number: int) -> list[str]:
    return [(await say(store, node, key=f"idle:{each}")).session.id for each in range(number)]


async def test_a_pass_resets_what_is_due_and_tells_what_it_put_off(
    store: SQLiteStore, node: Node, clock: Clock
) -> None:
    due = await quiet(store, node, 3)
    held = (await begin(store, node, key="idle:held")).session.id
    await say(store, node, key="cli:never")
    clock.move(hours=2)
    done = await Resetter(store).reset_once()
    assert (done.reset, done.deferred, done.more) == (dict.fromkeys(due, "idle"), [held], False)
    again = await Resetter(store).reset_once()
    assert not again.anything


async def test_a_pass_is_bounded_and_the_next_goes_on(
    store: SQLiteStore, node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.agents.resetter.BATCH", 4)
    await quiet(store, node, 10)
    clock.move(hours=2)
    resetter = Resetter(store)
    passes = [await resetter.reset_once() for _ in range(3)]
    assert [(len(done.reset), done.more) for done in passes] == [(4, True), (4, True), (2, False)]
    assert BATCH > 100


async def test_all_are_reset_pass_after_pass(
    store: SQLiteStore, node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.agents.resetter.BATCH", 4)
    due = await quiet(store, node, 10)
    clock.move(hours=2)
    assert set((await Resetter(store).reset_all()).reset) == set(due)


async def test_rows_fail_alone_and_are_tried_again_later(
    store: SQLiteStore,
    node: Node,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("holdfast.runtime.agents.resetter.BATCH", 2)
    due = await quiet(store, node, 5)
    clock.move(hours=2)
    reset = store.reset_session
    bad = set(due[:3])  # the longest due, more than a pass takes

    async def trouble(session_id: str) -> Verdict | None:
        if session_id in bad:
            raise ZeroDivisionError("what could not happen")
        return await reset(session_id)

    monkeypatch.setattr(store, "reset_session", trouble)
    seconds = 0.0
    resetter = Resetter(store, monotonic=lambda: seconds)
    told: list[str] = []
    for _ in range(4):
        done = await resetter.reset_once()
        told += [*done.reset]
    assert set(told) == set(due) - bad, "what is wrong with some does not keep the others from their reset"
    assert "could not be checked" in caplog.text
    bad = set()
    assert not (await resetter.reset_once()).anything
    seconds = AGAIN_SECONDS
    assert len((await resetter.reset_once()).reset) == 2


async def test_a_store_that_is_closed_ends_the_pass(store: SQLiteStore, node: Node, clock: Clock) -> None:
    other = await open_store(Path(store.location), clock=clock, policies=POLICIES)
    await other.close()
    with pytest.raises(StoreClosed):
        await Resetter(other).reset_once()


async def test_new_policies_date_sessions_a_few_at_a_time_and_say_so_once(
    store: SQLiteStore, node: Node, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store._policies = ResetPolicies(NEVER)
    opened = await quiet(store, node, DATED_AT_ONCE + 1)
    clock.move(hours=3)
    store._policies = POLICIES
    resetter = Resetter(store, RescheduleMode.ALWAYS)
    sweeper = Sweeper(Reaper(store, lambda: node.id), 1, None, resetter)
    assert not (await Resetter(store).reset_once()).anything
    first = await sweeper.sweep_once()
    assert (len(first.reset.reset), first.more) == (DATED_AT_ONCE, True)
    second = await sweeper.sweep_once()
    assert ({*first.reset.reset, *second.reset.reset}, second.more) == (set(opened), False)
    await sweeper.sweep_once()
    assert [r.getMessage() for r in caplog.records if "policies have changed" in r.getMessage()] == [
        f"the reset policies have changed: {DATED_AT_ONCE + 1} open sessions were rescheduled"
    ]


@pytest.mark.parametrize(
    ("dating", "rounds"),
    [(RescheduleMode.NEVER, [0, 0]), (RescheduleMode.ONCE, [3, 0]), (RescheduleMode.ALWAYS, [3, 3])],
)
async def test_who_dates_what_others_have_dated(
    store: SQLiteStore, node: Node, dating: RescheduleMode, rounds: list[int]
) -> None:
    resetter = Resetter(store, dating)
    dated = []
    for _ in rounds:
        store._policies = ResetPolicies(NEVER)
        opened = await quiet(store, node, 3)
        store._policies = POLICIES
        await resetter.date_once()
        dates = [(await store.session(None, each)).next_due_at for each in opened]
        dated.append(sum(each is not None for each in dates))
        for each in opened:
            await store.end_session(None, each, "closed")
    assert dated == rounds


IDLE = {"reset": {"mode": "idle"}}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (NodeKind.SERVER, IDLE, RescheduleMode.ALWAYS),
        (NodeKind.SERVER, {}, RescheduleMode.ALWAYS),
        (NodeKind.LIBRARY, IDLE, RescheduleMode.ONCE),
        (NodeKind.LIBRARY, {}, RescheduleMode.NEVER),
        (NodeKind.CLI, IDLE, RescheduleMode.NEVER),
    ],
)
def test_whose_policies_count(
    tmp_path: Path, kind: NodeKind, given: dict[str, Any], expected: RescheduleMode
) -> None:
    assert (
        reschedule_mode_of(load(environment={"HOLDFAST_HOME": str(tmp_path)}, given=given), kind) is expected
    )


async def test_a_program_without_policies_does_not_undo_those_of_a_server(tmp_path: Path) -> None:
    def settings(**given: Any) -> Any:
        given["store"] = {"url": f"sqlite:///{tmp_path / 'store.db'}"}
        return load(environment={"HOLDFAST_HOME": str(tmp_path)}, given=given)

    async with Holdfast(settings(**IDLE), kind=NodeKind.SERVER, catch_signals=False) as server:
        session = await server.session("k", attached=False)
        async with Holdfast(settings(), catch_signals=False) as program:
            await program.sweeper.sweep_once()
            other = await program.session("p", attached=False)
            assert (await server.store.session(None, session.id)).next_due_at is not None
            await server.sweeper.sweep_once()
            assert (await server.store.session(None, other.id)).next_due_at is not None, "the server dates it"


async def test_a_sweep_that_fails_in_a_way_nobody_thought_of_is_tried_again(
    store: SQLiteStore, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio

    passes = asyncio.Queue[None]()

    class Broken(Resetter):
        async def date_once(self) -> bool:
            passes.put_nowait(None)
            raise ZeroDivisionError

    sweeper = Sweeper(Reaper(store, lambda: node.id), 0.01, None, Broken(store))
    sweeper.start()
    for _ in range(3):
        await asyncio.wait_for(passes.get(), 60)
    await sweeper.stop()
    assert "cannot sweep" in caplog.text
