"""A foreign program that repeatedly opens, reads and closes the database until its standard input ends.

At least LEAST times, however little time it gets. It then prints how often.

    python -m tests.reliability.outsider sqlite3|apsw|plain DATABASE
"""

from __future__ import annotations

import os
import select
import sqlite3
import sys
import time

import apsw


def look_with_sqlite3(database: str) -> None:
    """The interpreter's own SQLite, as any script would use it."""
    connection = sqlite3.connect(database, timeout=60)
    try:
        connection.execute("SELECT count(*) FROM messages").fetchone()
    finally:
        connection.close()


def look_with_apsw(database: str) -> None:
    connection = apsw.Connection(database)
    try:
        connection.set_busy_timeout(30_000)
        connection.execute("SELECT count(*) FROM messages").fetchall()
    finally:
        connection.close()


def look_with_open(database: str) -> None:
    """A backup program, a virus scanner, `file`: plain reading of each of the files."""
    for ending in ("", "-wal", "-shm"):
        if os.path.exists(database + ending):
            with open(database + ending, "rb") as file:
                file.read(4096)


LEAST = 11
WAYS = {"sqlite3": look_with_sqlite3, "apsw": look_with_apsw, "plain": look_with_open}


def main(way: str, database: str) -> None:
    times = 0
    while times < LEAST or not select.select([sys.stdin], [], [], 0)[0]:
        WAYS[way](database)
        times += 1
        time.sleep(0.001)
    print(times)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
