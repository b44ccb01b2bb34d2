"""Creates a store, or migrates it to this version's schema.

A new store is created from `schema.sql`, then by the migrations with a higher number. Migrations are numbered
files, applied in order, each once. All of it is one transaction: if anything fails, nothing has changed. One
node at a time does it; the others wait and find it done. The numbers are those of SQLite's migrations, so
both engines have the same schema number when they hold the same. Released migrations are never edited.

Nodes are restarted one after the other. So a migration only adds, and the previous version keeps running on
the new schema. A migration that cannot do so (`-- oldest: N` in its file) names the oldest schema number
whose program may still write; older programs stop, saying so. Additions by a newer program are ignored by an
older one.

Limits: no copy is made; a PostgreSQL database is backed up by its own tools (`pg_dump`). Schemas older than
`OLDEST` are not migrated.
"""

from __future__ import annotations

import logging
import re

from psycopg.sql import SQL, Identifier

from ...domain.ids import new_id
from ...errors import StoreUnusable
from .. import queries
from ..queries import load
from .connections import DatabaseAddress
from .pipeline import Connection

log = logging.getLogger(__name__)

OLDEST = 10
"""The oldest schema that is migrated."""

_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
STATEMENTS = load(__package__)


def migrations() -> list[tuple[int, str]]:
    """Numbers and texts, in order."""
    return queries.migrations(__package__)


def newest() -> int:
    return migrations()[-1][0]


def migrate(connection: Connection, address: DatabaseAddress, now: int | None) -> None:
    """Create the store, or apply the missing migrations. `now`: creation time of a new store; None: the
    database's clock."""
    known = _version(connection)
    if known is not None and known[0] == newest():
        return
    with connection.transaction():
        connection.execute(STATEMENTS["migration_lock"])
        found, oldest = _version(connection) or (0, 1)
        if oldest > newest():
            raise StoreUnusable(
                f"{address.location} has schema {found}, written by a newer holdfast; this one knows "
                f"{newest()}. Upgrade holdfast; nothing was changed"
            )
        if 0 < found < OLDEST:
            raise StoreUnusable(
                f"{address.location} has schema {found}; the oldest that this holdfast can migrate is "
                f"{OLDEST}. Nothing was changed"
            )
        if found >= newest():
            return
        steps = migrations()
        if found:
            log.info(
                "upgrading %s from schema %s to %s in one transaction; no copy of it is made",
                address.location,
                found,
                newest(),
            )
        else:
            connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(address.schema)))
            _check_ours(connection, address)
            first = queries.schema(__package__)
            steps = [first, *((number, text) for number, text in steps if number > first[0])]
        for number, text in steps:
            if number > found:
                connection.execute(text.encode())
                oldest = max([oldest, *map(int, _OLDEST.findall(text))])
        known_now = {"schema": newest(), "oldest": oldest}
        if found:
            connection.execute(STATEMENTS["raise_schema"], known_now)
        else:
            connection.execute(STATEMENTS["insert_store"], {"id": new_id("store"), "now": now, **known_now})


def _version(connection: Connection) -> tuple[int, int] | None:
    """The schema's number and the oldest program's, or None if there is no store yet."""
    there = connection.execute(STATEMENTS["store_table"]).fetchone()
    if there is None or there[0] is None:
        return None
    row = connection.execute(STATEMENTS["schema_version"]).fetchone()
    return None if row is None else (row[0], row[1])


def _check_ours(connection: Connection, address: DatabaseAddress) -> None:
    """Refuse a schema with other contents: it belongs to another program."""
    row = connection.execute(STATEMENTS["tables_in_schema"], {"schema": address.schema}).fetchone()
    if row is not None and row[0]:
        raise StoreUnusable(
            f"the schema {address.schema!r} of {address.location} holds tables of another program; "
            "nothing was changed. Name another one: postgresql://…/database?schema=…"
        )
