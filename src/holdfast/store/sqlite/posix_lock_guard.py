"""Keeps the write-ahead log from being deleted under us, whatever else our process does.

SQLite tells other processes by POSIX locks that the database and its `-shm` are in use. The kernel drops
those as soon as *anything* in this process closes *any* handle of the file: a checksum, a backup library.
The next outsider then takes itself for the only user: it moves the log into the database and deletes it, or
makes the shared memory anew, and what we commit meanwhile is gone. An open-file-description lock on the same
bytes is not dropped that way. It is put on SQLite's own handles, so none is ever opened here, and it goes by
itself when the process dies.

Limits: Linux only; elsewhere the check of the inodes is what there is. A writer elsewhere is kept away by
locks that come and go; a handle of `-shm` closed in the middle of a commit still drops those.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections import Counter
from pathlib import Path

# The bytes by whose shared lock every user says that it is there, in the database and in its -shm (SQLite's
# file formats): where they begin, and how many.
SHARED = (0x40000002, 510)
SWITCH = (128, 1)

_FLOCK = struct.Struct("hhqqi")


def handles_of(database: Path) -> set[int]:
    """This process's open handles of the file, whatever name they were opened by. Opens nothing."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return set()
    try:
        wanted = os.stat(database)
    except OSError:
        return set()  # not made yet
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
"""Handles of `-shm` and how many stores of this process count on their lock: they share one handle."""


class PosixLockGuard:
    """Shared locks on a store's files that only their own handles, or the end of the process, let go."""

    def __init__(self, database: Path, handles_before: set[int]) -> None:
        """`handles_before`: those of the database that were open before the connection to be anchored was."""
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
        """Before the connection closes: the last one to leave may tidy up."""
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
        # A filesystem without such locks, or somebody is just closing the file: then there is no anchor.
        if error.errno not in (errno.EINVAL, errno.EAGAIN, errno.EACCES, errno.EBADF):
            raise
