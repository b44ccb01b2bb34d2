"""langgraph's SQLite saver: one append is one checkpoint, and a checkpoint holds the whole conversation.

The window is 50 messages: each append drops the oldest, adds one and writes all 50 again, as the saver does
after every step of a graph. Messages are plain dicts, the cheapest value its serializer supports. The writers
are threads over one blocking `SqliteSaver`, whose own lock makes that safe: `AsyncSqliteSaver` was about half
as fast at any number of writers. Durability: the library never sets `synchronous`, so it is the interpreter's
default; it is set here on the connection given to the saver.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from measure import Job, answer, conversation_bodies, median_ms, message_bodies, write_by_threads

HELD_MESSAGES = 50


class Thread:
    """What one writer hands to the saver: its place in the line of checkpoints, and the messages it holds."""

    def __init__(self, name: str, messages: list[dict[str, str]]) -> None:
        self.config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self.held = deque(messages, maxlen=len(messages))
        self.step = 0

    def put(self, saver: SqliteSaver, message: dict[str, str]) -> None:
        """Checkpoint this thread with one more message, and the oldest gone."""
        self.held.append(message)
        self.step += 1
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self.step))
        checkpoint["channel_values"] = {"messages": list(self.held)}
        checkpoint["channel_versions"] = {"messages": self.step}
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        self.config = saver.put(self.config, checkpoint, metadata, {"messages": self.step})


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
    bodies = message_bodies(500)
    threads = [Thread(f"thread-{writer}", bodies[:HELD_MESSAGES]) for writer in range(job.writers)]

    def append_one(writer: int, number: int) -> None:
        threads[writer].put(saver, bodies[(writer * 7 + number) % len(bodies)])

    figures = write_by_threads(job, append_one)
    stored = saver.conn.execute("SELECT count(*) FROM checkpoints").fetchone()[0]
    saver.conn.close()
    return {**figures, **facts, "stored": stored}


def history(job: Job) -> dict[str, Any]:
    saver, facts = open_saver(job)
    latest: Any = {"configurable": {"thread_id": "long", "checkpoint_ns": ""}}
    if saver.get_tuple(latest) is None:
        bodies = conversation_bodies(job.size)
        Thread("long", bodies).put(saver, bodies[0])

    def read() -> list[dict[str, str]]:
        saved = saver.get_tuple(latest)
        assert saved is not None
        messages: list[dict[str, str]] = saved.checkpoint["channel_values"]["messages"]
        return messages

    assert len(read()) == job.size
    ms = median_ms(job.runs, read)
    saver.conn.close()
    return {"ms": ms, **facts}


if __name__ == "__main__":
    job = Job.from_argv()
    answer({"append": append, "history": history}[job.case](job))
