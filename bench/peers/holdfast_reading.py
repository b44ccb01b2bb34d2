"""holdfast, reading: contexts, stale ids, and stores with many sessions.

A context is read as joined bytes, never decoded. *Cold* is a store that was just opened. *Hot* is the node
that served the last turn, reading the context of the next one, which has one message more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import apsw
from holdfast_store import OWNER, Bench, facts, opened
from measure import Job, answer, conversation_bodies

from holdfast.domain.conversations import Address
from holdfast.domain.new_messages import new_message
from holdfast.runtime.agents.reaper import Reaper
from holdfast.runtime.agents.sweeper import Sweeper
from holdfast.store.sqlite.engine import open_store
from holdfast.store.values import SessionFilter

T = TypeVar("T")


async def history(job: Job) -> dict[str, Any]:
    expected = conversation_bodies(job.size)
    session_id = await long_session(job.path, expected)
    times = []
    if job.options.get("hot"):
        async with opened(job.path) as bench:
            context = await bench.store.context(OWNER, session_id)
            for number in range(job.runs):
                lease = await bench.begin(session_id, bench.bodies[number])
                took, context = await timed(bench.store.context(OWNER, session_id))
                times.append(took)
                await bench.store.commit_reply(lease, bench.bodies[:1])
    else:
        for _ in range(job.runs):
            async with opened(job.path) as bench:
                took, context = await timed(bench.store.context(OWNER, session_id))
                times.append(took)
    assert context.messages()[: job.size] == expected
    return {"ms": median(times) * 1e3, **facts(job.path)}


async def long_session(path: str, bodies: list[dict[str, str]]) -> str:
    """The session that holds these messages; the first round writes them."""
    async with opened(path) as bench:
        session = await bench.store.open_session(OWNER, Address(key="bench:long"), bench.node_id)
        if session.last_seq == 0:
            first, *rest = map(new_message, bodies)
            lease = await bench.begin(session.id, first)
            await bench.store.append(lease, rest[:-1])
            await bench.store.commit_reply(lease, rest[-1:])
        return session.id


async def timed(reading: Awaitable[T]) -> tuple[float, T]:
    since = time.perf_counter()
    result = await reading
    return time.perf_counter() - since, result


async def resolve(job: Job) -> dict[str, Any]:
    """A stale id in a short and in a long line of sessions, asked alternately."""
    async with opened(job.path) as bench:
        short, long = [await stale_id(bench, length) for length in job.options["lines"]]
        times: dict[str, list[float]] = {short: [], long: []}
        for _ in range(job.runs):
            for name, taken in times.items():
                took, place = await timed(bench.store.resolve(OWNER, Address(id=name)))
                taken.append(took)
                assert place.tip.id != name
        return {"short_ms": median(times[short]) * 1e3, "long_ms": median(times[long]) * 1e3}


async def stale_id(bench: Bench, length: int) -> str:
    """The first session of a line of that length; made if there is none."""
    address = Address(key=f"line:{length}")
    first = await bench.store.open_session(OWNER, address, bench.node_id)
    line = await bench.store.line(OWNER, first.conversation_id)
    tip = line[-1]
    for _ in range(length - len(line)):
        await bench.store.end_session(OWNER, tip.id, "closed")
        tip = await bench.store.open_session(OWNER, address, bench.node_id)
    return line[0].id


async def open_(job: Job) -> dict[str, Any]:
    """From nothing to the first resolved key: an empty store and one full of sessions, alternately; a page
    of the newest sessions; and a sweep with nothing due."""
    paths = {"empty": job.path, "full": f"{job.path}.full"}
    for name, path in paths.items():
        async with opened(path) as bench:
            made = await bench.sessions(1)
            page = await bench.store.sessions(SessionFilter(OWNER))
        if name == "full" and len(page.items) == len(made):
            fill(path, job.size)
    opening: dict[str, list[float]] = {name: [] for name in paths}
    listing: dict[str, list[float]] = {name: [] for name in paths}
    sweeping: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(job.runs):
        for name, path in paths.items():
            since = time.perf_counter()
            store = await open_store(Path(path))
            await store.resolve(OWNER, Address(key="bench:0", create=False))
            opening[name].append(time.perf_counter() - since)
            await store.sessions(SessionFilter(OWNER))
            took, page = await timed(store.sessions(SessionFilter(OWNER)))
            listing[name].append(took)
            assert page.has_more == (name == "full")
            sweeper = Sweeper(Reaper(store, own_node=lambda: None), 5)
            await sweeper.sweep_once()
            took, swept = await timed(sweeper.sweep_once())
            sweeping[name].append(took)
            assert not swept.anything
            await store.close()
    return {
        **{f"{name}_ms": median(taken) * 1e3 for name, taken in opening.items()},
        **{f"{name}_page_ms": median(taken) * 1e3 for name, taken in listing.items()},
        **{f"{name}_sweep_ms": median(taken) * 1e3 for name, taken in sweeping.items()},
    }


def fill(path: str, sessions: int) -> None:
    """Write that many sessions, in lines of four, past the store: through it this would take minutes."""
    connection = apsw.Connection(path)
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -200000"):
        connection.execute(f"PRAGMA {pragma}")
    with connection:
        connection.execute(
            """
            WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :lines)
            INSERT INTO conversations (id, owner, key, source, tip, created_at)
            SELECT printf('conv_%032x', i), :owner, printf('full:%d', i), 'bench',
                   printf('sess_%030x04', i), i FROM n
            """,
            {"lines": sessions // 4, "owner": OWNER},
        )
        connection.execute(
            """
            WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < :sessions - 1)
            INSERT INTO sessions (id, conversation, owner, ordinal, edge, source, attached, opened_at,
                                  last_activity_at, ended_at, end_reason, first_seq, last_seq, view)
            SELECT printf('sess_%030x%02x', i / 4 + 1, i % 4 + 1), printf('conv_%032x', i / 4 + 1), :owner,
                   i % 4 + 1, iif(i % 4 = 0, NULL, 'reset'), 'bench', 0, i, i,
                   iif(i % 4 = 3, NULL, i), iif(i % 4 = 3, NULL, 'new'), 1, iif(i % 4 = 3, NULL, 0),
                   '[{"first":1,"last":null}]' FROM n
            """,
            {"sessions": sessions, "owner": OWNER},
        )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


if __name__ == "__main__":
    job = Job.from_argv()
    answer(asyncio.run({"history": history, "resolve": resolve, "open": open_}[job.case](job)))
