"""Creates a store, or migrates it to this version's schema.

A new store is created from `schema.sql`, then by the migrations with a higher number, in one transaction.
Migrations are numbered files, applied in order, each once; the number is stored in `user_version`. A file
with data is copied beside itself first. A process that finds a newer number writes nothing more and asks to
be restarted. Released migrations are never edited.

Limit: schemas older than `OLDEST` are not migrated.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import apsw

from ...domain.ids import new_id
from ...errors import StoreUnusable
from ...os_support import private_umask
from .. import queries
from .backup import copy_database
from .connections import APPLICATION_ID

log = logging.getLogger(__name__)

OLDEST = 10
"""The oldest schema that is migrated."""


def migrations() -> list[tuple[int, str]]:
    """Numbers and texts, in order."""
    return queries.migrations(__package__)


def newest() -> int:
    return migrations()[-1][0]


def migrate(connection: apsw.Connection, database: Path, now: int) -> None:
    """Create the store, or apply the missing migrations, in one transaction under the write lock; back up
    first if there is data."""
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
        if 0 < found < OLDEST:
            raise StoreUnusable(
                f"{database} has schema {found}; the oldest that this holdfast can migrate is {OLDEST}. "
                "Nothing was changed"
            )
        if not found:
            found = _create(connection, now)
        elif found < newest():
            _keep_copy(database, found)
        for number, text in migrations():
            if number > found:
                connection.execute(text)
                connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create(connection: apsw.Connection, now: int) -> int:
    """Create an empty store; returns its schema number."""
    number, text = queries.schema(__package__)
    connection.execute(text)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("INSERT INTO store (id, created_at) VALUES (?, ?)", (new_id("store"), now))
    return number


def _keep_copy(database: Path, found: int) -> None:
    """Copy the store beside itself, for its owner only. The copy appears complete or not at all."""
    copy = database.with_name(f"{database.name}.schema-{found}-{time.strftime('%Y%m%d-%H%M%S')}.backup")
    log.info("upgrading %s from schema %s to %s; the old one is kept as %s", database, found, newest(), copy)
    partial = copy.with_name(f"{copy.name}.{new_id('partial')}")
    try:
        with private_umask():
            copy_database(database, partial)
        partial.replace(copy)
        directory = os.open(copy.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # its name is on disk before anything is changed
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreUnusable(
            f"cannot keep a copy of {database} before upgrading it ({error}); nothing was changed"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
