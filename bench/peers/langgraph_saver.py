"""langgraph's SQLite saver: one append is one checkpoint, and a checkpoint holds the whole conversation.

The window is 50 messages: each append drops the oldest, adds one and writes all 50 again, as the saver does
after every step of a graph. Messages are plain dicts, the cheapest value its serializer supports. The writers
are threads over one blocking `SqliteSaver`, whose own lock makes that safe: `AsyncSqliteSaver` was about half
as fast at any number of writers. Durability: the library never sets `synchronous`, so it is the interpreter's
default; it is set here on the connection given to the saver.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_threads import append_checkpoints, read_thread
from measure import Job, answer


def open_saver(job: Job) -> tuple[SqliteSaver, dict[str, Any]]:
    connection = sqlite3.connect(job.path, check_same_thread=False)
    saver = SqliteSaver(connection)
    saver.setup()
    default = connection.execute("PRAGMA synchronous").fetchone()[0]
    connection.execute("PRAGMA synchronous=FULL")
    return saver, {
        "synchronous_default": default,
        "synchronous": connection.execute("PRAGMA synchronous").fetchone()[0],
        "set_at": "the connection given to SqliteSaver",
        "sqlite": sqlite3.sqlite_version,
    }


def append(job: Job) -> dict[str, Any]:
    saver, facts = open_saver(job)
    figures = append_checkpoints(job, saver)
    stored = saver.conn.execute("SELECT count(*) FROM checkpoints").fetchone()[0]
    saver.conn.close()
    return {**figures, **facts, "stored": stored}


def history(job: Job) -> dict[str, Any]:
    saver, facts = open_saver(job)
    figures = read_thread(job, saver)
    saver.conn.close()
    return {**figures, **facts}


if __name__ == "__main__":
    job = Job.from_argv()
    answer({"append": append, "history": history}[job.case](job))
