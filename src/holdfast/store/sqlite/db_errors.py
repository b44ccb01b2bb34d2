"""Maps SQLite errors to our error tree.

Three kinds matter. *Full* and *busy* are transient: nothing was written and writing continues later. Errors
that say that the disk or the file cannot be trusted (I/O, corruption, not a database, read-only) are
*failed*: the store stops, because after a failed fsync or on a corrupt page its content is unknown.
Every other error, also an unknown one, concerns *one statement*: only its caller gets it and the store
continues.
"""

from __future__ import annotations

import errno

import apsw

from ...errors import (
    Conflict,
    HoldfastError,
    StatementFailed,
    StoreBusy,
    StoreFailed,
    StoreFull,
    StoreUnusable,
    TooLarge,
)

_FAILED = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.CantOpenError)


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NO_MEMORY_CODES = (apsw.SQLITE_IOERR_NOMEM,)
_SYNC_CODES = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)


def _code(error: apsw.Error) -> int:
    return int(getattr(error, "extendedresult", 0))


def _no_space(error: apsw.Error, system_errno: int) -> bool:
    """True: this I/O error is a full disk. Never after a failed sync: then nothing is certain."""
    failed_sync = _code(error) in _SYNC_CODES
    return (
        isinstance(error, apsw.IOError | apsw.CantOpenError) and system_errno in _NO_SPACE and not failed_sync
    )


def translate(error: apsw.Error, location: str, system_errno: int = 0) -> HoldfastError:
    """Our error for a SQLite error while the store at `location` is in use.

    `system_errno` identifies a full disk where SQLite only reports "I/O error" (growing the shared memory
    file).
    """
    if isinstance(error, apsw.FullError) or _no_space(error, system_errno):
        return StoreFull(f"the disk is full: {location} cannot grow. Nothing was written; free some space")
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return StoreBusy(
            f"another process kept {location} locked for too long. Nothing was written; try again"
        )
    if isinstance(error, apsw.NoMemError) or _code(error) in _NO_MEMORY_CODES:
        return StatementFailed(f"{location}: out of memory. Nothing was written; try again")
    if isinstance(error, apsw.CantOpenError) and system_errno in _NO_RESOURCES:
        return StatementFailed(
            f"{location}: the process has no file handle or memory left ({errno.errorcode[system_errno]}). "
            "Nothing was written; raise `ulimit -n`, or try again"
        )
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return StoreFailed(f"{location} became read-only ({error}). Fix its permissions, then restart")
    if isinstance(error, apsw.CorruptError):
        return StoreFailed(
            f"{location} is corrupt ({error}). Nothing more is written. Run `holdfast doctor`, "
            "or restore a backup"
        )
    if isinstance(error, _FAILED):
        name = apsw.mapping_extended_result_codes.get(_code(error), "")
        return StoreFailed(
            f"{location} failed with an I/O error ({name}: {error}). Nothing more is acknowledged; "
            "check the disk, then restart"
        )
    if isinstance(error, apsw.ConstraintError):
        return Conflict(f"it conflicts with what is stored already ({error}); nothing was written")
    if isinstance(error, apsw.TooBigError):
        return TooLarge(f"it is larger than SQLite's largest value ({error}). Nothing was written; send less")
    return StatementFailed(
        f"{location}: one statement failed ({type(error).__name__}: {error}). Nothing of it was written and "
        "the store stays usable; please report this"
    )


def cannot_open(error: apsw.Error, location: str, system_errno: int = 0) -> StoreUnusable:
    """Our error for a store that cannot be opened."""
    if isinstance(error, apsw.FullError) or _no_space(error, system_errno):
        return StoreUnusable(f"the disk is full: {location} cannot be opened. Free some space")
    if isinstance(error, apsw.NotADBError):
        return StoreUnusable(f"{location} is not a SQLite database; nothing was changed. Choose another path")
    if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        return StoreUnusable(
            f"cannot open {location} for writing ({error}). Its directory must exist and be writable"
        )
    if isinstance(error, apsw.CorruptError):
        return StoreUnusable(f"{location} is corrupt ({error}). Restore a backup; nothing was changed")
    if isinstance(error, apsw.BusyError):
        return StoreUnusable(f"another process keeps {location} locked; try again when it has finished")
    return StoreUnusable(f"cannot open {location} ({type(error).__name__}: {error})")
