"""Migrates a SQLite store into a PostgreSQL database: complete, compared, and verified.

Tables are copied one by one, referenced tables first, in pieces, each in a transaction. Existing rows are
compared with the snapshot's, and a piece that differs is replaced. So a run that was killed is simply started
again: it skips what is there and continues. At the end both sides are read completely once more: row counts
and checksums must agree.

A database that holds another store, or a finished migration, is refused: stores are never mixed, and newer
messages are never overwritten. The source is only read.

Tables and columns are taken from the schemas themselves: what a later migration adds is included, and a table
that this engine lacks is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import psycopg
from psycopg import sql

from ...errors import BadInput, StoreBusy, StoreError
from ..queries import load
from ..sqlite.snapshots import Row, Snapshot, Table
from .connections import DatabaseAddress, open_connection
from .db_errors import translate
from .pipeline import Connection

STATEMENTS = load(__package__)

PIECE_ROWS = 2000
PIECE_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class MoveStep:
    """Progress: rows of a table that are done, of how many."""

    table: str
    done: int
    total: int
    verifying: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """A table that was copied completely."""

    table: str
    rows: int
    checksum: str


OnStep = Callable[[MoveStep], None]


class Move:
    """One migration to a database with an up-to-date schema. Blocking."""

    def __init__(self, address: DatabaseAddress, on_step: OnStep) -> None:
        self._location = address.location
        self._on_step = on_step
        self._connection = open_connection(address)
        self._source_id = ""

    def close(self) -> None:
        self._connection.close()

    def copy(self, source: Snapshot, now: int) -> list[Moved]:
        """Copy what is missing, then verify everything. Call `finish` to mark it complete."""
        self._source_id = source.store_id
        try:
            self._begin(now)
            places = [_TargetTable(self._connection, table) for table in source.tables()]
            for place in places:
                self._copy(source, place)
            return [self._verify(source, place) for place in places]
        except psycopg.Error as error:
            raise translate(error, self._location) from error

    def finish(self, now: int) -> None:
        """Mark the migration complete: from now on this is an ordinary store."""
        self._connection.execute(STATEMENTS["finish_move"], {"now": now, "source": self._source_id})

    def _begin(self, now: int) -> None:
        """Refuse a database with another store; record which store is being copied."""
        execute = self._connection.execute
        row = execute(STATEMENTS["one_mover"]).fetchone()
        if row is None or not row[0]:
            raise StoreBusy(f"another `holdfast migrate` is running on {self._location}")
        execute(STATEMENTS["make_moves"])
        known = dict(execute(STATEMENTS["known_moves"]).fetchall())
        if not known:
            used = execute(STATEMENTS["is_used"]).fetchone()
            if used is not None and used[0]:
                raise BadInput(
                    f"{self._location} holds another store already; nothing was changed. "
                    "Name an empty database, or another schema with ?schema=NAME"
                )
        elif self._source_id not in known:
            raise BadInput(
                f"{self._location} holds data that was migrated from another store; nothing was changed"
            )
        elif known[self._source_id] is not None:
            raise BadInput(
                f"this store was already migrated to {self._location}; messages added there since "
                "would be lost. Nothing was changed. To migrate it again, use an empty database"
            )
        execute(STATEMENTS["begin_move"], {"source": self._source_id, "now": now})

    def _copy(self, source: Snapshot, place: _TargetTable) -> None:
        total, done = source.count(place.table), 0
        self._on_step(MoveStep(place.name, 0, total))
        behind: Row | None = None
        pieces = place.pieces(source.rows(place.table, place.order))
        for piece, last in _with_last(pieces):
            upto = None if last or not piece else place.key(piece[-1])
            if place.rows(behind, upto) != piece:
                place.replace(behind, upto, piece)
            done += len(piece)
            behind = upto
            self._on_step(MoveStep(place.name, done, total))
        place.number_on(source.last_numbers().get(place.name, 0))
        place.analyse()

    def _verify(self, source: Snapshot, place: _TargetTable) -> Moved:
        total = source.count(place.table)
        here = _Sum(lambda done: self._on_step(MoveStep(place.name, done, total, verifying=True)))
        there = _Sum()
        for row in source.rows(place.table, place.order):
            there.add(place.converted(row))
        for row in place.all_rows():
            here.add(row)
        if (here.rows, here.digest()) != (there.rows, there.digest()):
            raise StoreError(
                f"table {place.name} of {self._location} differs from its original "
                f"({here.rows:,} rows, {there.rows:,} in the original): another program writes to it. "
                "The original is unchanged; stop that program and run this again"
            )
        return Moved(place.name, here.rows, here.digest())


class _TargetTable:
    """Target of a table's rows: its columns, its key, and how values are written here."""

    def __init__(self, connection: Connection, table: Table) -> None:
        self._connection = connection
        self.table = table
        self.name = table.name
        found = connection.execute(STATEMENTS["moved_columns"], {"table": table.name}).fetchall()
        types: Mapping[str, str] = {row[0]: row[1] for row in found}
        lacking = [column for column in table.columns if column not in types]
        if lacking:
            raise StoreError(
                f"this version's PostgreSQL schema lacks {table.name} ({', '.join(lacking)}); "
                "please report this. Nothing was copied of it"
            )
        self._numbered = next((row[0] for row in found if row[2]), None)
        self._booleans = [place for place, column in enumerate(table.columns) if types[column] == "boolean"]
        key = [
            row[0] for row in connection.execute(STATEMENTS["moved_key"], {"table": table.name}).fetchall()
        ]
        self.order: Sequence[str] = key or table.columns
        self._whole = not key  # without a key a table is compared as one piece
        self._key_places = [table.columns.index(column) for column in key]

    # --- rows -------------------------------------------------------------------------------------------

    def converted(self, row: Row) -> Row:
        """A row as PostgreSQL returns it."""
        if not self._booleans:
            return row
        values = list(row)
        for place in self._booleans:
            values[place] = None if values[place] is None else bool(values[place])
        return tuple(values)

    def key(self, row: Row) -> Row:
        return tuple(row[place] for place in self._key_places)

    def pieces(self, rows: Iterator[Row]) -> Iterator[list[Row]]:
        """Converted rows, in batches that are compared and written at once."""
        piece: list[Row] = []
        size = 0
        for row in rows:
            piece.append(self.converted(row))
            size += sum(len(value) for value in row if isinstance(value, str | bytes))
            if not self._whole and (len(piece) >= PIECE_ROWS or size >= PIECE_BYTES):
                yield piece
                piece, size = [], 0
        yield piece

    def rows(self, behind: Row | None, upto: Row | None) -> list[Row]:
        return self._connection.execute(*self._on(STATEMENTS["moved_rows"], behind, upto)).fetchall()

    def all_rows(self) -> Iterator[Row]:
        with self._connection.transaction(), self._connection.cursor("moved") as cursor:
            cursor.itersize = 200
            yield from cursor.execute(*self._on(STATEMENTS["moved_rows"], None, None))

    def replace(self, behind: Row | None, upto: Row | None, piece: Sequence[Row]) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(*self._on(STATEMENTS["remove_moved_rows"], behind, upto))
            with cursor.copy(self._on(STATEMENTS["move_rows"], None, None)[0]) as copy:
                for row in piece:
                    copy.write_row(row)

    def number_on(self, last: int) -> None:
        """Set the sequence to continue after `last`, and after every number in the table."""
        if self._numbered is None:
            return
        highest = sql.SQL(STATEMENTS["highest_number"]).format(
            table=sql.Identifier(self.name), column=sql.Identifier(self._numbered)
        )
        row = self._connection.execute(highest).fetchone()
        last = max(last, row[0] if row and row[0] else 0)
        if last:
            table = sql.Identifier(self.name).as_string()
            named = {"table": table, "column": self._numbered, "last": last}
            self._connection.execute(STATEMENTS["number_on"], named)

    def analyse(self) -> None:
        """Gather the planner's statistics of the copied rows."""
        self._connection.execute(sql.SQL(STATEMENTS["analyse_moved"]).format(table=sql.Identifier(self.name)))

    def _on(self, statement: str, behind: Row | None, upto: Row | None) -> tuple[sql.Composed, list[Any]]:
        """A statement on this table, for the rows after one key up to another."""
        keys = sql.SQL(", ").join(map(sql.Identifier, self.order))
        bounds: list[sql.Composable] = [sql.SQL("true")]
        values: list[Any] = []
        for sign, bound in ((">", behind), ("<=", upto)):
            if bound is not None:
                marks = sql.SQL(", ").join([sql.Placeholder()] * len(bound))
                bounds.append(sql.SQL("({}) {} ({})").format(keys, sql.SQL(sign), marks))
                values += bound
        composed = sql.SQL(statement).format(
            table=sql.Identifier(self.name),
            columns=sql.SQL(", ").join(map(sql.Identifier, self.table.columns)),
            order=keys,
            range=sql.SQL(" AND ").join(bounds),
        )
        return composed, values


def _with_last(pieces: Iterator[list[Row]]) -> Iterator[tuple[list[Row], bool]]:
    """Each piece, and whether it is the last."""
    before = next(pieces)
    for piece in pieces:
        yield before, False
        before = piece
    yield before, True


class _Sum:
    """Row count and checksum over all values."""

    def __init__(self, on_rows: Callable[[int], None] = lambda _rows: None) -> None:
        self.rows = 0
        self._hash = sha256()
        self._on_rows = on_rows

    def add(self, row: Row) -> None:
        for value in row:
            kind = type(value).__name__.encode()
            told = b"" if value is None else value if isinstance(value, bytes) else str(value).encode()
            self._hash.update(b"%s %d " % (kind, len(told)))
            self._hash.update(told)
        self.rows += 1
        if self.rows % PIECE_ROWS == 0:
            self._on_rows(self.rows)

    def digest(self) -> str:
        return self._hash.hexdigest()
