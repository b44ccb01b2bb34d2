"""holdfast, writing: the methods of its `Store`, with the search index updated as on a running node.

Every writer has its own conversation. `append` appends under the lease of a begun turn. `turn` is the store's
cost of a request: `begin_turn` with an idempotency key, then `commit_reply`. For `begin` all writers begin
together and their replies are committed outside the measured time, because only an idle conversation can
begin a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import apsw
from bare_postgres import facts as postgres_facts
from bare_sqlite import commit_one, open_connection, open_conversations
from measure import Job, answer, message_bodies, percentile, write_by_tasks

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.messages import NewMessage
from holdfast.domain.new_messages import new_message
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import Lease, TurnBegun, TurnRequest
from holdfast.os_support import identity
from holdfast.store.postgres.connections import DatabaseAddress as Where
from holdfast.store.postgres.connections import connect as connect_to
from holdfast.store.postgres.engine import open_store as open_postgres
from holdfast.store.sqlite.connections import connect
from holdfast.store.sqlite.engine import open_store as open_sqlite
from holdfast.store.store import Store

OWNER = "bench"
ROUTE = "bench"
IN_TURN = 20


class Bench:
    """An open store, the node that acts on it, and messages to say."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.node_id = new_id("node")
        self.bodies = [new_message(body) for body in message_bodies(500)]

    def body(self, writer: int, number: int) -> NewMessage:
        return self.bodies[(writer * 7 + number) % len(self.bodies)]

    async def sessions(self, count: int, name: str = "bench") -> list[str]:
        """New conversations, each with an open session."""
        opened = [
            self.store.open_session(OWNER, Address(key=f"{name}:{number}"), self.node_id)
            for number in range(count)
        ]
        return [session.id for session in await asyncio.gather(*opened)]

    async def begin(self, session_id: str, *messages: NewMessage) -> Lease:
        turn_id = new_id("turn")
        request = TurnRequest(
            turn_id=turn_id,
            owner=OWNER,
            node_id=self.node_id,
            address=Address(id=session_id),
            messages=messages,
            request_key=RequestKey(ROUTE, turn_id, b"0" * 32),
        )
        outcome = await self.store.begin_turn(request)
        assert isinstance(outcome, TurnBegun), outcome
        return outcome.lease


def is_postgres(path: str) -> bool:
    return path.startswith("postgresql://")


async def open_store(path: str, **how: Any) -> Store:
    """A file, or the database of a URL."""
    return await (open_postgres(path, **how) if is_postgres(path) else open_sqlite(Path(path), **how))


@asynccontextmanager
async def opened(path: str) -> AsyncIterator[Bench]:
    """A store with a node on it, in use as it would be in a server."""
    bench = Bench(await open_store(path))
    try:
        await bench.store.join(Node(bench.node_id, NodeKind.LIBRARY, identity()))
        yield bench
        await bench.store.leave(bench.node_id, "closed")
    finally:
        await bench.store.close()


async def append(job: Job) -> dict[str, Any]:
    async with opened(job.path) as bench:
        leases = [await bench.begin(name, bench.bodies[0]) for name in await bench.sessions(job.writers)]
        bench.store.start_indexing()

        async def append_one(writer: int, number: int) -> None:
            await bench.store.append(leases[writer], (bench.body(writer, number),))

        figures = await write_by_tasks(job, append_one)
        lag = await index_lag(bench.store)
        stored = (await bench.store.statistics(OWNER)).messages - len(leases)
        return {**figures, **facts(job.path), **lag, "stored": stored}


async def single(job: Job) -> dict[str, Any]:
    """One writer, a few appends and a few bare commits in turn: a disk changes its pace within seconds, and
    only what is measured at the same pace can be compared."""
    connection, _ = open_connection(f"{job.path}.bare")
    (conversation,) = open_conversations(connection, 1)
    cursor, ours, bare = connection.cursor(), list[float](), list[float]()
    async with opened(job.path) as bench:
        (session_id,) = await bench.sessions(1)
        lease = await bench.begin(session_id, bench.bodies[0])
        bench.store.start_indexing()
        end = time.perf_counter() + job.seconds
        while time.perf_counter() < end:
            for number in range(IN_TURN):
                since = time.perf_counter()
                await bench.store.append(lease, (bench.body(0, number),))
                ours.append(time.perf_counter() - since)
            for number in range(IN_TURN):
                since = time.perf_counter()
                commit_one(cursor, conversation, bench.body(0, number).body)
                bare.append(time.perf_counter() - since)
    connection.close()
    return {"p50_ms": median(ours) * 1e3, "bare_p50_ms": median(bare) * 1e3}


async def turn(job: Job) -> dict[str, Any]:
    async with opened(job.path) as bench:
        sessions = await bench.sessions(job.writers, job.options.get("name", "bench"))
        bench.store.start_indexing()

        async def one_turn(writer: int, number: int) -> None:
            lease = await bench.begin(sessions[writer], bench.body(writer, number))
            await bench.store.commit_reply(lease, (bench.body(writer, number + 1),))

        figures = await write_by_tasks(job, one_turn)
        stored = (await bench.store.statistics(OWNER)).messages // 2
        return {**figures, **facts(job.path), "stored": stored}


async def begin(job: Job) -> dict[str, Any]:
    async with opened(job.path) as bench:
        sessions = await bench.sessions(job.writers)
        bench.store.start_indexing()
        spent, number, waits = 0.0, 0, list[float]()

        async def begin_one(writer: int) -> Lease:
            since = time.perf_counter()
            lease = await bench.begin(sessions[writer], bench.body(writer, number))
            waits.append(time.perf_counter() - since)
            return lease

        while spent < job.seconds:
            since = time.perf_counter()
            leases = await asyncio.gather(*map(begin_one, range(job.writers)))
            spent += time.perf_counter() - since
            await asyncio.gather(*(bench.store.commit_reply(lease, (bench.bodies[0],)) for lease in leases))
            number += 1
        waits.sort()
        return {
            "per_second": len(waits) / spent,
            "p50_ms": percentile(waits, 0.50) * 1e3,
            "p99_ms": percentile(waits, 0.99) * 1e3,
            "acknowledged": len(waits),
            "stored": (await bench.store.statistics(OWNER)).messages // 2,
            **facts(job.path),
        }


async def index_lag(store: Store) -> dict[str, float]:
    """How far the search index is behind, and how long it takes to catch up once nobody writes."""
    since = time.perf_counter()
    lag = left = (await store.figures()).unindexed or 0
    while left:
        left = (await store.figures()).unindexed or 0
    return {"index_lag": lag, "index_drain_ms": (time.perf_counter() - since) * 1e3}


def facts(path: str) -> dict[str, Any]:
    """Asked of a connection opened exactly as the writer's."""
    if is_postgres(path):
        with connect_to(Where.parse(path)) as server:
            return {"set_at": "holdfast's own connect()", **postgres_facts(server)}
    connection = connect(Path(path))
    full = connection.execute("PRAGMA synchronous").get
    connection.close()
    return {
        "synchronous": full,
        "set_at": "holdfast's own connect()",
        "sqlite": apsw.sqlite_lib_version(),
    }


if __name__ == "__main__":
    job = Job.from_argv()
    answer(asyncio.run({"append": append, "single": single, "begin": begin, "turn": turn}[job.case](job)))
