"""SQLite on a disk that loses unsynced data: the system's VFS, with every change recorded on a `Disk`.

Changes are also made for real, so that SQLite can read them back; only the wait for the real disk is left
out. Locks and shared memory stay real. As in the real VFS, a log or journal syncs its directory at its first
sync.
"""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import apsw

from .disk import Disk, Platter
from .records import Note, Record, Tell

JOURNALS = (
    apsw.SQLITE_OPEN_WAL,
    apsw.SQLITE_OPEN_MAIN_JOURNAL,
    apsw.SQLITE_OPEN_SUPER_JOURNAL,
)


class PowerVFS(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__("forgetful", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or not self._disk.holds(path):
            return super().xOpen(name, flags)
        return PowerFile(self._disk, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._disk.holds(filename):
            self._disk.delete(filename)
            if syncdir:
                self._disk.sync_names()
        super().xDelete(filename, syncdir)


class PowerFile(apsw.VFSFile):
    def __init__(self, disk: Disk, path: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        wanted = flags[0]
        super().__init__("unix", name, flags)
        self._disk = disk
        self._platter: Platter = disk.open(path)
        self._syncs_names = any(wanted & kind for kind in JOURNALS) and bool(wanted & apsw.SQLITE_OPEN_CREATE)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.write(self._platter, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.write(self._platter, newsize, None)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.sync(self._platter)
        if self._syncs_names:
            self._disk.sync_names()
            self._syncs_names = False


_installed: list[PowerVFS] = []  # SQLite forgets a VFS when Python does


def install(database: str, cuts: list[int], survivors: str, seed: int, tell: Tell) -> Tell:
    """Let this process work on a disk that forgets, and cut its power before these operations.

    Each cut leaves a directory below `survivors` and is told, with the number of records that had been told
    before; this process goes on as if nothing had happened until the last of them. Returns what to tell with.
    """
    told = 0

    def counting(record: Record) -> None:
        nonlocal told
        told += 1
        tell(record)

    def cut(number: int) -> None:
        before = told  # taken first: whoever told something meanwhile had it on disk earlier
        underway = disk.leave_behind(Path(survivors) / str(number), random.Random(f"{seed} {number}"))
        tell(Note("cut", {"told": before, "underway": underway}))
        if number == len(cuts) - 1:
            os._exit(0)

    disk = Disk(Path(database).parent, {at: partial(cut, number) for number, at in enumerate(cuts)})
    _installed.append(PowerVFS(disk))
    return counting
