"""Maps PostgreSQL errors to our error tree.

An unreachable, full or slow server is *transient*: nothing was written, and writing continues when it is
back. A statement refused for its values is the error of its caller, and so is an unknown error:
no other caller is affected. Only signs that the server or connection cannot be trusted (corruption, failing
disks, a pooler), or conditions that a person has to repair (rights, missing tables), stop the store. A
password is never part of a message: locations exclude it, and libpq does not print it.
"""

from __future__ import annotations

import psycopg

from ...errors import (
    BadInput,
    Conflict,
    HoldfastError,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreUnreachable,
    StoreUnusable,
)
from .pipeline import ConnectionLost

OLDEST_SERVER = 14

# Conflict with another transaction; a retry may succeed.
LOCKED = "55P03"
RUN_AGAIN = ("40001", "40P01", LOCKED, "23505")
_FULL = ("53100", "53200")
_CLASHES = ("23", "P0")
_RIGHTS = ("42501", "28000", "28P01")
_GONE = ("42P01", "3F000", "42703", "42883")
# Values out of range, texts that cannot be converted; rows and statements beyond PostgreSQL's limits.
_REFUSED = ("22", "54")
# Internal errors and corruption, failing disks, files that cannot be read.
_UNTRUSTED = ("XX", "58", "F0")
# A prepared statement is missing, or exists already: this is not the connection it was prepared on.
_POOLED = ("26000", "42P05")
_SHORT_OF_SOMETHING = "53"
_READ_ONLY = "25006"
_CANCELLED = "57014"


def state_of(error: BaseException) -> str:
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""


def cannot_connect(error: BaseException) -> bool:
    """True: it failed before there was a connection, or because none can be opened now."""
    state = state_of(error)
    return isinstance(error, psycopg.OperationalError) and (
        not state or state in ("53300", "57P01", "57P02", "57P03") or state.startswith("08")
    )


def translate(error: psycopg.Error, location: str) -> HoldfastError:
    """Our error for a PostgreSQL error while the store at `location` is in use."""
    state, said = state_of(error), _said(error)
    if isinstance(error, ConnectionLost) or (isinstance(error, psycopg.OperationalError) and not state):
        return StoreUnreachable(f"{location} cannot be reached ({said}). Nothing was written; try again")
    if state in _FULL:
        return StoreFull(f"{location} has no disk space left ({said}). Nothing was written; free some there")
    if state in RUN_AGAIN and not state.startswith("23"):
        return StoreBusy(
            f"another node kept {location} locked for too long ({said}). Nothing was written; try again"
        )
    if state == _CANCELLED:
        return StoreBusy(
            f"{location} took too long and was cancelled ({said}). Nothing was written; try again"
        )
    if state == _READ_ONLY:
        return StoreUnreachable(
            f"{location} is read-only: it is a standby, or was set so. Nothing was written; "
            "use the address of the primary in store.url"
        )
    if state == "53300":
        return StoreUnreachable(f"{location} has no free connection ({said}). Nothing was written; try again")
    if state.startswith(_CLASHES):
        return Conflict(f"it conflicts with what is stored already ({said}); nothing was written")
    if state in _RIGHTS:
        return StoreFailed(
            f"{location}: permission denied ({said}). Grant it to the user of store.url, then restart"
        )
    if state in _GONE:
        return StoreFailed(
            f"{location}: a table or column is missing ({said}). The schema was changed by hand; "
            "restore a backup, or use another database"
        )
    if state in _POOLED:
        return StoreFailed(
            f"{location}: a prepared statement is missing ({said}). A transaction pooler gives each "
            "transaction another connection; use PostgreSQL's own address in store.url, then restart"
        )
    if state.startswith(_UNTRUSTED):
        return StoreFailed(f"{location} cannot be trusted ({state} {type(error).__name__}: {said})")
    if state.startswith(_REFUSED):
        return BadInput(
            f"PostgreSQL cannot store this ({state} {said}); nothing was written. Make it shorter or smaller"
        )
    if state.startswith(_SHORT_OF_SOMETHING):
        return StoreBusy(f"{location} is out of a resource ({said}). Nothing was written; try again")
    return StoreError(
        f"{location}: unexpected database error ({state} {type(error).__name__}: {said}). Nothing was written"
    )


def cannot_open(error: psycopg.Error, location: str) -> StoreUnusable:
    """Our error for a database that cannot be opened."""
    state, said = state_of(error), _said(error)
    lowered = said.lower()
    if state == "28P01" or "password authentication failed" in lowered or "no password supplied" in lowered:
        return StoreUnusable(
            f"cannot open {location}: the password is wrong or missing. Put the right one into store.url, "
            "PGPASSWORD or ~/.pgpass"
        )
    if (
        state == "28000"
        or "no pg_hba.conf entry" in lowered
        or ("role" in lowered and "does not exist" in lowered)
    ):
        return StoreUnusable(f"cannot open {location}: PostgreSQL refused this user ({said})")
    if state == "3D000" or ("database" in lowered and "does not exist" in lowered):
        return StoreUnusable(f"cannot open {location}: there is no such database. Create it with `createdb`")
    if state == "53300" or "too many clients" in lowered or "remaining connection slots" in lowered:
        return StoreUnusable(
            f"cannot open {location}: too many connections. Each node takes about eight; raise "
            "max_connections, or close some"
        )
    if state == "42501":
        return StoreUnusable(
            f"cannot open {location}: permission denied ({said}). `GRANT CREATE ON DATABASE …`, or create "
            "the schema for this user: `CREATE SCHEMA holdfast AUTHORIZATION …`"
        )
    if state == "57P03":
        return StoreUnusable(f"cannot open {location}: PostgreSQL is starting up or shutting down; try again")
    if isinstance(error, psycopg.OperationalError):
        return StoreUnusable(
            f"cannot connect to {location} ({said}). Is PostgreSQL running there, and does it listen on that "
            "address?"
        )
    return StoreUnusable(f"cannot open {location} ({state} {type(error).__name__}: {said})")


def _said(error: BaseException) -> str:
    """PostgreSQL's own message, on one line."""
    diagnosis = getattr(error, "diag", None)
    primary = getattr(diagnosis, "message_primary", None)
    return " ".join(str(primary or error).split())
