"""Keeps other processes from deleting the write-ahead log while we use it.

SQLite shows other processes by POSIX locks that the database and its `-shm` are in use. The kernel drops
those as soon as *anything* in this process closes *any* handle of the file: a checksum, a backup library. The
next outside process then believes that it is the only user: it moves the log into the database and deletes
it, or recreates the shared memory, and what we commit meanwhile is lost. An open-file-description lock on the
same bytes is not dropped that way. It is put on SQLite's own handles, so none is ever opened here, and it
ends with the process.

Limits: Linux only; elsewhere only the inode check remains. Outside writers are excluded by SQLite's transient
locks; a handle of `-shm` closed in the middle of a commit still drops those.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections import Counter
from pathlib import Path

# The bytes whose shared lock marks a user of the database and of its -shm (SQLite's file formats): offset and
# length.
SHARED = (0x40000002, 510)
SWITCH = (128, 1)

_FLOCK = struct.Struct("hhqqi")


def handles_of(database: Path) -> set[int]:
    """This process's open handles of the file, under any name. Opens nothing."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return set()
    try:
        wanted = os.stat(database)
    except OSError:
        return set()  # does not exist yet
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.path.samestat(os.fstat(int(name)), wanted):
                found.add(int(name))
        except OSError:
            continue  # closed meanwhile
    return found


_guard = threading.Lock()
_anchored: Counter[int] = Counter()
"""Handles of `-shm`, and how many stores of this process rely on their lock: they share one handle."""


class PosixLockGuard:
    """Shared locks on a store's files, released only by their own handles or the end of the process."""

    def __init__(self, database: Path, handles_before: set[int]) -> None:
        """`handles_before`: handles of the database opened before the connection to guard."""
        now = handles_of(database)
        self._handle = max(now - handles_before, default=max(now, default=None))
        self._switches = handles_of(Path(f"{database}-shm"))
        if self._handle is not None:
            _lock(self._handle, fcntl.F_RDLCK, SHARED)
        with _guard:
            for handle in self._switches:
                _anchored[handle] += 1
                _lock(handle, fcntl.F_RDLCK, SWITCH)

    def release(self) -> None:
        """Release before the connection closes, so that the last process to leave may clean up."""
        if self._handle is not None:
            _lock(self._handle, fcntl.F_UNLCK, SHARED)
            self._handle = None
        with _guard:
            for handle in self._switches:
                _anchored[handle] -= 1
                if not _anchored[handle]:
                    _lock(handle, fcntl.F_UNLCK, SWITCH)
            self._switches = set()


def _lock(handle: int, kind: int, where: tuple[int, int]) -> None:
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, *where, 0))
    except OSError as error:
        # The filesystem has no such locks, or the file is being closed right now: then there is no guard.
        if error.errno not in (errno.EINVAL, errno.EAGAIN, errno.EACCES, errno.EBADF):
            raise
