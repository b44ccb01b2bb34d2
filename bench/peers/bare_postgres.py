"""PostgreSQL alone: the cost of a durable append, one by one and in groups.

`append`: every writer is a thread over psycopg that commits each message in its own transaction, on one of at
most 16 connections. `group`: one thread on one connection writes all waiting messages in one prepared
statement over `unnest` and one commit. The table is the minimum for a message, and its conversation's row is
not updated: an upper bound, not a store.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import psycopg
from measure import Job, Stopwatch, answer, encode, message_bodies, write_by_threads

CONNECTIONS = 16
INSERT_ONE = "INSERT INTO messages (conversation, seq, body) VALUES (%s, %s, %s)"
INSERT_ALL = """
INSERT INTO messages (conversation, seq, body)
SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bytea[])
"""


def open_connection(job: Job) -> psycopg.Connection[Any]:
    connection = psycopg.connect(job.path, autocommit=True)
    connection.execute("SET synchronous_commit = on")
    return connection


def prepare(job: Job) -> dict[str, Any]:
    with open_connection(job) as connection:
        connection.execute(
            "CREATE TABLE messages (conversation text NOT NULL, seq bigint NOT NULL, body bytea NOT NULL, "
            "PRIMARY KEY (conversation, seq))"
        )
        return facts(connection)


def facts(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """What the server says of its own durability: `synchronous` is 2 where everything is synced."""
    asked = [connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "synchronous_commit")]
    return {
        "synchronous": 2 if [row[0] for row in asked if row] == ["on", "on"] else 0,
        "server": connection.info.server_version // 10_000,
    }


def stored(job: Job) -> int:
    with open_connection(job) as connection:
        row = connection.execute("SELECT count(*) FROM messages").fetchone()
        return int(row[0]) if row else 0


def append(job: Job) -> dict[str, Any]:
    told = prepare(job)
    bodies = [encode(body) for body in message_bodies(500)]
    free: queue.SimpleQueue[psycopg.Connection[Any]] = queue.SimpleQueue()
    connections = [open_connection(job) for _ in range(min(job.writers, CONNECTIONS))]
    for connection in connections:
        free.put(connection)

    def append_one(writer: int, number: int) -> None:
        connection = free.get()
        try:
            connection.execute(
                INSERT_ONE, (f"c{writer}", number, bodies[(writer + number) % 500]), prepare=True
            )
        finally:
            free.put(connection)

    figures = write_by_threads(job, append_one)
    for connection in connections:
        connection.close()
    return {**figures, **told, "stored": stored(job)}


def group(job: Job) -> dict[str, Any]:
    told = prepare(job)
    bodies = [encode(body) for body in message_bodies(500)]
    clock = Stopwatch(job.seconds)
    connection = open_connection(job)
    numbers = [0] * job.writers
    waiting = [(writer, clock.now()) for writer in range(job.writers)]
    # Every writer waits for its acknowledgement before it writes again: so all of them are in each group.
    while not clock.over():
        rows = [
            (f"c{writer}", numbers[writer], bodies[(writer + numbers[writer]) % 500]) for writer, _ in waiting
        ]
        connection.execute(INSERT_ALL, [list(column) for column in zip(*rows, strict=True)], prepare=True)
        for writer, since in waiting:
            clock.done(since)
            numbers[writer] += 1
        waiting = [(writer, clock.now()) for writer, _ in waiting]
    connection.close()
    return {**clock.report(), **told, "stored": stored(job)}


if __name__ == "__main__":
    threading.stack_size(512 * 1024)
    job = Job.from_argv()
    answer({"append": append, "group": group}[job.case](job))
