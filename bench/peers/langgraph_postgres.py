"""langgraph's PostgreSQL saver: one append is one checkpoint, and a checkpoint holds the whole conversation.

As with its SQLite saver the window is 50 messages: each append drops the oldest, adds one and writes all 50
again. The writers are threads over one blocking `PostgresSaver` on a pool of 16 connections (it takes its own
lock around each use). Durability is the server's: every commit is synced.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres import PostgresSaver
from measure import Job, answer, message_bodies, write_by_threads
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

HELD_MESSAGES = 50


class Thread:
    """What one writer hands to the saver: its place in the line of checkpoints, and the messages it holds."""

    def __init__(self, name: str, messages: list[dict[str, str]]) -> None:
        self.config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self.held = deque(messages, maxlen=len(messages))
        self.step = 0

    def put(self, saver: PostgresSaver, message: dict[str, str]) -> None:
        """Checkpoint this thread with one more message, and the oldest gone."""
        self.held.append(message)
        self.step += 1
        version = f"{self.step:032}"
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self.step))
        checkpoint["channel_values"] = {"messages": list(self.held)}
        checkpoint["channel_versions"] = {"messages": version}
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        self.config = saver.put(self.config, checkpoint, metadata, {"messages": version})


def append(job: Job) -> dict[str, Any]:
    options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(job.path, min_size=16, max_size=16, kwargs=options, open=True) as pool:
        pool.wait()
        saver = PostgresSaver(pool)  # type: ignore[arg-type]
        saver.setup()
        bodies = message_bodies(500)
        threads = [Thread(f"thread-{writer}", bodies[:HELD_MESSAGES]) for writer in range(job.writers)]

        def append_one(writer: int, number: int) -> None:
            threads[writer].put(saver, bodies[(writer * 7 + number) % len(bodies)])

        figures = write_by_threads(job, append_one)
        with pool.connection() as connection:
            row: Any = connection.execute("SELECT count(*) AS number FROM checkpoints").fetchone()
        return {**figures, "stored": row["number"]}


if __name__ == "__main__":
    job = Job.from_argv()
    answer({"append": append}[job.case](job))
