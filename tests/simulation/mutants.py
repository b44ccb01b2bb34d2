"""Deliberate faults, to prove that the simulation detects them. They exist only here.

Each is a mistake made in the field, patched into holdfast for the length of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from holdfast.domain import processes
from holdfast.domain.nodes import Node
from holdfast.domain.resets import Blocker
from holdfast.domain.turns import TurnOutcome, TurnRequest
from holdfast.runtime.agents import flusher, queue_runner, reaper
from holdfast.runtime.tools import toolbox
from holdfast.store import nodes, resets, turns
from holdfast.store.engine import writes
from holdfast.store.sqlite.engine import SQLiteStore
from holdfast.store.sqlite.transaction import STATEMENTS, SQLiteTransaction
from holdfast.store.transaction import Q, Transaction

Put = Callable[[Any, str, Any], None]


def no_fencing(put: Put) -> None:
    """Who once had the lease may write for ever."""
    for name in ("number_messages", "release_lease", "insert_draft", "holds_lease"):
        put(STATEMENTS, name, STATEMENTS[name].replace("AND token = :token AND holder = :node", ""))


def reaping_by_wall_clock(put: Put) -> None:
    """Whose heartbeat is older than the limit is dead."""

    def hung(self: reaper.Reaper, others: list[Node]) -> dict[str, int]:
        if self._watch is None:
            return {}
        oldest = self._store.now() - timedelta(seconds=self._watch.stale_seconds)
        return {node.id: node.beat for node in others if node.heartbeat_at and node.heartbeat_at < oldest}

    put(reaper.Reaper, "_hung", hung)


def flushed_set_in_memory(put: Put) -> None:
    """Which sessions were flushed is known to the process that did it, and forgotten with it."""
    start = flusher.Flusher.start

    def forgetful(self: flusher.Flusher) -> None:
        store = self._store
        assert isinstance(store, SQLiteStore)

        def forget(tx: Transaction) -> None:
            assert isinstance(tx, SQLiteTransaction)
            tx.connection.execute("DELETE FROM memories")
            again = "state = 'pending', next_attempt_at = 0, settled_at = NULL"
            tx.connection.execute(f"UPDATE flushes SET {again} WHERE state = 'done'")

        task = asyncio.get_running_loop().create_task(store._write(forget))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        start(self)

    put(flusher.Flusher, "start", forgetful)


def no_tip_resolution(put: Put) -> None:
    """A session's id leads to that session, however the conversation has gone on."""
    put(STATEMENTS, "place_by_session", STATEMENTS["place_by_session"].replace("s.id = c.tip", "s.id = :id"))


def recovery_counts_as_activity(put: Put) -> None:
    """Who brings a conversation to rest says that somebody has just spoken in it."""
    free = nodes.settle_conversation

    def free_and_touch(tx: Transaction, conversation_id: str) -> bool:
        tip = _tip_of(tx, conversation_id)
        tx.run(Q.touch_session, id=tip, now=tx.now, model=None, input_tokens=0, output_tokens=0)
        return free(tx, conversation_id)

    put(SQLiteStore, "settle_conversation", writes(free_and_touch))


def _tip_of(tx: Transaction, conversation_id: str) -> str:
    row = tx.one(Q.conversation_by_id, id=conversation_id, owner=None)
    assert row is not None
    return str(row[5])


def reset_in_mid_turn(put: Put) -> None:
    """A session that is due is reset, whether or not somebody is being answered."""
    blockers = resets.blockers_of

    def fewer(*given: Any) -> list[Blocker]:
        return [each for each in blockers(*given) if each.reason.code != "turn"]

    put(resets, "blockers_of", fewer)


def processes_block_for_ever(put: Put) -> None:
    """Whatever a session has started holds its reset up for as long as it runs."""
    hold = processes.hold_of

    def holds(process: processes.Process, *given: Any) -> Blocker:
        return Blocker(hold(process, *given).reason, not process.ended)

    put(resets, "hold_of", holds)


def no_fencing_on_recovery(put: Put) -> None:
    """A server takes up what is due, and what has run for long, without asking whether another runs it."""
    begin = turns.begin
    long = "(due_at <= :now OR started_at < :now - 10000000)"
    is_due = "due_at IS NOT NULL AND (due_at <= :now OR ended_at > :now)"
    due = STATEMENTS["due_turns"].replace(is_due, long)
    put(STATEMENTS, "due_turns", due.replace("'interrupted',", "'interrupted', 'running',"))

    def claim(tx: Transaction, request: TurnRequest) -> TurnOutcome:
        if request.by_recovery:
            assert isinstance(tx, SQLiteTransaction)
            tx.connection.execute(
                "UPDATE conversations SET holder = NULL WHERE turn = ?", (request.resumes_turn,)
            )
            tx.connection.execute(
                "UPDATE turns SET status = 'interrupted', due_at = 0 WHERE id = ?", (request.resumes_turn,)
            )
        return begin(tx, request)

    put(turns, "begin", claim)


def attempts_counted_in_memory(put: Put) -> None:
    """How often a turn was tried is known to the process that did it, and forgotten with it."""
    for name in ("take_up_turn", "park_turn"):
        counted = STATEMENTS[name]
        for column in ("tries", "all_tries"):
            counted = counted.replace(f"{column} = {column} + 1", f"{column} = {column}")
            counted = counted.replace(f" {column} = :{column},", f" {column} = coalesce(1, :{column}),")
        put(STATEMENTS, name, counted)


def request_not_stored(put: Put) -> None:
    """Only the process that was asked knows with which options."""
    for name in ("insert_turn", "insert_queued_turn"):
        put(STATEMENTS, name, STATEMENTS[name].replace(":stored", "nullif(:stored, :stored)"))


def open_calls_run_again(put: Put) -> None:
    """A call without a result is run again by the server that takes its turn up."""

    async def outcome(self: toolbox.Toolbox, call: toolbox.ToolCall) -> str | None:
        return await self.run(call)

    put(toolbox.Toolbox, "outcome", outcome)


def cancelled_turns_are_taken_up(put: Put) -> None:
    """Who cancels a waiting turn is told that it was, and nothing else happens."""
    put(
        STATEMENTS,
        "end_waiting_turn",
        "UPDATE turns SET due_at = due_at WHERE id = :id "
        "AND (:status, :error, :why, :kept_until) IS NOT (1, 1, 1, 1)",
    )
    put(STATEMENTS, "release_waiting", "SELECT 1 WHERE :id || :turn IS NULL")


def queue_in_memory(put: Put) -> None:
    """Queued turns are known to the process that accepted them, and forgotten with it."""
    start = queue_runner.QueueRunner.start

    def forgetful(self: queue_runner.QueueRunner) -> None:
        store = self._store
        assert isinstance(store, SQLiteStore)
        own = self._own_node()

        def forget(tx: Transaction) -> None:
            assert isinstance(tx, SQLiteTransaction)
            lost = "SELECT id FROM turns WHERE status = 'queued' AND node <> ?"
            for (turn,) in list(tx.connection.execute(lost, (own,))):
                tx.connection.execute(
                    "UPDATE conversations SET queued = queued - 1 "
                    "WHERE id = (SELECT conversation FROM turns WHERE id = ?)",
                    (turn,),
                )
                tx.connection.execute("DELETE FROM turns WHERE id = ?", (turn,))

        task = asyncio.get_running_loop().create_task(store._write(forget))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        start(self)

    put(queue_runner.QueueRunner, "start", forgetful)


ALL: tuple[Callable[[Put], None], ...] = (
    no_fencing,
    reaping_by_wall_clock,
    flushed_set_in_memory,
    no_tip_resolution,
    recovery_counts_as_activity,
    reset_in_mid_turn,
    processes_block_for_ever,
    no_fencing_on_recovery,
    attempts_counted_in_memory,
    request_not_stored,
    open_calls_run_again,
    cancelled_turns_are_taken_up,
    queue_in_memory,
)


@contextmanager
def broken_by(mutant: Callable[[Put], None]) -> Iterator[None]:
    """holdfast with this mistake in it."""
    undo: list[tuple[Any, str, Any]] = []

    def put(where: Any, name: str, value: Any) -> None:
        if isinstance(where, dict):
            undo.append((where, name, where[name]))
            where[name] = value
        else:
            undo.append((where, name, getattr(where, name)))
            setattr(where, name, value)

    try:
        mutant(put)
        yield
    finally:
        for where, name, value in reversed(undo):
            if isinstance(where, dict):
                where[name] = value
            else:
                setattr(where, name, value)
