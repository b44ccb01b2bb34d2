"""holdfast on PostgreSQL, beside a store with a hundred times as many sessions: both must cost the same.

Every session is open and has a reset time; a hundred are due. Both databases are measured alternately, with
what every server runs each second (the reaper and the resetter) and with a dashboard query (a page of the
newest).
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from holdfast_reading import timed
from holdfast_store import OWNER, open_store
from holdfast_sweeping import DUE, IDLE, POLICIES, Clock
from measure import Job, answer

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Node, NodeKind
from holdfast.os_support import identity
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.agents.resetter import RescheduleMode, Resetter
from holdfast.runtime.agents.sweeper import Sweeper
from holdfast.store.postgres.connections import DatabaseAddress as Where
from holdfast.store.postgres.connections import connect
from holdfast.store.store import Store
from holdfast.store.values import SessionFilter

FILL = """
INSERT INTO conversations (id, owner, key, source, tip, created_at)
SELECT 'conv_' || lpad(to_hex(i), 32, '0'), %(owner)s, 'full:' || i, 'bench',
       'sess_' || lpad(to_hex(i), 32, '0'), i FROM generate_series(1, %(sessions)s) AS n (i);
INSERT INTO sessions (id, conversation, owner, ordinal, source, attached, opened_at, last_activity_at,
                      next_due_at, dated_by, first_seq, view)
SELECT 'sess_' || lpad(to_hex(i), 32, '0'), 'conv_' || lpad(to_hex(i), 32, '0'), %(owner)s, 1, 'bench', FALSE,
       i, i, %(later)s + i, %(stamp)s, 1, '[{"first":1,"last":null}]'
FROM generate_series(1, %(sessions)s) AS n (i);
"""


async def scale(job: Job) -> dict[str, Any]:
    sizes = {"few": (job.options["few_url"], job.options["few"]), "many": (job.path, job.size)}
    clock = Clock()
    stores: dict[str, Store] = {}
    for name, (url, size) in sizes.items():
        await (await open_store(url)).close()
        fill(url, size)
        stores[name] = await open_store(url, clock=clock, policies=POLICIES)
        # Every connection is made before anything is measured.
        await asyncio.gather(*(stores[name].sessions(SessionFilter(OWNER)) for _ in range(64)))
    took: dict[str, list[float]] = {}

    def note(name: str, what: str, seconds: float) -> None:
        took.setdefault(f"{name}_{what}_ms", []).append(seconds * 1e3)

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
            seconds, nothing = await timed(sweeper.sweep_once())
            assert not nothing.anything
            note(name, "idle", seconds)
            seconds, page = await timed(store.sessions(SessionFilter(OWNER)))
            assert page.has_more
            note(name, "page", seconds)
            clock.now += IDLE
            seconds, swept = await timed(sweeper.sweep_once())
            assert set(swept.reset.reset) == opened
            note(name, "due", seconds)
            await store.leave(node.id, "closed")
    for store in stores.values():
        await store.close()
    return {name: median(times) for name, times in took.items()}


def fill(url: str, sessions: int) -> None:
    """Write that many open sessions, due in a hundred years, past the store: it would take minutes."""
    later = int((datetime.now(UTC) + timedelta(days=36500)).timestamp() * 1e6)
    values = {"sessions": sessions, "owner": OWNER, "later": later, "stamp": POLICIES.stamp}
    with connect(Where.parse(url)) as connection:
        connection.execute("SET statement_timeout = 0")
        for statement in FILL.split(";\n")[:2]:
            connection.execute(statement, values)
        connection.execute("VACUUM ANALYZE")


if __name__ == "__main__":
    answer(asyncio.run(scale(Job.from_argv())))
