"""Keeps the write-ahead log from being deleted under us, whatever else our process does.

SQLite tells other processes by POSIX locks that the database is in use. The kernel drops those as soon as
*anything* in this process closes *any* handle of the file: a checksum, a backup library. The next outsider
then takes itself for the last user, moves the log into the database and deletes it, and what we commit
meanwhile is gone. An open-file-description lock on the same bytes is not dropped that way. It is put on
SQLite's own handle, so no other handle is ever opened, and lets go by itself when the process dies.

Limits: Linux only; elsewhere, and for a closed handle of `-shm`, the check of the inodes is what there is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

# The bytes by whose shared lock every user of a database says that it is there (SQLite's file format).
SHARED_FIRST = 0x40000002
SHARED_SIZE = 510

_FLOCK = struct.Struct("hhqqi")


def handles_of(database: Path) -> set[int]:
    """This process's open handles of the file, as the kernel lists them."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return set()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == str(database):
                found.add(int(name))
        except OSError:
            continue  # closed meanwhile
    return found


class Anchor:
    """A shared lock on the database that only its own handle, or the end of the process, lets go."""

    def __init__(self, database: Path, handles_before: set[int]) -> None:
        """`handles_before`: those that were open before the connection to be anchored was."""
        now = handles_of(database)
        self._handle = max(now - handles_before, default=max(now, default=None))
        self._set(fcntl.F_RDLCK)

    def release(self) -> None:
        """Before the connection closes: the last one to leave may tidy up."""
        self._set(fcntl.F_UNLCK)
        self._handle = None

    def _set(self, kind: int) -> None:
        if self._handle is None:
            return
        lock = _FLOCK.pack(kind, os.SEEK_SET, SHARED_FIRST, SHARED_SIZE, 0)
        try:
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EAGAIN, errno.EACCES, errno.EBADF):
                raise
            self._handle = None  # a filesystem without such locks, or somebody is just closing the file
