"""Decides which settings files and homes are trusted: only those that no other user can have written.

A `holdfast.toml` in the working directory may come with a cloned repository. It decides where keys are sent
and whether commands are run, so it is used only after `holdfast config trust`, which stores its real path and
the SHA-256 of its content in the home. A file that has changed since is no longer trusted. The bytes that
were compared are the bytes that are used.

A home that other users can write to, or that belongs to another user, is refused: a user who can put a file
there can plant an admin key (`api.key`) or trust a file. `domain/trust.py` decides who
counts as other users.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import shlex
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from .domain.trust import Account, FileFacts, Group, TrustVerdict, judge
from .errors import BadSetting
from .os_support import private_directory

FILE_NAME = "trusted.json"
INSTEAD = "set HOLDFAST_HOME to a directory of your own"


def check_home(home: Path) -> None:
    """Raises BadSetting, saying what to do, unless this is a trusted directory, a link to one, or missing."""
    verdict = _verdict(home)
    if verdict is None:
        if home.is_symlink():
            raise BadSetting(
                f"the home {home} is a link to {os.readlink(home)}, which does not exist; create that "
                f"directory, or {INSTEAD}"
            )
        return
    if not os.path.isdir(home):  # before its mode: nobody shall be told to change that of /dev/null
        raise BadSetting(
            f"the home {home} is not a directory that could hold the local key (api.key) and other files; "
            f"move it away, or {INSTEAD}"
        )
    _refuse_untrusted(home, verdict)
    if not os.access(home, os.R_OK | os.X_OK):
        owned = os.stat(home).st_uid == os.geteuid()
        remedy = ("chmod", "u+rwx") if owned else ("chown", "-R", str(os.geteuid()))
        raise BadSetting(
            f"the home {home} cannot be read by this user; run `{command_for(remedy, home)}` if it is yours, "
            f"or {INSTEAD}"
        )


def check_private(path: Path) -> None:
    """Raises BadSetting, saying what to run, if another user owns this file or directory or can change it. A
    missing path is fine."""
    verdict = _verdict(path)
    if verdict is not None:
        _refuse_untrusted(path, verdict)


def judge_file(path: Path, status: os.stat_result) -> TrustVerdict:
    """Whether this user may trust the file that was found there."""
    if not status.st_mode & stat.S_IWGRP:
        facts = FileFacts(status.st_uid, status.st_gid, status.st_mode)
        return judge(facts, os.geteuid(), Group(facts.group), ())
    facts = FileFacts(status.st_uid, status.st_gid, status.st_mode, _has_access_list(path))
    accounts = [Account(each.pw_name, each.pw_uid, each.pw_gid) for each in pwd.getpwall()]
    with suppress(KeyError):  # an account that is known, but not listed
        owner = pwd.getpwuid(facts.owner)
        accounts.append(Account(owner.pw_name, owner.pw_uid, owner.pw_gid))
    return judge(facts, os.geteuid(), _group(facts.group), accounts)


def command_for(remedy: Sequence[str], path: Path) -> str:
    """The command line that makes this path trusted."""
    return shlex.join([*remedy, str(path)])


def _verdict(path: Path) -> TrustVerdict | None:
    """None: there is nothing. Raises BadSetting if that cannot be seen."""
    try:
        return judge_file(path, path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror or error}; {INSTEAD}") from None


def _refuse_untrusted(path: Path, verdict: TrustVerdict) -> None:
    if verdict.is_trusted:
        return
    command = command_for(verdict.remedy, path)
    what = f"{path} {verdict.reason}, so it is not used"
    if verdict.remedy[0] == "chown":
        raise BadSetting(f"{what}; run `{command}` if it is yours, or {INSTEAD}")
    raise BadSetting(f"{what}; check that its files are yours, then run `{command}`")


def _group(gid: int) -> Group:
    try:
        found = grp.getgrgid(gid)
    except KeyError:
        return Group(gid)
    return Group(gid, found.gr_name, tuple(found.gr_mem))


def _has_access_list(path: Path) -> bool:
    """True if a POSIX access list gives more users permissions on it (Linux). The group's bits are then the
    most that any of them has."""
    if sys.platform != "linux":
        return False
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:
        return False  # a filesystem without access lists


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
        private_directory(home)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(known, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, home / FILE_NAME)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise BadSetting(f"{home / FILE_NAME} cannot be written: {error.strerror or error}") from None
