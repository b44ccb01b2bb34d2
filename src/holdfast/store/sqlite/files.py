"""The database's files, seen from outside: location, permissions, and whether they were replaced.

Nothing here opens them. Closing any plain handle on the database, `-wal` or `-shm` would drop this process's
POSIX locks, and the next outside process would consider the WAL abandoned and delete it.
"""

from __future__ import annotations

import os
from pathlib import Path
from shutil import disk_usage

from ...errors import StoreFailed, StoreUnusable
from ...os_support import filesystem_of, private_umask

NETWORK_FILESYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "afpfs", "webdav", "davfs", "ncpfs", "coda"),
        *("9p", "drvfs", "vboxsf", "prl_fs"),  # a virtual machine's or WSL's view of its host's disk
        *("ceph", "glusterfs", "lustre", "ocfs2", "gfs", "gfs2", "gpfs", "beegfs", "orangefs", "pvfs2"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs", "fuse.cephfs", "fuse.gcsfuse"),
        *("fuse.davfs2", "osxfuse", "macfuse"),
    }
)


def real(database: Path) -> Path:
    """The file itself, with symbolic links resolved. SQLite keeps the log beside the file itself, and we keep
    everything else there too: every name of a store leads to the same files."""
    return Path(os.path.realpath(database))


def prepare_directory(directory: Path) -> None:
    """Create the database's directory, private to its owner, if there is none; refuse an unusable one."""
    try:
        with private_umask():
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnusable(f"cannot create the directory {directory}: {error.strerror}") from error
    kind = filesystem_of(directory)
    if kind in NETWORK_FILESYSTEMS:
        raise StoreUnusable(
            f"{directory} is on a network filesystem ({kind}), where SQLite's locks and shared memory cannot "
            "be trusted. Put the store on a local disk, or use PostgreSQL when several machines share it"
        )


def log_size(database: Path) -> int:
    """Size of the write-ahead log. Read from the directory: only SQLite may open the file. Raises
    StoreUnusable if the directory cannot be read."""
    try:
        return os.stat(f"{database}-wal").st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreUnusable(f"cannot open {database}: {error.strerror}") from error


def space(database: Path) -> tuple[int, int]:
    """Bytes of the write-ahead log, and free bytes on its disk. Raises StoreUnusable."""
    try:
        return log_size(database), disk_usage(database.parent).free
    except OSError as error:
        raise StoreUnusable(f"cannot read {database.parent}: {error.strerror}") from error


class Inodes:
    """Records which files the store was opened on, to detect that they were replaced."""

    def __init__(self, database: Path) -> None:
        self._paths = (str(database), f"{database}-wal")
        self._seen = self._look()

    def _look(self) -> tuple[tuple[int, int], ...]:
        found = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except FileNotFoundError as error:
                raise StoreFailed(
                    f"{path} has vanished while the store was open: another program deleted or replaced it. "
                    "Nothing more is acknowledged; find that program, then restart"
                ) from error
            except OSError as error:
                raise StoreFailed(
                    f"{path} cannot be read any more ({error.strerror}). Nothing more is acknowledged; "
                    "check the disk, then restart"
                ) from error
            found.append((status.st_dev, status.st_ino))
        return tuple(found)

    def verify(self) -> None:
        """Raises StoreFailed if a file was deleted or replaced. Called before anything is acknowledged."""
        if self._look() != self._seen:
            raise StoreFailed(
                f"{self._paths[0]} or its -wal was replaced by another file while the store was open. "
                "Nothing more is acknowledged; find the program that did it, then restart"
            )
