"""hermes-agent's SessionDB: one instance shared by all threads, as in its gateway.

Every write is `BEGIN IMMEDIATE … COMMIT` under the instance's lock; triggers keep two full-text indexes
(words and trigrams) inside that transaction. `options.triggers = false` drops them, to separate the cost of
indexing from that of committing. The writers are threads that call `append_message`: its `AsyncSessionDB`
does the same through `asyncio.to_thread` and was slower. Its lock is not fair, so with many threads the
median wait says little; look at the slowest. Durability: hermes sets `synchronous` only on macOS, so
elsewhere it is the default of the interpreter's SQLite; it is set here on the instance's connection.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from hermes_state import SessionDB  # type: ignore[import-untyped]
from measure import Job, answer, conversation_bodies, median_ms, message_bodies, write_by_threads


def open_database(job: Job) -> tuple[Any, dict[str, Any]]:
    database = SessionDB(db_path=Path(job.path))
    default = database._conn.execute("PRAGMA synchronous").fetchone()[0]
    database._conn.execute("PRAGMA synchronous=FULL")
    if not job.options.get("triggers", True):
        SessionDB._drop_fts_triggers(database._conn.cursor())
    return database, {
        "synchronous_default": default,
        "synchronous": database._conn.execute("PRAGMA synchronous").fetchone()[0],
        "set_at": "SessionDB._conn",
        "sqlite": sqlite3.sqlite_version,
    }


def append(job: Job) -> dict[str, Any]:
    database, facts = open_database(job)
    bodies = message_bodies(500)
    for writer in range(job.writers):
        database.create_session(f"session-{writer}", "bench")

    def append_one(writer: int, number: int) -> None:
        database.append_message(
            f"session-{writer}", "user", bodies[(writer * 7 + number) % len(bodies)]["content"]
        )

    figures = write_by_threads(job, append_one)
    stored = database.message_count()
    database.close()
    return {**figures, **facts, "stored": stored}


def history(job: Job) -> dict[str, Any]:
    database, facts = open_database(job)
    if database.message_count("long") == 0:
        database.create_session("long", "bench")
        database.replace_messages("long", conversation_bodies(job.size))
    assert len(database.get_messages_as_conversation("long")) == job.size
    ms = median_ms(job.runs, lambda: database.get_messages_as_conversation("long"))
    database.close()
    return {"ms": ms, **facts}


if __name__ == "__main__":
    job = Job.from_argv()
    answer({"append": append, "history": history}[job.case](job))
