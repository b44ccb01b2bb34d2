"""Opens PostgreSQL connections: checks the server first, then applies settings.

A store has its own schema (`holdfast`, or `?schema=…` of the URL), so it can share a database with other
programs. Commits are as durable as the server can make them, whatever its default is; the server ends an idle
transaction; and every wait of the client has a timeout.

It must be PostgreSQL itself, not a pooler that changes connections between transactions: prepared
statements, node locks and notifications belong to a connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ...errors import BadSetting, StoreUnusable
from ..queries import load
from .db_errors import OLDEST_SERVER, cannot_open
from .pipeline import Connection

CONNECT_SECONDS = 5
STATEMENT_SECONDS = 30
IDLE_SECONDS = 5
ANSWER_SECONDS = STATEMENT_SECONDS + 5.0
DEFAULT_SCHEMA = "holdfast"
TURNS = 7
"""How often the first connection asks for its backend's pid: no small pool returns the same one each time."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OPTIONS = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "holdfast",
    "target_session_attrs": "read-write",
}
STATEMENTS = load(__package__)


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """Address of a store: libpq's connection string, and the schema."""

    conninfo: str
    schema: str = DEFAULT_SCHEMA

    @classmethod
    def parse(cls, url: str) -> DatabaseAddress:
        """Raises BadSetting, without the password, if it is not a PostgreSQL URL."""
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        schema = dict(query).get("schema", DEFAULT_SCHEMA)
        if not _SCHEMA.fullmatch(schema):
            raise BadSetting(
                f"the schema {schema!r} in store.url cannot be used: take small letters, digits and _"
            )
        kept = urlencode([(name, value) for name, value in query if name != "schema"])
        conninfo = urlunsplit(parts._replace(query=kept))
        try:
            conninfo_to_dict(conninfo)
        except psycopg.ProgrammingError as error:
            told = _without_password(str(error), parts.password)
            raise BadSetting(
                f"store.url cannot be understood ({told.strip()}); "
                "it looks like postgresql://user:password@host:5432/database"
            ) from None
        return cls(conninfo, schema)

    @property
    def location(self) -> str:
        """The URL without the password, otherwise reusable: a socket's directory is encoded."""
        known: dict[str, Any] = conninfo_to_dict(self.conninfo)
        user = f"{known['user']}@" if known.get("user") else ""
        hosts = str(known.get("host") or known.get("hostaddr") or "").split(",")
        host = ",".join(f"[{each}]" if ":" in each else quote(each, safe="") for each in hosts)
        port = f":{known['port']}" if str(known.get("port") or "").strip(",") else ""
        schema = f"?schema={self.schema}" if self.schema != DEFAULT_SCHEMA else ""
        return f"postgresql://{user}{host}{port}/{known.get('dbname') or ''}{schema}"


def _without_password(text: str, password: str | None) -> str:
    return text.replace(password, "…") if password else text


def connect(address: DatabaseAddress) -> Connection:
    """A checked connection in autocommit mode. Raises psycopg's error if there is none."""
    given = conninfo_to_dict(address.conninfo)
    options = {name: value for name, value in _OPTIONS.items() if name not in given}
    connection: Connection = psycopg.connect(address.conninfo, autocommit=True, **options)  # type: ignore[arg-type]
    try:
        if connection.info.server_version < OLDEST_SERVER * 10_000:
            raise StoreUnusable(
                f"{address.location} runs PostgreSQL {connection.info.server_version // 10_000}; "
                f"holdfast needs {OLDEST_SERVER} or newer"
            )
        row = connection.execute(STATEMENTS["durability"]).fetchone()
        durability = row[0] if row else "on"
        connection.execute(
            STATEMENTS["set_up"],
            {
                "schema": address.schema,
                # Waiting for standbys is the server's choice; it never confirms before its own disk has it.
                "durability": "on" if durability == "off" else durability,
                "statement": f"{STATEMENT_SECONDS}s",
                "idle": f"{IDLE_SECONDS}s",
            },
        )
    except BaseException:
        connection.close()
        raise
    return connection


def check_direct(connection: Connection, address: DatabaseAddress) -> None:
    """Refuse a pooler that changes connections between transactions. A pooler that keeps one connection per
    client session is fine."""
    mine = _backend(connection)
    # A round-robin pooler is detected by asking repeatedly.
    if all(_backend(connection) == mine for _ in range(TURNS)):
        if mine == connection.info.backend_pid:
            return
        # A pooler that reuses the last free connection is detected while another client holds that one.
        with connect(address) as other, other.transaction():
            theirs = _backend(other)
            if theirs != mine and all(_backend(connection) == mine for _ in range(TURNS)):
                return
    raise StoreUnusable(
        f"{address.location} is a transaction pooler (such as pgbouncer), which gives every "
        "transaction another connection; node locks and prepared statements would be lost. Use PostgreSQL's "
        "own address in store.url, or set the pooler to session mode"
    )


def _backend(connection: Connection) -> int:
    row = connection.execute(STATEMENTS["backend"], prepare=False).fetchone()
    assert row is not None
    return int(row[0])


def check_arrived(connection: Connection, address: DatabaseAddress) -> None:
    """Refuse a store that was copied only in part: finishing the migration would undo changes made in it."""
    for asked in (STATEMENTS["has_moves"], STATEMENTS["unfinished_moves"]):
        row = connection.execute(asked).fetchone()
        if row is None or not row[0]:
            return
    raise StoreUnusable(
        f"the migration to {address.location} is not complete; finish it with `holdfast migrate` "
        "first, or use another database. Nothing was changed"
    )


def open_connection(address: DatabaseAddress) -> Connection:
    """The same for the first connection of all: raises StoreUnusable, saying what to do."""
    try:
        connection = connect(address)
    except psycopg.Error as error:
        raise cannot_open(error, address.location) from error
    try:
        check_direct(connection, address)
    except psycopg.Error as error:
        connection.close()
        raise cannot_open(error, address.location) from error
    except BaseException:
        connection.close()
        raise
    return connection
