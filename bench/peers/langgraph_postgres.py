"""langgraph's PostgreSQL saver: one append is one checkpoint, and a checkpoint holds the whole conversation.

As with its SQLite saver the window is 50 messages: each append drops the oldest, adds one and writes all 50
again. The writers are threads over one blocking `PostgresSaver` on a pool of 16 connections (it takes its own
lock around each use). Durability is the server's: every commit is synced.
"""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph_threads import append_checkpoints, read_thread
from measure import Job, answer
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool


def measured(job: Job) -> dict[str, Any]:
    options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(job.path, min_size=16, max_size=16, kwargs=options, open=True) as pool:
        pool.wait()
        saver = PostgresSaver(pool)  # type: ignore[arg-type]
        saver.setup()
        if job.case == "history":
            return read_thread(job, saver)
        figures = append_checkpoints(job, saver)
        with pool.connection() as connection:
            row: Any = connection.execute("SELECT count(*) AS number FROM checkpoints").fetchone()
        return {**figures, "stored": row["number"]}


if __name__ == "__main__":
    answer(measured(Job.from_argv()))
