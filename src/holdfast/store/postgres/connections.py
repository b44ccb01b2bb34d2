"""Connecting to PostgreSQL the one right way: gates first, then settings.

A store lives in a schema of its own (`holdfast`, or `?schema=…` of the URL), so that it shares a database
with whoever is there already. Commits are as durable as the server can make them, whatever its default is;
a transaction that stands still is ended by the server; and the client waits for nothing without an end.

It must be PostgreSQL itself, not a pooler that hands every transaction another connection: prepared
statements, node locks and notifications live on a connection.
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
"""How often the first connection is asked which backend it has: no small pool comes round to the same one."""

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
    """Where a store is: libpq's connection string, and the schema there."""

    conninfo: str
    schema: str = DEFAULT_SCHEMA

    @classmethod
    def parse(cls, url: str) -> DatabaseAddress:
        """Raises BadSetting, without the password, for what is no URL of PostgreSQL's."""
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
        """Without the password, and else as it can be written down again: a socket's directory encoded."""
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
    """A connection that passed the gates, in autocommit mode. Raises psycopg's error if there is none."""
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
                # Whether it waits for standbys is theirs to say; it never answers before its own disk.
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
    """Refuse a pooler that hands every transaction another connection. One that keeps a connection for as
    long as its client stays is as good as none."""
    mine = _backend(connection)
    # One that takes turns among its connections is told by asking again.
    if all(_backend(connection) == mine for _ in range(TURNS)):
        if mine == connection.info.backend_pid:
            return
        # One that hands out the last that was free is told while another has that.
        with connect(address) as other, other.transaction():
            theirs = _backend(other)
            if theirs != mine and all(_backend(connection) == mine for _ in range(TURNS)):
                return
    raise StoreUnusable(
        f"{address.location} is behind a transaction pooler (such as pgbouncer), which hands every "
        "transaction another connection; node locks and prepared statements would not hold. Name PostgreSQL "
        "itself in store.url, or let the pooler work by session"
    )


def _backend(connection: Connection) -> int:
    row = connection.execute(STATEMENTS["backend"], prepare=False).fetchone()
    assert row is not None
    return int(row[0])


def check_arrived(connection: Connection, address: DatabaseAddress) -> None:
    """Refuse a store that has not come here whole: the rest of the move would undo what is said in it."""
    for asked in (STATEMENTS["has_moves"], STATEMENTS["unfinished_moves"]):
        row = connection.execute(asked).fetchone()
        if row is None or not row[0]:
            return
    raise StoreUnusable(
        f"a store is being moved to {address.location} and has not come whole; run `holdfast migrate` to its "
        "end first, or name another database. Nothing was changed"
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
