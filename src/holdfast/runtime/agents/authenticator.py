"""Tells whether an API key opens this server, and which it is.

What the store says of a key is remembered, so that a request usually costs a hash and a comparison. A key
that is revoked, by whatever process, opens nothing any more within two seconds: once a second at most the
keeper asks whether anything at all was committed, and reads a key again only then. Keys that do not exist are
not remembered, so a new one opens at once, and nobody can fill the memory by guessing.

A key that opens nothing is answered with one error, whatever is wrong with it. While the store cannot be
read, a key that must be asked about is refused with the store's error: it fails closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256

from ...domain.api_keys import ApiKey, Scope, check_tools, parse_token, same_secret
from ...domain.ids import DEFAULT_OWNER
from ...errors import BadKey
from ...store.base import Store

RECHECK_SECONDS = 1.0
MOST_KEYS = 1024
ENVIRONMENT_KEY_ID = "key_environment"


@dataclass(frozen=True, slots=True)
class _CachedKey:
    """What the store said of a key, and at which of its versions."""

    key: ApiKey
    secret_hash: bytes
    version: int


class Authenticator:
    """`environment_key`: what $HOLDFAST_API_KEY holds, if anything. `tools`: those the settings name; no key
    has any other here, whatever it was allowed."""

    def __init__(
        self,
        store: Store,
        environment_key: str | None = None,
        tools: Iterable[str] = (),
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._tools = check_tools(tools)
        self._monotonic = monotonic
        self._known: dict[str, _CachedKey] = {}
        self._version = 0
        self._looked_at = float("-inf")
        self._environment: ApiKey | None = None
        self._environment_hash = b""
        if environment_key and environment_key.strip():
            self._environment = ApiKey(
                ENVIRONMENT_KEY_ID, DEFAULT_OWNER, Scope.ADMIN, self._tools, store.now()
            )
            self._environment_hash = _hash(environment_key.strip())

    async def authenticate(self, token: str | None) -> ApiKey:
        """The key that this token is, with the tools it may use here. BadKey if it opens nothing."""
        if not token:
            raise BadKey
        if self._environment is not None and same_secret(_hash(token), self._environment_hash):
            return self._environment
        claimed = parse_token(token)
        known = await self._ask(claimed.key_id) if claimed else None
        if claimed is None or known is None or not same_secret(claimed.hash, known.secret_hash):
            raise BadKey
        if known.key.revoked_at is not None:
            raise BadKey
        return known.key

    async def is_valid(self, key: ApiKey) -> bool:
        """Does a key that was authenticated still open anything? Cheap enough for every open stream to ask
        once a second."""
        if key == self._environment:
            return True
        known = await self._ask(key.id)
        return known is not None and known.key.revoked_at is None

    def name_of(self, key: ApiKey) -> str:
        """A name of an authenticated key for `named`. That of $HOLDFAST_API_KEY is another for another value:
        who logged in by one does not stay in by the next."""
        if key != self._environment:
            return key.id
        return f"{key.id}:{sha256(b'name of ' + self._environment_hash).hexdigest()[:16]}"

    async def named(self, name: str) -> ApiKey:
        """The key of this name, for whoever has proven before that it is theirs. BadKey if it opens nothing
        any more."""
        if self._environment is not None and name == self.name_of(self._environment):
            return self._environment
        known = await self._ask(name)
        if known is None or known.key.revoked_at is not None:
            raise BadKey
        return known.key

    async def _ask(self, key_id: str) -> _CachedKey | None:
        version = self._version_lately()
        known = self._known.get(key_id)
        if known is not None:
            if known.version == version:
                return known
            self._known[key_id] = replace(known, version=version)  # whoever comes meanwhile need not ask too
        try:
            found = await self._store.key(key_id)
        except BaseException:
            self._known.pop(key_id, None)  # nobody has looked: the next one must
            raise
        if found is None:
            self._known.pop(key_id, None)
            return None
        key, secret_hash = found
        if key_id not in self._known and len(self._known) >= MOST_KEYS:
            del self._known[next(iter(self._known))]
        # The version was taken before the row was read: what is remembered is at least as new as it says.
        known = _CachedKey(replace(key, tools=key.tools & self._tools), secret_hash, version)
        self._known[key_id] = known
        return known

    def _version_lately(self) -> int:
        """The store's version, asked for once a second at most."""
        now = self._monotonic()
        if now - self._looked_at >= RECHECK_SECONDS:
            self._version = self._store.version()
            self._looked_at = now
        return self._version


def _hash(text: str) -> bytes:
    """Keys of any length and form, made comparable in constant time."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
