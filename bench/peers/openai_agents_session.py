"""openai-agents' SQLiteSession: one session object per writer over one file, tasks of one event loop.

`add_items` runs in a thread, takes a lock that all sessions of the file share, and commits one transaction.
Each session keeps a connection per thread it was called on, so a larger pool than asyncio's default was no
faster, and the default is used. Durability: the library never sets `synchronous`, so it is the interpreter's
default; it is set here in `_configure_connection`, which every connection passes through.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

from agents import SQLiteSession
from measure import Job, answer, conversation_bodies, median_ms_async, message_bodies, write_by_tasks

FACTS: dict[str, Any] = {"set_at": "SQLiteSession._configure_connection", "sqlite": sqlite3.sqlite_version}


class FullSession(SQLiteSession):
    """The same session with `synchronous=FULL` said aloud on each of its connections."""

    @staticmethod
    def _configure_connection(connection: sqlite3.Connection) -> None:
        SQLiteSession._configure_connection(connection)
        FACTS["synchronous_default"] = connection.execute("PRAGMA synchronous").fetchone()[0]
        connection.execute("PRAGMA synchronous=FULL")
        FACTS["synchronous"] = connection.execute("PRAGMA synchronous").fetchone()[0]


async def append(job: Job) -> dict[str, Any]:
    bodies: Any = message_bodies(500)
    sessions = [FullSession(f"session-{writer}", job.path) for writer in range(job.writers)]

    async def append_one(writer: int, number: int) -> None:
        await sessions[writer].add_items([bodies[(writer * 7 + number) % len(bodies)]])

    figures = await write_by_tasks(job, append_one)
    stored = sum([len(await session.get_items()) for session in sessions])
    for session in sessions:
        session.close()
    return {**figures, **FACTS, "stored": stored}


async def history(job: Job) -> dict[str, Any]:
    session = FullSession("long", job.path)
    if not await session.get_items(limit=1):
        items: Any = conversation_bodies(job.size)
        await session.add_items(items)
    assert len(await session.get_items()) == job.size
    ms = await median_ms_async(job.runs, session.get_items)
    session.close()
    return {"ms": ms, **FACTS}


if __name__ == "__main__":
    job = Job.from_argv()
    answer(asyncio.run({"append": append, "history": history}[job.case](job)))
