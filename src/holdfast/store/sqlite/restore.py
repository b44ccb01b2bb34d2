"""Puts a backup in the place of a store that no process has open. The replaced store is moved aside."""

from __future__ import annotations

import glob
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import apsw

from ...domain.ids import new_id
from ...domain.maintenance import Progress, no_progress
from ...errors import BadInput, StoreError
from ...os_support import exists, is_file, private_umask
from .backup import copy_database
from .connections import APPLICATION_ID
from .files import real
from .migrations import newest

log = logging.getLogger(__name__)


def restore(source: Path, database: Path, progress: Progress = no_progress) -> Path | None:
    """Put a copy of the backup `source` in the place of the store, which no process may have open.

    Returns the directory to which the replaced store was moved; None if there was none. Nothing is changed
    if `source` is not a sound store of this or an earlier version.
    """
    _check_backup(source)
    database = real(database)
    _empty_log(database)
    partial = database.with_name(f"{database.name}.{new_id('partial')}")
    aside = database.with_name(f"{database.name}.replaced-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    beside = sorted(database.parent.glob(f"{glob.escape(database.name)}[-.]*"))
    parts = [each for each in beside if each.name.removeprefix(database.name).startswith(_PARTS)]
    replaced = [each for each in (database, *parts) if exists(each)]
    try:
        with private_umask():
            database.parent.mkdir(parents=True, exist_ok=True)
            copy_database(source, partial, progress)
            _sync(partial)
            if replaced:
                aside.mkdir()
                for file in replaced:
                    if file == database:
                        os.link(file, aside / file.name)
                    else:
                        file.rename(aside / file.name)
        # The store is whole at any moment: the old one until here, the restored one from here on.
        partial.replace(database)
        _sync(database.parent)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"the restore from {source} failed: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return aside if replaced else None


def _empty_log(database: Path) -> None:
    """Write the log of the store that is there into its file, so that the file alone is the whole store. One
    that cannot be opened is left as it is."""
    if not exists(database):
        return
    try:
        writer = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            writer.close()
    except apsw.Error as error:
        log.warning("the store that is there cannot be read (%s); its files are moved aside", error)


def _sync(path: Path) -> None:
    """Return when this file or directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_PARTS = ("-wal", "-shm", ".search", ".nodes")
"""What belongs to a store besides its file: a log left beside another database would be applied to it."""


def _check_backup(source: Path) -> None:
    """Raises BadInput unless `source` is a sound store that this version can open."""
    if not is_file(source):
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
