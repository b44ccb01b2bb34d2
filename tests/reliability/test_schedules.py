"""PostgreSQL: two writes interleave at every statement; the result equals one of the two serial orders."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import pytest

from holdfast.domain.nodes import Node
from holdfast.domain.turns import TurnStatus
from holdfast.store import nodes
from holdfast.store.postgres.engine import PostgresStore, open_store
from holdfast.store.postgres.statements import statement
from holdfast.store.queries import load
from holdfast.store.resolve import session_of
from holdfast.store.sessions import write_end
from holdfast.store.transaction import Q, Transaction
from holdfast.store.turn_ends import end_without_answer
from tests.contract import test_notices as notices
from tests.contract import test_processes as processes
from tests.contract.steps import Clock, new_node
from tests.postgres_gate import patient_locks

from .conftest import Tell
from .schedules import ACTS, SCENES, combinations, stage
from .sizes import Size, short_and_soak

pytestmark = pytest.mark.postgres

CERTAIN = (
    ("resting", "leave", "begin"),
    ("running", "leave", "interrupt"),
    ("resting", "begin a new key", "begin a new key"),
)
"""Run first, however short it is: these went wrong once."""


@short_and_soak(Size("sample", 3, 15.0), Size("every pair", len(SCENES) * len(ACTS) ** 2))
async def test_two_writes_that_meet_are_as_if_one_came_after_the_other(
    new_database: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    size: Size,
    figures: Tell,
) -> None:
    patient_locks(monkeypatch)
    began = time.monotonic()
    async with stage(new_database()) as staged:
        pairs = (*CERTAIN, *combinations(seed))
        for _, pair in zip(size.rounds(), pairs, strict=False):
            await staged.both(*pair)
            assert len(staged.tally.violations) < 20, staged.tally.violations
    tally = staged.tally
    figures(
        f"schedules, {size}: {tally.pairs:,} pairs of writes, {tally.schedules:,} schedules in "
        f"{time.monotonic() - began:.0f} s, {len(tally.violations)} violations"
    )
    assert tally.violations == []


# --- deliberate breakages ----------------------------------------------------------------------------------


def put_in(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break this process on purpose, in a way that was once taken for right."""
    statements = load("holdfast.store.postgres")
    if mutant == "leave-decides-before-lock":
        monkeypatch.setattr(nodes, "leave", _leave_by_what_was_read_before)
    elif mutant == "hostname-is-identity":
        careful = statements["unended_processes"]
        columns = careful[: careful.index("FROM")]
        monkeypatch.setitem(
            statements,
            "unended_processes",
            f"{columns} FROM processes WHERE ended_at IS NULL "
            "AND (host = (SELECT host FROM nodes LIMIT 1) OR boot_id = :boot_id OR machine = :machine) "
            "ORDER BY no",
        )
    elif mutant == "notices-told-by-time":
        by_time = "created_at <= (SELECT started_at FROM turns WHERE id = :turn)"
        careful = statements["tell_notices"]
        monkeypatch.setitem(statements, "tell_notices", careful.replace("given_to = :turn", by_time))
        assert statements["tell_notices"] != careful
    statement.cache_clear()


def _leave_by_what_was_read_before(tx: Transaction, node_id: str, reason: str) -> None:
    for _, turn_id in tx.all(Q.held_by, node=node_id):
        end_without_answer(tx, turn_id, TurnStatus.INTERRUPTED, why="its node left")
    for (session_id,) in tx.all(Q.attached_to, node=node_id):
        write_end(tx, session_of(tx, None, session_id), reason)
    if tx.one(Q.leave_node, id=node_id, now=tx.now) is not None:
        nodes.settle_node(tx, node_id)


@pytest.fixture
def statements_as_they_are() -> Iterator[None]:
    """Statements that a test has changed are read again after it."""
    yield
    statement.cache_clear()


Check = Callable[[PostgresStore, Node], Awaitable[None]]
CHECKS: dict[str, Check] = {
    "hostname-is-identity": processes.test_a_machine_is_asked_for_by_its_id_or_its_boot_never_by_its_name,
    "notices-told-by-time": lambda store, node: (
        notices.test_a_reply_marks_only_those_notices_told_that_its_turn_was_given(store)
    ),
}


@pytest.mark.parametrize("broken", [True, False])
async def test_a_node_that_leaves_by_what_it_read_before_is_noticed(
    new_database: Callable[..., str],
    statements_as_they_are: None,
    monkeypatch: pytest.MonkeyPatch,
    broken: bool,
) -> None:
    patient_locks(monkeypatch)
    if broken:
        put_in("leave-decides-before-lock", monkeypatch)
    async with stage(new_database()) as staged:
        await staged.both("resting", "leave", "begin")
    assert bool(staged.tally.violations) is broken


@pytest.mark.parametrize("mutant", CHECKS)
async def test_what_was_once_taken_for_right_is_noticed(
    new_database: Callable[..., str],
    statements_as_they_are: None,
    monkeypatch: pytest.MonkeyPatch,
    mutant: str,
) -> None:
    put_in(mutant, monkeypatch)
    store = await open_store(new_database(), clock=Clock(datetime(2026, 3, 1, 12, tzinfo=UTC)))
    try:
        with pytest.raises(AssertionError):
            await CHECKS[mutant](store, await new_node(store))
    finally:
        await store.close()
