"""Decides which settings files and homes are trusted: only those that no other user can have written.

A `holdfast.toml` in the working directory may come with a cloned repository. It decides where keys are sent
and whether commands are run, so it is used only after `holdfast config trust`, which stores its real path and
the SHA-256 of its content in the home. A file that has changed since is no longer trusted. The bytes that
were compared are the bytes that are used.

A home that other users can write to, or that belongs to another user, is refused: a user who can put a file
there can plant an admin key (`api.key`) or trust a file.
"""

from __future__ import annotations

import json
import os
import stat
from hashlib import sha256
from pathlib import Path

from .errors import BadSetting

FILE_NAME = "trusted.json"


def check_private(path: Path) -> None:
    """Raises BadSetting, saying what to run, if another user owns this file or directory or can change it. A
    missing path is fine."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror or error}") from None
    if found.st_uid != os.geteuid():
        raise BadSetting(
            f"{path} belongs to another user (uid {found.st_uid}), so it is not used; "
            f"run `chown -R {os.geteuid()} {path}` if it is yours, or set HOLDFAST_HOME to a directory of "
            "your own"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadSetting(
            f"{path} can be changed by other users (mode {stat.S_IMODE(found.st_mode):04o}), so it is not "
            f"used; check that its files are yours, then run `chmod go-w {path}`"
        )


def is_trusted(home: Path, path: Path, content: bytes) -> bool:
    """True if exactly this content at this path was trusted by `trust`."""
    return _read(home).get(_name(path)) == _hash(content)


def trust(home: Path, path: Path, content: bytes) -> None:
    """Trust this content at this path, until it changes."""
    _write(home, {**_read(home), _name(path): _hash(content)})


def untrust(home: Path, path: Path) -> bool:
    """Remove the trust; False if the path was not trusted."""
    known = _read(home)
    if known.pop(_name(path), None) is None:
        return False
    _write(home, known)
    return True


def _name(path: Path) -> str:
    return os.path.realpath(path)


def _hash(content: bytes) -> str:
    return sha256(content).hexdigest()


def _read(home: Path) -> dict[str, str]:
    """The trusted hashes, by path. A file that cannot be parsed trusts nothing."""
    file = home / FILE_NAME
    check_private(home)
    check_private(file)
    try:
        known = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    except OSError as error:
        raise BadSetting(f"{file} cannot be read: {error.strerror or error}") from None
    if not isinstance(known, dict):
        return {}
    return {path: kept for path, kept in known.items() if isinstance(kept, str)}


def _write(home: Path, known: dict[str, str]) -> None:
    """Write atomically: readers always find a complete file."""
    draft = home / f".{FILE_NAME}.{os.getpid()}"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(known, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, home / FILE_NAME)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise BadSetting(f"{home / FILE_NAME} cannot be written: {error.strerror or error}") from None
