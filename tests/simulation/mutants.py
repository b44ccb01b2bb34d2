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
from holdfast.runtime.agents import flusher, reaper
from holdfast.store import nodes, resets, sessions
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
    free = sessions.free_left_behind

    def free_and_touch(tx: Transaction, conversation_id: str) -> bool:
        tip = _tip_of(tx, conversation_id)
        tx.run(Q.touch_session, id=tip, now=tx.now, model=None, input_tokens=0, output_tokens=0)
        return free(tx, conversation_id)

    put(nodes, "free_left_behind", free_and_touch)


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


ALL: tuple[Callable[[Put], None], ...] = (
    no_fencing,
    reaping_by_wall_clock,
    flushed_set_in_memory,
    no_tip_resolution,
    recovery_counts_as_activity,
    reset_in_mid_turn,
    processes_block_for_ever,
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
