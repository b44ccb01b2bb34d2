"""Google's ADK with its own DatabaseSessionService, over a file (aiosqlite) or PostgreSQL (asyncpg).

Its connections are SQLAlchemy's; a file is written with `synchronous=FULL`, set on each connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from adk_sessions import append_events, read_session
from google.adk.sessions import DatabaseSessionService
from measure import Job, answer
from sqlalchemy import event


async def main(job: Job) -> dict[str, Any]:
    if job.path.startswith("postgresql://"):
        service = DatabaseSessionService(job.path.replace("postgresql://", "postgresql+asyncpg://", 1))
    else:
        service = DatabaseSessionService(f"sqlite+aiosqlite:///{job.path}")
        event.listen(
            service.db_engine.sync_engine,
            "connect",
            lambda connection, _: connection.execute("PRAGMA synchronous=FULL"),
        )
    return await (read_session if job.case == "history" else append_events)(job, service)


if __name__ == "__main__":
    job = Job.from_argv()
    answer(asyncio.run(main(job)))
