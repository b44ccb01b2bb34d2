"""Migrates a store to this version's schema.

Migrations are numbered files, applied in order, each once; the number is stored in `user_version`. A file
with data is copied beside itself first. A process that finds a newer number writes nothing more and asks to
be restarted. Released migrations are never edited.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from importlib.resources import files
from pathlib import Path

import apsw

from ...domain.ids import new_id
from ...errors import StoreUnusable
from ...os_support import private_umask
from .backup import copy_database
from .connections import APPLICATION_ID

log = logging.getLogger(__name__)


@cache
def migrations() -> list[tuple[int, str]]:
    """Numbers and texts, in order."""
    found = [
        (int(file.name[:4]), file.read_text("utf-8"))
        for file in files(__package__).joinpath("migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found)


def newest() -> int:
    return migrations()[-1][0]


def migrate(connection: apsw.Connection, database: Path, now: int) -> None:
    """Apply the missing migrations, in one transaction under the write lock; back up first if there is
    data."""
    if connection.execute("PRAGMA user_version").get == newest():
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = connection.execute("PRAGMA user_version").get
        assert isinstance(found, int)
        if found > newest():
            raise StoreUnusable(
                f"{database} has schema {found}, written by a newer holdfast; this one knows {newest()}. "
                "Upgrade holdfast; nothing was changed"
            )
        if found and found < newest():
            copy = database.with_name(
                f"{database.name}.schema-{found}-{time.strftime('%Y%m%d-%H%M%S')}.backup"
            )
            log.info(
                "upgrading %s from schema %s to %s; the old one is kept as %s",
                database,
                found,
                newest(),
                copy,
            )
            with private_umask():
                copy_database(database, copy)
        for number, text in migrations():
            if number > found:
                connection.execute(text)
                connection.execute(f"PRAGMA user_version = {number}")
        if not found:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("INSERT INTO store (id, created_at) VALUES (?, ?)", (new_id("store"), now))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
