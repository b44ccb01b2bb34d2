"""PostgreSQL: two writes interleave at every statement; the result equals one of the two serial orders."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import pytest

from holdfast.domain.events import EventType
from holdfast.domain.nodes import Node
from holdfast.domain.turns import TurnStatus
from holdfast.store import memories, nodes
from holdfast.store.engine import writes
from holdfast.store.postgres.engine import PostgresStore, open_store
from holdfast.store.postgres.statements import statement
from holdfast.store.queries import load
from holdfast.store.resolve import session_of
from holdfast.store.rows import to_stamp
from holdfast.store.sessions import write_end
from holdfast.store.transaction import Q, Transaction
from holdfast.store.turn_ends import end_without_answer
from tests.contract import test_notices as notices
from tests.contract import test_processes as processes
from tests.contract.steps import Clock, new_node
from tests.postgres_gate import patient_locks

from .conftest import Tell
from .forkserver import ROOT, environment
from .schedules import MOST_VIOLATIONS, Tally, combinations, stage
from .sizes import Size, short_and_soak
from .writes import count_pairs

pytestmark = pytest.mark.postgres

CERTAIN = (
    ("resting", "leave", "begin"),
    ("running", "leave", "interrupt"),
    ("resting", "begin a new key", "begin a new key"),
    ("resting", "edit memory", "forget memory"),
    ("resting", "edit memory", "delete"),
    ("resting", "forget memory", "forget memory"),
    ("due", "skip flushes", "open"),
    ("resting", "begin", "leave"),
    ("resting", "begin with a request key", "begin with a request key"),
    ("connected", "take messages", "commit"),
    ("connected", "approve pairing", "revoke pairing"),
    ("connected", "claim deliveries", "delete"),
    ("connected", "deliver reply", "delete"),
    ("connected", "link another place", "unlink another place"),
    ("connected", "unlink another place", "unlink another place"),
    ("framework", "drop expired items", "renew item"),
    ("framework", "drop expired items", "drop expired items"),
    ("framework", "append with items", "delete item"),
    ("framework", "copy checkpoints", "delete runs"),
    ("framework", "delete", "delete runs"),
)
"""Run first, however short it is: these went wrong once."""


@short_and_soak(Size("sample", len(CERTAIN), 15.0), Size("every pair", count_pairs()))
async def test_two_writes_that_meet_are_as_if_one_came_after_the_other(
    new_database: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    size: Size,
    figures: Tell,
) -> None:
    began = time.monotonic()
    if size.name == "sample":
        patient_locks(monkeypatch)
        async with stage(new_database()) as staged:
            pairs = (*CERTAIN, *combinations(seed))
            for _, pair in zip(size.rounds(), pairs, strict=False):
                await staged.both(*pair)
                assert len(staged.tally.violations) < MOST_VIOLATIONS, staged.tally.violations
        tally = staged.tally
    else:
        parts = os.cpu_count() or 1
        urls = [new_database() for _ in range(parts)]
        tallies = await asyncio.gather(*(in_a_process(url, part, parts) for part, url in enumerate(urls)))
        tally = Tally(
            sum(each.pairs for each in tallies),
            sum(each.left_out for each in tallies),
            sum(each.schedules for each in tallies),
            [violation for each in tallies for violation in each.violations],
        )
    figures(
        f"schedules, {size}: {tally.pairs:,} pairs of writes ({tally.left_out:,} equal ones left out), "
        f"{tally.schedules:,} schedules in {time.monotonic() - began:.0f} s, "
        f"{len(tally.violations)} violations"
    )
    assert tally.violations == []


async def in_a_process(url: str, part: int, parts: int) -> Tally:
    """One part of all combinations, run by another process on a database of its own."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.reliability.schedules", url, str(part), str(parts)),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
    )
    told, _ = await started.communicate()
    assert started.returncode == 0
    return Tally(**json.loads(told.splitlines()[-1]))


# --- deliberate breakages ----------------------------------------------------------------------------------


def put_in(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break this process on purpose, in a way that was once taken for right."""
    statements = load("holdfast.store.postgres")
    if mutant == "leave-decides-before-lock":
        monkeypatch.setattr(nodes, "leave", _leave_by_what_was_read_before)
    elif mutant == "forgets-twice":
        monkeypatch.setattr(PostgresStore, "forget_memory", writes(_forget_what_was_there))
    elif mutant == "skips-flushes-first":
        monkeypatch.setattr(PostgresStore, "skip_flushes", writes(_skip_flushes_before_sessions))
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


def _forget_what_was_there(tx: Transaction, owner: str | None, memory_id: str) -> None:
    found = memories.memory_of(tx, owner, memory_id)
    tx.run(Q.forget_memory, id=memory_id, owner=owner)
    tx.event(
        EventType.MEMORY_FORGOTTEN, found.owner, found.conversation_id, found.session_id, memory=memory_id
    )


def _skip_flushes_before_sessions(
    tx: Transaction, owner: str | None, before: datetime, why: str, *, limit: int = 1000
) -> int:
    stamp = to_stamp(before)
    waiting = tx.all(Q.flushes_to_skip, owner=owner, before=stamp, limit=limit)
    for session_id, conversation_id, its_owner in waiting:
        tx.run(Q.skip_flush, session=session_id, error=why, now=tx.now)
        tx.event(EventType.FLUSH_SKIPPED, its_owner, conversation_id, session_id)
    still_open = tx.all(Q.sessions_to_skip, owner=owner, before=stamp, limit=limit)
    for session_id, _, last_seq in still_open:
        tx.run(Q.set_flushed_seq, session=session_id, seq=last_seq)
    return len(waiting) + len(still_open)


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


CAUGHT_BY = {
    "leave-decides-before-lock": ("resting", "leave", "begin"),
    "forgets-twice": ("resting", "forget memory", "forget memory"),
    "skips-flushes-first": ("due", "skip flushes", "open"),
}


@pytest.mark.parametrize("mutant", CAUGHT_BY)
async def test_a_method_that_went_wrong_once_is_noticed(
    new_database: Callable[..., str],
    statements_as_they_are: None,
    monkeypatch: pytest.MonkeyPatch,
    mutant: str,
) -> None:
    """The same pairs are in CERTAIN, so without the mutant they have no violation."""
    assert CAUGHT_BY[mutant] in CERTAIN
    patient_locks(monkeypatch)
    put_in(mutant, monkeypatch)
    async with stage(new_database()) as staged:
        await staged.both(*CAUGHT_BY[mutant])
    assert staged.tally.violations


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
