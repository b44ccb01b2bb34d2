"""Puts a backup in the place of a store that no process has open. The replaced store is moved aside."""

from __future__ import annotations

import glob
from datetime import UTC, datetime
from pathlib import Path

import apsw

from ...domain.ids import new_id
from ...domain.maintenance import Progress, no_progress
from ...errors import BadInput, StoreError
from ...os_support import private_umask
from .backup import copy_database
from .connections import APPLICATION_ID
from .migrations import newest


def restore(source: Path, database: Path, progress: Progress = no_progress) -> Path | None:
    """Put a copy of the backup `source` in the place of the store, which no process may have open.

    Returns the directory to which the replaced store was moved; None if there was none. Nothing is changed
    if `source` is not a sound store of this or an earlier version.
    """
    _check_backup(source)
    partial = database.with_name(f"{database.name}.{new_id('partial')}")
    aside = database.with_name(f"{database.name}.replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    beside = sorted(database.parent.glob(f"{glob.escape(database.name)}[-.]*"))
    parts = [each for each in beside if each.name.removeprefix(database.name).startswith(_PARTS)]
    replaced = [each for each in (database, *parts) if each.exists()]
    try:
        with private_umask():
            database.parent.mkdir(parents=True, exist_ok=True)
            copy_database(source, partial, progress)
            if replaced:
                aside.mkdir()
                for file in replaced:
                    file.rename(aside / file.name)
        partial.rename(database)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"the restore from {source} failed: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return aside if replaced else None


_PARTS = ("-wal", "-shm", ".search", ".nodes")
"""What belongs to a store besides its file: a log left beside another database would be applied to it."""


def _check_backup(source: Path) -> None:
    """Raises BadInput unless `source` is a sound store that this version can open."""
    if not source.is_file():
        raise BadInput(f"there is no file {source}")
    try:
        reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            kind, version = (
                reader.execute(f"PRAGMA {name}").get for name in ("application_id", "user_version")
            )
            problem = reader.execute("PRAGMA quick_check(1)").get if kind == APPLICATION_ID else None
        finally:
            reader.close()
    except apsw.Error as error:
        raise BadInput(f"{source} is not a store of holdfast: {error}") from error
    if kind != APPLICATION_ID:
        raise BadInput(f"{source} is not a store of holdfast; a backup is made by `holdfast backup FILE`")
    if version > newest():
        raise BadInput(f"{source} was made by a newer version of holdfast; upgrade holdfast first")
    if problem != "ok":
        raise BadInput(f"{source} is damaged ({problem}); use another backup")
