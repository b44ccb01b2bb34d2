"""holdfast, sweeping: sessions whose reset is due, among few others and among very many.

Every session is open and has a reset time; a hundred are due. Their cost must not depend on how many are not
due. Both stores are swept alternately, with what every server runs each second: the reaper and the resetter.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import apsw
from holdfast_reading import timed
from holdfast_store import OWNER
from measure import Job, answer

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.resets import ResetMode, ResetPolicies, ResetPolicy
from holdfast.os_support import identity
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.agents.resetter import RescheduleMode, Resetter
from holdfast.runtime.agents.sweeper import Sweeper
from holdfast.store.sqlite.engine import SQLiteStore, open_store

DUE = 100
IDLE = timedelta(hours=2)
POLICIES = ResetPolicies(ResetPolicy(ResetMode.IDLE, IDLE, timezone="UTC"))


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


async def sweep(job: Job) -> dict[str, Any]:
    sizes = {"few": job.options["few"], "many": job.size}
    clock = Clock()
    stores: dict[str, SQLiteStore] = {}
    for name, size in sizes.items():
        path = Path(f"{job.path}.{name}")
        await (await open_store(path)).close()
        fill(str(path), size)
        stores[name] = await open_store(path, clock=clock, policies=POLICIES)
    idle: dict[str, list[float]] = {name: [] for name in sizes}
    due: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(job.runs):
        for name, store in stores.items():
            node = Node(new_id("node"), NodeKind.SERVER, identity())
            await store.join(node)
            made = [store.open_session(OWNER, Address(key=new_id("due")), node.id) for _ in range(DUE)]
            opened = {session.id for session in await asyncio.gather(*made)}
            sweeper = Sweeper(
                Reaper(store, lambda own=node.id: own), 1, None, Resetter(store, RescheduleMode.ALWAYS)
            )
            await sweeper.sweep_once()
            took, nothing = await timed(sweeper.sweep_once())
            assert not nothing.anything
            idle[name].append(took)
            clock.now += IDLE
            took, swept = await timed(sweeper.sweep_once())
            assert set(swept.reset.reset) == opened
            due[name].append(took)
            await store.leave(node.id, "closed")
    for store in stores.values():
        await store.close()
    return {
        **{f"{name}_idle_ms": median(taken) * 1e3 for name, taken in idle.items()},
        **{f"{name}_due_ms": median(taken) * 1e3 for name, taken in due.items()},
    }


def fill(path: str, sessions: int) -> None:
    """Write that many open sessions, due in a hundred years, past the store: it would take minutes. Once."""
    connection = apsw.Connection(path)
    if connection.execute("SELECT 1 FROM conversations LIMIT 1").get:
        connection.close()
        return
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -200000"):
        connection.execute(f"PRAGMA {pragma}")
    later = int((datetime.now(UTC) + timedelta(days=36500)).timestamp() * 1e6)
    values = {"sessions": sessions, "owner": OWNER, "later": later, "stamp": POLICIES.stamp}
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :sessions)"
    with connection:
        connection.execute(
            f"""
            {numbers} INSERT INTO conversations (id, owner, key, source, tip, created_at)
            SELECT printf('conv_%032x', i), :owner, printf('full:%d', i), 'bench', printf('sess_%032x', i), i
            FROM n
            """,
            values,
        )
        connection.execute(
            f"""
            {numbers} INSERT INTO sessions (id, conversation, owner, ordinal, source, attached, opened_at,
                                  last_activity_at, next_due_at, dated_by, first_seq, view)
            SELECT printf('sess_%032x', i), printf('conv_%032x', i), :owner, 1, 'bench', 0, i, i,
                   :later + i, :stamp, 1, '[{{"first":1,"last":null}}]' FROM n
            """,
            values,
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


if __name__ == "__main__":
    answer(asyncio.run(sweep(Job.from_argv())))
