"""openai-agents' SQLAlchemySession over PostgreSQL (asyncpg): a session object per writer, tasks of one event
loop over one engine with a pool of 16 connections. Durability is the server's: every commit is synced.
"""

from __future__ import annotations

import asyncio
from typing import Any

from agents.extensions.memory import SQLAlchemySession
from measure import Job, answer, conversation_bodies, median_ms_async, message_bodies, write_by_tasks
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine


async def append(job: Job) -> dict[str, Any]:
    bodies: Any = message_bodies(500)
    url = job.path.replace("postgresql://", "postgresql+asyncpg://", 1)
    engine = create_async_engine(url, pool_size=16, max_overflow=0)
    sessions = [
        SQLAlchemySession(f"session-{writer}", engine=engine, create_tables=True)
        for writer in range(job.writers)
    ]
    await sessions[0].add_items([bodies[0]])  # makes the tables
    for _ in range(2):  # makes the sessions, and all connections
        await asyncio.gather(*(session.add_items([bodies[0]]) for session in sessions))

    async def append_one(writer: int, number: int) -> None:
        await sessions[writer].add_items([bodies[(writer * 7 + number) % len(bodies)]])

    figures = await write_by_tasks(job, append_one)
    async with engine.connect() as connection:
        stored = (await connection.execute(text("SELECT count(*) FROM agent_messages"))).scalar_one()
    await engine.dispose()
    return {**figures, "stored": stored}


async def history(job: Job) -> dict[str, Any]:
    url = job.path.replace("postgresql://", "postgresql+asyncpg://", 1)
    engine = create_async_engine(url, pool_size=16, max_overflow=0)
    session = SQLAlchemySession("long", engine=engine, create_tables=True)
    items: Any = conversation_bodies(job.size)
    await session.add_items(items)
    assert len(await session.get_items()) == job.size
    ms = await median_ms_async(job.runs, session.get_items)
    await engine.dispose()
    return {"ms": ms}


if __name__ == "__main__":
    job = Job.from_argv()
    answer(asyncio.run({"append": append, "history": history}[job.case](job)))
