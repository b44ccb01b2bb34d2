"""Makes a private, consistent copy of a Hermes database, also while Hermes writes.

The home does not change by a byte. A database that is open elsewhere is copied by SQLite's online backup,
under its locks. One that is not open is copied as files, with its write-ahead log: opening it in place, even
read-only, would create files beside it. SQLite's own lock is checked before and after the copy to see that it
is not open.

Columns that an older Hermes lacks are added to the copy, so one set of statements reads every version. The
copy is removed when the block ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import apsw

from ...errors import BadInput
from ...os_support import exists, is_directory, is_locked, open_private
from ...store.queries import parse
from ..writing import StepProgress, no_step_progress
from .home import NOTHING

STATEMENTS = parse(files(__package__).joinpath("queries/home.sql").read_text("utf-8"))

# Where SQLite marks a write-ahead log as in use: the byte after the eight locks of its shared memory.
IN_USE_BYTE = 128
PAGES_AT_ONCE = 2000
BUSY_MS = 10_000

# Columns that identify a Hermes database, and columns that some versions lack.
NEEDED = {
    "sessions": {"id", "source", "started_at"},
    "messages": {"id", "session_id", "role", "content", "timestamp"},
}
READ = {
    "sessions": (
        *("model", "model_config", "parent_session_id", "ended_at", "end_reason", "message_count"),
        *("input_tokens", "output_tokens", "title", "session_key"),
    ),
    "messages": (
        *("tool_call_id", "tool_calls", "platform_message_id"),
        *("active DEFAULT 1", "compacted DEFAULT 0"),
    ),
}


@contextmanager
def private_copy(
    database: Path, places: Sequence[Path] = (), progress: StepProgress = no_step_progress
) -> Iterator[apsw.Connection]:
    """A connection to a copy of this database, prepared for our statements.

    `places`: directories that may have room for the copy, besides the system's temporary directory. Raises
    BadInput, worded for its owner, if the database cannot be read, is damaged, or is not Hermes'.
    """
    database = Path(os.path.realpath(database))  # the log is beside the real file, not beside a symlink
    with _room_for(database, places) as directory:
        target = directory / "state.db"
        try:
            _copy(database, target, progress)
            _require_whole(database, target)
            connection = apsw.Connection(str(target))
        except PermissionError as error:
            raise _no_rights(database, error) from error
        except OSError as error:
            raise BadInput(f"{database} cannot be copied ({error}). {NOTHING}") from error
        except apsw.Error as error:
            raise BadInput(_words(database, error)) from error
        try:
            _make_ready(connection, database, progress)
            # From here on it is only read. Unlinked, it leaves no file, however this ends.
            target.unlink()
            directory.rmdir()
            yield connection
        except apsw.Error as error:
            raise BadInput(_words(database, error)) from error
        finally:
            connection.close()


@contextmanager
def _room_for(database: Path, places: Sequence[Path]) -> Iterator[Path]:
    """A private temporary directory with room for the copy."""
    try:
        needed = sum(file.stat().st_size for file in (database, _log_of(database)) if exists(file))
    except PermissionError as error:
        raise _no_rights(database, error) from error
    needed += needed // 4 + (16 << 20)  # for our index
    fitting = [
        place
        for place in (Path(tempfile.gettempdir()), *places)
        if is_directory(place) and shutil.disk_usage(place).free >= needed
    ]
    if not fitting:
        raise BadInput(
            f"a copy of {database} needs {needed >> 20:,} MB, more than is free; name a directory "
            f"that has it in the variable TMPDIR. {NOTHING}"
        )
    with tempfile.TemporaryDirectory(prefix="holdfast-hermes-", dir=fitting[0]) as directory:
        yield Path(directory)


def _no_rights(database: Path, error: PermissionError) -> BadInput:
    return BadInput(f"{database} cannot be read ({error.strerror}). {NOTHING}")


def _log_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _copy(database: Path, target: Path, progress: StepProgress) -> None:
    if not (_at_rest(database) and _copy_at_rest(database, target)):
        _copy_live(database, target, progress)


def _at_rest(database: Path) -> bool:
    shared = database.with_name(f"{database.name}-shm")
    if exists(database.with_name(f"{database.name}-journal")):
        return False
    return not (exists(shared) and is_locked(shared, IN_USE_BYTE))


def _copy_at_rest(database: Path, target: Path) -> bool:
    """Copy the files. Returns False, leaving no copy, if the database was opened or changed meanwhile."""
    before = _state_of(database)
    for file in (database, _log_of(database)):
        if exists(file):
            copy = target.with_name(target.name + file.name.removeprefix(database.name))
            os.close(open_private(copy, os.O_WRONLY))
            shutil.copyfile(file, copy)
    if _state_of(database) == before and _at_rest(database):
        return True
    for file in (target, _log_of(target)):
        file.unlink(missing_ok=True)
    return False


def _state_of(database: Path) -> list[tuple[int, int, int] | None]:
    found: list[tuple[int, int, int] | None] = []
    for file in (database, _log_of(database)):
        stat = file.stat() if exists(file) else None
        found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else None)
    return found


def _copy_live(database: Path, target: Path, progress: StepProgress) -> None:
    reader = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    writer = apsw.Connection(str(target))
    try:
        reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        reader.set_busy_timeout(BUSY_MS)
        # One snapshot for the whole copy: otherwise every commit meanwhile would restart it.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        with writer.backup("main", reader, "main") as backup:
            while not backup.done:
                backup.step(PAGES_AT_ONCE)
                progress("copying", backup.page_count - backup.remaining, backup.page_count)
    finally:
        writer.close()
        reader.close()


def _require_whole(database: Path, copy: Path) -> None:
    """Raise BadInput if the file is shorter than its header says (truncated). SQLite may not check."""
    if exists(_log_of(copy)):
        return  # the rest may be in the log
    with copy.open("rb") as file:
        header = file.read(100)
    if header[:16] == b"SQLite format 3\0":
        page = int.from_bytes(header[16:18])
        whole = int.from_bytes(header[28:32]) * (65536 if page == 1 else page)
        if (size := copy.stat().st_size) < whole:
            raise BadInput(f"{database} was cut off: it has {size:,} bytes of {whole:,}. {_mended()}")


def _make_ready(connection: apsw.Connection, database: Path, progress: StepProgress) -> None:
    for pragma in ("journal_mode = OFF", "synchronous = OFF", "temp_store = FILE", "cache_size = -32768"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    columns = {table: _columns(connection, table) for table in NEEDED}
    for table, needed in NEEDED.items():
        if not columns[table]:
            raise BadInput(f"{database} is not a Hermes database: it has no table {table}. {NOTHING}")
        if lacking := needed - columns[table]:
            named = ", ".join(sorted(lacking))
            raise BadInput(f"{database} is not a Hermes database: its {table} lack {named}. {NOTHING}")
    progress("checking", 0, 1)
    for table in NEEDED:
        found = [row[0] for row in connection.execute(f"PRAGMA quick_check('{table}')") if row[0] != "ok"]
        # A row that violates a constraint (NULL in a NOT NULL column) does not mean a damaged file.
        if damage := [sentence for sentence in found if not str(sentence).startswith("NULL value in")]:
            said = str(damage[0]).splitlines()[-1]
            raise BadInput(f"{database} is damaged: {said}. {_mended()}")
    for table, read in READ.items():
        for column in read:
            if column.split()[0] not in columns[table]:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    connection.execute(STATEMENTS["prepare_messages"])
    progress("checking", 1, 1)


def _columns(connection: apsw.Connection, table: str) -> set[str]:
    rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    return {str(name) for (name,) in rows}


def columns_of(connection: apsw.Connection, table: str) -> list[str]:
    """The columns of a table, in order."""
    rows = connection.execute("SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,))
    return [str(name) for (name,) in rows]


def _mended() -> str:
    return f"{NOTHING}. Restore the home from a backup, or recover the file with sqlite3 (`.recover`)"


def _words(database: Path, error: apsw.Error) -> str:
    if isinstance(error, apsw.NotADBError):
        return f"{database} is not a SQLite database. {NOTHING}"
    if isinstance(error, apsw.CorruptError | apsw.IOError):
        return f"{database} is damaged or cut off ({error}). {_mended()}"
    if isinstance(error, apsw.ReadOnlyError):
        return (
            f"{database} was left in the middle of a write; start Hermes once to repair it, and stop "
            f"it again. {NOTHING}"
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return f"{database} is being written all the time; try again, or stop Hermes first. {NOTHING}"
    return f"{database} cannot be read ({error}). {NOTHING}"
