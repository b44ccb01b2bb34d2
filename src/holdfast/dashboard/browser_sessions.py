"""Who has logged in with a browser, and by which key; and one-time links that log in.

A token is 256 random bits; only its SHA-256 is kept, so nobody can log in with what they read there. A login
is a row of the store, valid on all of its nodes. It stands for the API key it was made with and ends with it,
at the latest after `LOGIN_FOR`. A key has `MOST_LOGINS` at most: of more, its own oldest ends.

A link is a small file, <home>/links/<hash of its token>: any process that may write to the home may make one
for the server that runs there. It logs in once: the process that removes its file has used it, and a file is
removed once.
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

from ..domain.api_keys import parse_token
from ..domain.ids import new_secret
from ..runtime.local_server import local_key
from ..store.base import Store

LOGIN_FOR = 7 * 86_400.0
LINK_FOR = 600.0
MOST_LOGINS = 50
"""Of one key; the limit keeps one key's holder from filling the store, and from ending others' logins."""
MOST_KEPT = 1000
"""Links; beyond that the oldest are forgotten."""


class _Kept(msgspec.Struct):
    key: str
    """The key's name, as the Authenticator calls it."""
    until: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Login:
    """A browser that is logged in."""

    token: str
    key: str
    """The name of the key it stands for."""

    @property
    def form(self) -> str:
        """What every form of this login carries, and no other page can know."""
        return sha256(f"form {self.token}".encode()).hexdigest()


class Logins:
    """Browsers that are logged in, as rows of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def log_in(self, key: str) -> Login:
        """From now on the token of this login acts as this key."""
        token = new_secret()
        await self._store.add_login(_digest(token), key, timedelta(seconds=LOGIN_FOR), MOST_LOGINS)
        return Login(token, key)

    async def find(self, token: str) -> Login | None:
        key = await self._store.login(_digest(token)) if token else None
        return Login(token, key) if key else None

    async def log_out(self, login: Login) -> None:
        await self._store.end_login(_digest(login.token))


class LinkBook:
    """One-time links, as files in the home."""

    def __init__(self, home: Path, clock: Callable[[], float] = time.time) -> None:
        self._links = home / "links"
        self._clock = clock

    def new_link(self, key: str) -> str:
        """The token of a link that logs in once."""
        return self._keep(self._links, key, LINK_FOR)

    def use_link(self, token: str) -> str | None:
        """The name of the key that it logs in with; None: it was used before, is too old, or is unknown."""
        path = self._links / _hash(token)
        kept = self._read(path)
        if kept is None:
            return None
        try:
            path.unlink()
        except FileNotFoundError:
            return None  # somebody else was quicker
        return kept.key

    def _keep(self, directory: Path, key: str, seconds: float) -> str:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        """Forget what is too old, and the oldest of what is too much."""
        kept = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for number, path in enumerate(kept):
            if number >= MOST_KEPT or self._read(path) is None:
                with suppress(FileNotFoundError):
                    path.unlink()


def login_link(url: str, home: Path, then: str = "/") -> str | None:
    """A link to the server at `url` that logs this user's browser in once, and leads to the page `then`; None
    if the home has no local key."""
    token = parse_token(local_key(home) or "")
    if token is None:
        return None
    link = LinkBook(home).new_link(token.key_id)
    return f"{url}/login?{urlencode({'link': link, **({'next': then} if then != '/' else {})})}"


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _hash(token: str) -> str:
    return _digest(token).hex()
