"""Migrates a database to this version's schema.

Migrations are numbered files, applied in order, each once, all missing ones in one transaction. One node at a
time applies them; the others wait and find it done. The numbers are those of SQLite's migrations, so both
engines have the same schema number when they hold the same. Released migrations are never edited.

Nodes are restarted one after the other. So a migration only adds, and the previous version keeps running on
the new schema. A migration that cannot do so (`-- oldest: N` in its file) names the oldest schema number
whose program may still write; older programs stop, saying so. Additions by a newer program are ignored by an
older one.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from importlib.resources import files

from psycopg.sql import SQL, Identifier

from ...domain.ids import new_id
from ...errors import StoreUnusable
from ..queries import load
from .connections import DatabaseAddress
from .pipeline import Connection

log = logging.getLogger(__name__)

_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
STATEMENTS = load(__package__)


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


def migrate(connection: Connection, address: DatabaseAddress, now: int | None) -> None:
    """Apply the missing migrations. `now`: creation time of a new store; None: the database's clock."""
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
        missing = [(number, text) for number, text in migrations() if number > found]
        if not missing:
            return
        if found:
            log.info("upgrading %s from schema %s to %s", address.location, found, newest())
        else:
            connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(address.schema)))
            _check_ours(connection, address)
        for _, text in missing:
            connection.execute(text.encode())
            for match in _OLDEST.finditer(text):
                oldest = max(oldest, int(match[1]))
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
