"""Browser logins, each for one API key, and one-time login links.

A token is 256 random bits. Only its SHA-256 is stored, so what is stored cannot be used to log in. A login is
a row of the store, valid on all of its nodes. It acts as the API key it was made with and ends with it, at
the latest after `LOGIN_FOR`. A key has at most `MOST_LOGINS`: one more ends the key's own oldest login.

A link is a small file, <home>/links/<hash of its token>: any process that may write to the home can make one
for the server that runs there. It logs in once: only the process that removes the file may use it, and a file
can be removed only once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlencode

import msgspec

from ..app import Holdfast
from ..domain.api_keys import parse_token
from ..domain.ids import new_secret
from ..local_server import local_key
from ..os_support import private_directory

LOGIN_FOR = 7 * 86_400.0
LINK_FOR = 600.0
MOST_LOGINS = 50
"""Per API key: so that one key's holder can neither fill the store nor end the logins of other keys."""
MOST_KEPT = 1000
"""Maximum number of links; over it the oldest are deleted."""


class _Kept(msgspec.Struct):
    key: str
    """The API key's name, as `Authenticator.name_of` gives it."""
    until: float
    """Unix time at which it expires."""


@dataclass(frozen=True, slots=True)
class Login:
    """The login of one browser."""

    token: str
    key: str
    """The name of the API key that it acts as."""

    @property
    def form(self) -> str:
        """The CSRF token: in every form of this login, and unknown to pages of other sites."""
        return sha256(f"form {self.token}".encode()).hexdigest()


class Logins:
    """Browser logins, as rows of the store."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf

    async def log_in(self, key: str) -> Login:
        """A new login, whose token acts as this API key."""
        token = new_secret()
        await self._hf.add_login(_digest(token), key, timedelta(seconds=LOGIN_FOR), MOST_LOGINS)
        return Login(token, key)

    async def find(self, token: str) -> Login | None:
        key = await self._hf.login(_digest(token)) if token else None
        return Login(token, key) if key else None

    async def log_out(self, login: Login) -> None:
        await self._hf.end_login(_digest(login.token))


class LinkBook:
    """One-time login links, as files in the home."""

    def __init__(self, home: Path, clock: Callable[[], float] = time.time) -> None:
        self._links = home / "links"
        self._clock = clock

    def new_link(self, key: str) -> str:
        """The token of a new link, which logs in once."""
        return self._keep(self._links, key, LINK_FOR)

    def use_link(self, token: str) -> str | None:
        """The name of the API key that the link logs in with; None: used before, expired or unknown."""
        path = self._links / _hash(token)
        kept = self._read(path)
        if kept is None:
            return None
        try:
            path.unlink()
        except FileNotFoundError:
            return None  # another process has used it first
        return kept.key

    def _keep(self, directory: Path, key: str, seconds: float) -> str:
        private_directory(directory)
        self._tidy(directory)
        token = new_secret()
        draft = directory / f".{_hash(token)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(_Kept(key, self._clock() + seconds)))
        draft.rename(directory / _hash(token))
        return token

    def _read(self, path: Path) -> _Kept | None:
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return kept if kept.until > self._clock() else None

    def _tidy(self, directory: Path) -> None:
        """Delete expired links, and the oldest over MOST_KEPT."""
        kept = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for number, path in enumerate(kept):
            if number >= MOST_KEPT or self._read(path) is None:
                with suppress(FileNotFoundError):
                    path.unlink()


def login_link(url: str, home: Path, then: str = "/") -> str | None:
    """A link to the server at `url` that logs a browser in once and opens the page `then`; None if the home
    has no local API key."""
    token = parse_token(local_key(home) or "")
    if token is None:
        return None
    link = LinkBook(home).new_link(token.key_id)
    return f"{url}/login?{urlencode({'link': link, **({'next': then} if then != '/' else {})})}"


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _hash(token: str) -> str:
    return _digest(token).hex()
