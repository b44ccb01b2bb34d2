"""The local address (where this home's server listens now, whatever the settings say) and the local key.

A server writes its address to `server.url` in the home when it listens, and removes it when it leaves; the
last server wins. Readers detect the file of a killed server: an address where no server listens is ignored,
and so is one where a process of another user does (Linux): it may have taken the port, and would get the key.
The file is a convenience, not a source of truth: a home that cannot be written to has none.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .domain.api_keys import Token, local_admin, parse_token, same_secret
from .domain.ids import new_id, new_secret
from .errors import BadSetting, Conflict, StoreBusy
from .os_support import listening_users, private_directory
from .trust import check_private

if TYPE_CHECKING:
    from .store.store import Store

log = logging.getLogger(__name__)

FILE_NAME = "server.url"
LOOPBACK = {"127.0.0.1": ["127.0.0.1"], "::1": ["::1"], "localhost": ["127.0.0.1", "::1"]}
ROOT = 0
UNKNOWN_USER = 65_534
"""What Linux shows for a user of another namespace."""
PATIENCE_SECONDS = 1.0


def note_address(home: Path, url: str) -> None:
    """Record where the home's server listens."""
    draft = home / f".{FILE_NAME}.{os.getpid()}"
    try:
        private_directory(home)
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{url}\n")
        os.replace(draft, home / FILE_NAME)
    except OSError as error:
        log.warning(
            "`holdfast env` will not find this server: %s cannot be written (%s)", home, error.strerror
        )


def take_back_address(home: Path, url: str) -> None:
    """Remove this server's address; an address written since by another server stays."""
    try:
        if _noted(home) == url:
            (home / FILE_NAME).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s could not be removed (%s)", home / FILE_NAME, error.strerror)


def local_address(home: Path) -> str | None:
    """Where the home's server listens; None: no server does."""
    try:
        url = _noted(home)
    except OSError:
        return None
    return url if url and is_listening(url) else None


def _noted(home: Path) -> str | None:
    try:
        return (home / FILE_NAME).read_bytes().decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None


def is_listening(url: str) -> bool:
    """True if a server accepts connections at this URL, and is not another user's."""
    try:
        place = urlsplit(url)
        with socket.create_connection((place.hostname or "", place.port or 0), PATIENCE_SECONDS):
            return not is_of_another_user(url)
    except (OSError, ValueError):
        return False


def is_of_another_user(url: str) -> bool:
    """True if a process of another user listens there on this machine: it must not get this user's key.
    Root's may be that of a container, whose ports it forwards; where the system does not say whose it is, it
    is this user's."""
    place = urlsplit(url)
    if place.hostname not in LOOPBACK or not place.port:
        return False
    users = {user for each in LOOPBACK[place.hostname] for user in listening_users(each, place.port)}
    return bool(users - {os.geteuid(), ROOT, UNKNOWN_USER})


LOCAL_KEY_FILE_NAME = "api.key"
LOCAL_KEY_PATIENCE_SECONDS = 10.0
POLL_SECONDS = 0.02


async def ensure_local_key(store: Store, home: Path) -> tuple[str, bool]:
    """The local key's token, and whether it was created now. Afterwards it is valid for this store.

    Raises BadSetting, having changed nothing, if the home cannot be used.
    """
    try:
        private_directory(home)
        async with _alone(home):
            token = _read(home)
            if token is not None and await _opens(store, token):
                _keep_private(home / LOCAL_KEY_FILE_NAME)
                return str(token), False
            token = Token(new_id("key"), new_secret())
            _write(home, token)
            # The file is written first: if we die here, the next caller adds the key to the store.
            await _opens(store, token)
            return str(token), True
    except OSError as error:
        raise _unusable(home, error) from error


def local_key(home: Path) -> str | None:
    """The local key's token; None: none. Creates nothing and does not use the store."""
    try:
        token = _read(home)
    except OSError as error:
        raise _unusable(home, error) from error
    return str(token) if token is not None else None


async def _opens(store: Store, token: Token) -> bool:
    """True if this token is valid for this store. An unknown token is added first."""
    while (found := await store.key(token.key_id)) is None:
        with suppress(Conflict):  # another process, with its own home, was faster
            await store.add_key(local_admin(token, store.now()), token.hash)
    key, secret_hash = found
    return key.revoked_at is None and same_secret(token.hash, secret_hash)


def _read(home: Path) -> Token | None:
    """The key in the file; None if another user could have put it there."""
    check_private(home)
    path = home / LOCAL_KEY_FILE_NAME
    try:
        content = path.read_bytes()
        check_private(path)
    except FileNotFoundError:
        return None
    except BadSetting as planted:
        log.warning("%s holds no key that can be trusted: %s", path, planted)
        return None
    return parse_token(content.decode("utf-8", "replace").strip())


def _write(home: Path, token: Token) -> None:
    """Write to a temporary file and rename it, so that a file with the final name is complete."""
    draft = home / f".{LOCAL_KEY_FILE_NAME}.{token.key_id}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{token}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, home / LOCAL_KEY_FILE_NAME)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _keep_private(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
        log.warning(
            "%s was readable by other users; its mode is now 0600. If it may have been read, revoke its key "
            "(holdfast keys list, holdfast keys revoke ID); a new one is then made",
            path,
        )


@asynccontextmanager
async def _alone(home: Path) -> AsyncIterator[None]:
    """Exclusive lock on the directory, by the kernel: leaves no file, and is released when the
    process dies."""
    directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + LOCAL_KEY_PATIENCE_SECONDS
        while not _try_lock(directory):
            if time.monotonic() >= deadline:
                raise StoreBusy(
                    f"another process has been making the local key in {home} "
                    f"for {LOCAL_KEY_PATIENCE_SECONDS:g} s; try again when it has ended"
                )
            await asyncio.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(directory)


def _try_lock(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a filesystem without locks: two keys may be created, and both are valid
    return True


def _unusable(home: Path, error: OSError) -> BadSetting:
    return BadSetting(
        f"the local key cannot be kept in {home / LOCAL_KEY_FILE_NAME}: {error.strerror or error}; "
        "set HOLDFAST_HOME to a directory of your own"
    )
