"""Consistent copies of a store in use, by SQLite's online backup."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from ...domain.ids import new_id
from ...domain.maintenance import Progress, no_progress
from ...errors import BadInput, StoreError
from ...os_support import exists, is_directory, private_umask


def back_up(database: Path, target: Path, progress: Progress = no_progress) -> None:
    """Copy the store to `target`, which appears complete or not at all, never over another file."""
    if exists(target):
        raise BadInput(f"{target} exists already; a backup never overwrites a file")
    if not is_directory(target.parent):
        raise BadInput(f"there is no directory {target.parent} for the backup")
    partial = target.with_name(f"{target.name}.{new_id('partial')}")
    try:
        with private_umask():
            copy_database(database, partial, progress)
        _publish(partial, target)
    except (apsw.Error, OSError) as error:
        raise StoreError(f"the backup to {target} failed ({error}); nothing was left behind") from error
    finally:
        partial.unlink(missing_ok=True)


def copy_database(source: Path, target: Path, progress: Progress = no_progress) -> None:
    """Copy a database's state at one moment into another file. The copy is a separate store: it does not use
    derived files of the original (its search index)."""
    reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    writer = apsw.Connection(str(target))
    try:
        # One snapshot for the whole copy: otherwise every commit meanwhile would restart it.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        with writer.backup("main", reader, "main") as backup:
            while not backup.done:
                backup.step(1000)
                progress(backup.page_count - backup.remaining, backup.page_count)
        writer.execute("PRAGMA journal_mode = DELETE")
        writer.execute("UPDATE store SET id = ?", (new_id("store"),))
    finally:
        writer.close()
        reader.close()


def _publish(partial: Path, target: Path) -> None:
    """Rename a finished file into place, never over another one."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:  # a filesystem without hard links
        if exists(target):
            raise
        partial.rename(target)
