"""A read-only snapshot of a store, read table by table: for migrating it to another engine.

The source is only read. The copy beside it is migrated to this version's schema, and deleted at the end; a
copy left by a killed run is overwritten by the next.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import apsw

from ...errors import StoreError, StoreUnusable
from ...os_support import is_file, private_umask
from ..queries import load
from .backup import copy_database
from .connections import APPLICATION_ID
from .files import real
from .locks import FileNodeLocks
from .migrations import migrate, newest

STATEMENTS = load(__package__)

OWN = frozenset({"store", "unindexed"})
"""Tables that another engine keeps in its own way: the store's identity, and its unindexed messages."""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    columns: tuple[str, ...]


class Snapshot:
    def __init__(self, connection: apsw.Connection, store_id: str) -> None:
        self._connection = connection
        self.store_id = store_id
        """Id of the original store."""

    def tables(self) -> list[Table]:
        """Every table with its own data, referenced tables first."""
        rows = self._connection.execute(STATEMENTS["snapshot_tables"]).fetchall()
        names = [row[0] for row in rows if row[0] not in OWN]
        refers_to = {
            name: {row[0] for row in self._connection.execute(STATEMENTS["snapshot_references"], (name,))}
            for name in names
        }
        return [Table(name, self._columns(name)) for name in TopologicalSorter(refers_to).static_order()]

    def _columns(self, table: str) -> tuple[str, ...]:
        return tuple(row[0] for row in self._connection.execute(STATEMENTS["snapshot_columns"], (table,)))

    def count(self, table: Table) -> int:
        statement = STATEMENTS["snapshot_count"].format(table=_quoted(table.name))
        found = self._connection.execute(statement).get
        assert isinstance(found, int)
        return found

    def rows(self, table: Table, order: Sequence[str]) -> Iterator[Row]:
        """Every row, ordered by these columns."""
        statement = STATEMENTS["snapshot_rows"].format(
            columns=", ".join(map(_quoted, table.columns)),
            table=_quoted(table.name),
            order=", ".join(map(_quoted, order)),
        )
        yield from self._connection.execute(statement)

    def last_numbers(self) -> Mapping[str, int]:
        """By table: the last number ever given out, for tables that never reuse one."""
        return {row[0]: row[1] for row in self._connection.execute(STATEMENTS["snapshot_numbers"])}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def snapshot(database: Path, now: int) -> Iterator[Snapshot]:
    """A snapshot of the store in this file. Raises StoreUnusable if there is none, or if it is newer."""
    database = real(database)
    store_id = _check(database)
    copy = database.with_name(f"{database.name}.moving")
    copy.unlink(missing_ok=True)
    connection: apsw.Connection | None = None
    try:
        with private_umask():
            copy_database(database, copy)
            connection = apsw.Connection(str(copy))
            if connection.execute("PRAGMA user_version").get != newest():
                migrate(connection, copy, now)
        yield Snapshot(connection, store_id)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"{database} could not be read ({error}); nothing was changed in it") from error
    finally:
        if connection is not None:
            connection.close()
        for path in copy.parent.glob(f"{glob.escape(copy.name)}*"):
            path.unlink(missing_ok=True)


def running_on(database: Path) -> int:
    """How many nodes run on this store now. Raises StoreUnusable if it is not a store."""
    locks = FileNodeLocks(real(database))
    with _reading(database) as connection:
        nodes = connection.execute(STATEMENTS["present_nodes"]).fetchall()
    return sum(locks.is_free(str(row[0])) is False for row in nodes)


def _check(database: Path) -> str:
    """Check that this is a store that we can read; returns its id."""
    with _reading(database) as connection:
        return str(connection.execute(STATEMENTS["snapshot_store"]).get)


@contextmanager
def _reading(database: Path) -> Iterator[apsw.Connection]:
    """A read-only connection to the store itself; raises StoreUnusable if it is not ours."""
    if not is_file(database):
        raise StoreUnusable(f"there is no store at {database}")
    connection: apsw.Connection | None = None
    try:
        connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
        if connection.execute("PRAGMA application_id").get != APPLICATION_ID:
            raise StoreUnusable(f"{database} is not a holdfast store; nothing was changed")
        schema = connection.execute("PRAGMA user_version").get
        if not isinstance(schema, int) or schema > newest():
            raise StoreUnusable(
                f"{database} has schema {schema}, written by a newer holdfast; this one knows {newest()}"
            )
        yield connection
    except apsw.Error as error:
        raise StoreUnusable(f"{database} cannot be read: {error}") from error
    finally:
        if connection is not None:
            connection.close()
