"""SQLite alone through apsw: what the disk and the library allow, without a store around them.

Both append cases run the same two statements per message: a guarded UPDATE of the conversation's row, which
checks the token and returns the next number, and an INSERT into a rowid table with a unique (conversation,
seq) index. `append` commits each message alone; threads alternate under a lock. `group` is the upper bound
for holdfast: a writer thread takes all queued tasks, runs them in one transaction, and acknowledges them
after COMMIT. A token that does not match would write nothing; here it raises.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any, NamedTuple

import apsw
import msgspec
from measure import (
    Job,
    answer,
    conversation_bodies,
    encode,
    median_ms,
    message_bodies,
    write_by_tasks,
    write_by_threads,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL, last_seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS messages (
    no INTEGER PRIMARY KEY, conversation TEXT NOT NULL, seq INTEGER NOT NULL, body BLOB NOT NULL,
    UNIQUE (conversation, seq)
) STRICT;
"""
NUMBER = "UPDATE conversations SET last_seq = last_seq + 1 WHERE id = ? AND token = ? RETURNING last_seq"
INSERT = "INSERT INTO messages (conversation, seq, body) VALUES (?, ?, ?)"
TOKEN = 7


class Append(NamedTuple):
    conversation: str
    body: bytes
    acknowledged: asyncio.Future[int]


def open_connection(path: str) -> tuple[apsw.Connection, dict[str, Any]]:
    connection = apsw.Connection(path)
    connection.pragma("journal_mode", "wal")
    default = connection.pragma("synchronous")
    connection.pragma("synchronous", "FULL")
    connection.execute(SCHEMA)
    return connection, {
        "synchronous_default": default,
        "synchronous": connection.pragma("synchronous"),
        "set_at": "the connection",
        "sqlite": apsw.sqlite_lib_version(),
    }


def open_conversations(connection: apsw.Connection, count: int) -> list[str]:
    names = [f"conv_{number:032x}" for number in range(count)]
    with connection:
        connection.executemany(
            "INSERT INTO conversations VALUES (?, ?, 0)", [(name, TOKEN) for name in names]
        )
    return names


def write(cursor: apsw.Cursor, conversation: str, body: bytes) -> int:
    """Number and insert one message, within whatever transaction is open."""
    (seq,) = next(iter(cursor.execute(NUMBER, (conversation, TOKEN))))
    cursor.execute(INSERT, (conversation, seq, body))
    return int(seq)


def commit_one(cursor: apsw.Cursor, conversation: str, body: bytes) -> None:
    """One message, one transaction, one fsync."""
    cursor.execute("BEGIN IMMEDIATE")
    write(cursor, conversation, body)
    cursor.execute("COMMIT")


def append(job: Job) -> dict[str, Any]:
    connection, facts = open_connection(job.path)
    conversations = open_conversations(connection, job.writers)
    bodies = [encode(body) for body in message_bodies(500)]
    cursor = connection.cursor()
    lock = threading.Lock()

    def append_one(writer: int, number: int) -> None:
        with lock:
            commit_one(cursor, conversations[writer], bodies[(writer * 7 + number) % len(bodies)])

    figures = write_by_threads(job, append_one)
    return {**figures, **facts, "stored": close_and_count(connection)}


class GroupWriter:
    """One thread that owns the connection; a group is what was handed in while the last one was committed."""

    def __init__(self, connection: apsw.Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._cursor = connection.cursor()
        self._loop = loop
        self._handed_in: queue.SimpleQueue[Append | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def append(self, conversation: str, body: bytes) -> asyncio.Future[int]:
        job = Append(conversation, body, self._loop.create_future())
        self._handed_in.put(job)
        return job.acknowledged

    def stop(self) -> None:
        self._handed_in.put(None)
        self._thread.join()

    def _run(self) -> None:
        cursor, waiting = self._cursor, self._handed_in
        while (first := waiting.get()) is not None:
            group = [first]
            while not waiting.empty() and (job := waiting.get()) is not None:
                group.append(job)
            cursor.execute("BEGIN IMMEDIATE")
            numbers = [write(cursor, job.conversation, job.body) for job in group]
            cursor.execute("COMMIT")
            self._loop.call_soon_threadsafe(self._acknowledge, group, numbers)

    @staticmethod
    def _acknowledge(group: list[Append], numbers: list[int]) -> None:
        for job, seq in zip(group, numbers, strict=True):
            job.acknowledged.set_result(seq)


async def group(job: Job) -> dict[str, Any]:
    connection, facts = open_connection(job.path)
    conversations = open_conversations(connection, job.writers)
    bodies = [encode(body) for body in message_bodies(500)]
    writer_thread = GroupWriter(connection, asyncio.get_running_loop())

    async def append_one(writer: int, number: int) -> None:
        await writer_thread.append(conversations[writer], bodies[(writer * 7 + number) % len(bodies)])

    figures = await write_by_tasks(job, append_one)
    writer_thread.stop()
    return {**figures, **facts, "stored": close_and_count(connection)}


def close_and_count(connection: apsw.Connection) -> int:
    count = int(connection.execute("SELECT count(*) FROM messages").get)
    connection.close()
    return count


def history(job: Job) -> dict[str, Any]:
    """Read one conversation: rows decoded by msgspec, or (`options.joined`) bytes joined, never decoded."""
    connection, facts = open_connection(job.path)
    if connection.execute("SELECT count(*) FROM conversations").get == 0:
        (name,) = open_conversations(connection, 1)
        with connection:
            for body in conversation_bodies(job.size):
                write(connection.cursor(), name, encode(body))
    name = connection.execute("SELECT id FROM conversations").get
    cursor = connection.cursor()
    decode = msgspec.json.Decoder().decode

    def rows() -> list[Any]:
        cursor.execute("SELECT body FROM messages WHERE conversation = ? ORDER BY seq", (name,))
        return cursor.fetchall()

    def joined() -> bytes:
        return b",".join([body for (body,) in rows()])

    def decoded() -> list[Any]:
        return [decode(body) for (body,) in rows()]

    ms = median_ms(job.runs, joined if job.options.get("joined") else decoded)
    assert decode(b"[" + joined() + b"]") == decoded() == conversation_bodies(job.size)
    connection.close()
    return {"ms": ms, **facts}


if __name__ == "__main__":
    job = Job.from_argv()
    if job.case == "group":
        answer(asyncio.run(group(job)))
    else:
        answer({"append": append, "history": history}[job.case](job))
