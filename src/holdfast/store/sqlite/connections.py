"""Opens SQLite connections: checks first, then pragmas.

WAL with `synchronous=FULL`, because anything less lost acknowledged rows in simulated power cuts. Busy
timeouts are measured in time, not in tries. Deleted text is overwritten (`secure_delete`).
"""

from __future__ import annotations

import time
from pathlib import Path

import apsw

from ...errors import StoreUnusable
from ...os_support import IS_MACOS, private_umask
from .db_errors import cannot_open, translate

APPLICATION_ID = 0x686F6C64  # "hold"
OLDEST_SAFE = (3, 51, 3)
WITHDRAWN = {(3, 52, 0)}
PATIENCE_SECONDS = 30.0


def check_library(version: str) -> None:
    """Refuse a SQLite that can corrupt a WAL database when two connections reset it at once."""
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < OLDEST_SAFE or numbers in WITHDRAWN:
        raise StoreUnusable(
            f"the linked SQLite {version} has the WAL-reset bug, which can corrupt the store. "
            "Install apsw 3.54 or newer, which brings its own SQLite"
        )


class Patience:
    """A busy handler that gives up after a time, not after a number of tries."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self._since = time.monotonic()
        if time.monotonic() - self._since > self._seconds:
            return False
        time.sleep(min(0.001 * (tries + 1), 0.01))
        return True


class BusyDeadline:
    """A busy handler that gives up at one deadline, however many locks are waited for."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def __call__(self, tries: int) -> bool:
        if time.monotonic() > self._until:
            return False
        time.sleep(min(0.001 * (tries + 1), 0.01))
        return True


def connect(database: Path, *, patience: float = PATIENCE_SECONDS, reader: bool = False) -> apsw.Connection:
    """An open connection with our pragmas. Raises StoreUnusable, having changed nothing.

    `reader`: a read-only connection to a store that is open already. Its SQLite errors are those of a store
    in use, so a disk that fails now is StoreFailed.
    """
    connection: apsw.Connection | None = None
    try:
        with private_umask():
            connection = apsw.Connection(str(database))
        connection.set_busy_handler(Patience(patience))
        _enter(connection, database, patience)
        _set_up(connection)
        if reader:
            connection.execute("PRAGMA query_only = ON")
    except BaseException as error:
        reason = 0
        if connection is not None:
            reason = connection.system_errno
            connection.close()
        if isinstance(error, apsw.Error):
            raise (translate if reader else cannot_open)(error, str(database), reason) from error
        raise
    return connection


def _enter(connection: apsw.Connection, database: Path, patience: float) -> None:
    """Check the owner of the file and switch it to WAL, retrying while busy.

    While several processes create a store at the same moment, SQLite returns "busy" without calling our busy
    handler, because waiting inside it could deadlock. Releasing everything and retrying cannot.
    """
    until = time.monotonic() + patience
    while True:
        try:
            with private_umask():  # the first read creates -wal and -shm
                if connection.readonly("main"):  # SQLite opens a read-only file without an error
                    raise apsw.ReadOnlyError("the file is read-only")
                _check_owner(connection, database)
                mode = connection.execute("PRAGMA journal_mode = WAL").get
                connection.execute("PRAGMA user_version").fetchall()
            break
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.005)
    if mode != "wal":  # SQLite reports a failure in its result, not as an error
        raise StoreUnusable(
            f"cannot open {database}: it cannot be given a write-ahead log and stays in mode {mode}. "
            "Check the disk, its free space and its permissions"
        )


def _set_up(connection: apsw.Connection) -> None:
    # Otherwise SQLite may re-plan a statement for every bound value: ten times slower for short ones.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA cache_size = -16000")
    if IS_MACOS:
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.wal_autocheckpoint(0)


def _check_owner(connection: apsw.Connection, database: Path) -> None:
    """Refuse a file that belongs to another program."""
    # In one snapshot: another process may be creating the store right now.
    (application, tables) = connection.execute(
        "SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id"
    ).fetchall()[0]
    if application == APPLICATION_ID:
        return
    if application != 0 or tables:
        raise StoreUnusable(
            f"{database} is a SQLite database of another program, not a holdfast store; nothing was changed"
        )
