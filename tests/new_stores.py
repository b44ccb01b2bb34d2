"""New SQLite stores of the tests' own process are copies of one that was made once.

To make one takes 30 ms, most of it for the migrations; to copy its pages takes two. Thousands of tests begin
with a new store. Stores that exist, stores of child processes, and stores made while a test has replaced the
schema or the migrations go the way of the product.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.ids import new_id
from holdfast.store import queries
from holdfast.store.sqlite import engine, migrations

made_by = migrations.migrate


@contextmanager
def copied() -> Iterator[None]:
    """From here on, new stores are copies."""
    template, schema = apsw.Connection(":memory:"), _schema()
    made_by(template, Path(":memory:"), 0)
    process, one_at_a_time = os.getpid(), threading.Lock()

    def migrate(connection: apsw.Connection, database: Path, now: int) -> None:
        if os.getpid() != process:  # forked: a sibling may make the same store, and a copy would overwrite it
            return made_by(connection, database, now)
        with one_at_a_time:
            if _schema() != schema or not _copy(template, connection, database):
                return made_by(connection, database, now)
            connection.execute("UPDATE store SET id = ?, created_at = ?", (new_id("store"), now))
        return None

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "migrate", migrate)
        yield
    template.close()


def _copy(template: apsw.Connection, connection: apsw.Connection, database: Path) -> bool:
    """Fill an empty database. False: it is not empty, or another process is making it at this moment."""
    if _made(connection):
        return False
    try:
        with connection.backup("main", template, "main") as backup:
            backup.step(0)  # locks the database and copies nothing
            with closing(apsw.Connection(str(database))) as other:  # `connection` must not be used meanwhile
                if _made(other):  # since the first look; a copy would overwrite what was said there
                    return False
            backup.step()
    except apsw.BusyError:
        return False
    return True


def _made(connection: apsw.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_schema").get)


def _schema() -> Any:
    package = migrations.__package__
    assert package is not None
    return queries.schema(package), migrations.migrations()
