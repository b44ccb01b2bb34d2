"""Checks API keys and returns the key that a token belongs to.

Keys read from the store are cached, so a request usually costs a hash and a comparison. A key revoked by any
process stops working within two seconds: at most once a second the store is asked whether anything was
committed, and only then is a key read again. Unknown keys are not cached, so a new key works at once, and
guessing cannot fill the cache.

Every invalid key gets the same error, whatever is wrong with it. While the store cannot be read, a key that
must be read is refused with the store's error: it fails closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256

from ...domain.api_keys import ApiKey, Scope, check_tools, parse_token, same_secret
from ...domain.ids import DEFAULT_OWNER
from ...errors import BadKey, KeyExpired
from ...store.store import Store
from .key_uses import KeyUses

RECHECK_SECONDS = 1.0
MOST_KEYS = 1024
ENVIRONMENT_KEY_ID = "key_environment"


@dataclass(frozen=True, slots=True)
class _CachedKey:
    """A key as the store returned it, and the store's version at that time."""

    key: ApiKey
    secret_hash: bytes
    version: int


class Authenticator:
    """`environment_key`: the value of $HOLDFAST_API_KEY, if any. `tools`: those the settings name; a key's
    other tools are ignored here."""

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
        self.uses = KeyUses(store, monotonic)
        self._environment: ApiKey | None = None
        self._environment_hash = b""
        if environment_key and environment_key.strip():
            self._environment = ApiKey(
                ENVIRONMENT_KEY_ID, DEFAULT_OWNER, Scope.ADMIN, self._tools, store.now()
            )
            self._environment_hash = _hash(environment_key.strip())

    async def authenticate(self, token: str | None) -> ApiKey:
        """The key of this token, with the tools it may use here. Raises BadKey if it is not valid."""
        if not token:
            raise BadKey
        if self._environment is not None and same_secret(_hash(token), self._environment_hash):
            return self._environment
        claimed = parse_token(token)
        known = await self._ask(claimed.key_id) if claimed else None
        if claimed is None or known is None or not same_secret(claimed.hash, known.secret_hash):
            raise BadKey
        return self._valid(known.key)

    async def is_valid(self, key: ApiKey) -> bool:
        """True if an authenticated key is still valid. Cheap enough for every open stream to call once a
        second."""
        if key is self._environment or key == self._environment:
            return True
        known = await self._ask(key.id)
        return (
            known is not None
            and known.key.revoked_at is None
            and (known.key.expires_at is None or not known.key.has_expired(self._store.now()))
        )

    def name_of(self, key: ApiKey) -> str:
        """A name for `named`. That of $HOLDFAST_API_KEY depends on its value, so a change of the value ends
        logins made with the old one."""
        if key != self._environment:
            return key.id
        return f"{key.id}:{sha256(b'name of ' + self._environment_hash).hexdigest()[:16]}"

    async def named(self, name: str) -> ApiKey:
        """The key of this name, for a caller that authenticated earlier. Raises BadKey if it is no longer
        valid."""
        if self._environment is not None and name == self.name_of(self._environment):
            return self._environment
        known = await self._ask(name)
        if known is None:
            raise BadKey
        return self._valid(known.key)

    def _valid(self, key: ApiKey) -> ApiKey:
        """Returns a key whose secret is right, and notes its use. Raises BadKey, KeyExpired."""
        if key.revoked_at is not None:
            raise BadKey
        if key.expires_at is not None and key.has_expired(self._store.now()):
            raise KeyExpired(f"{key.expires_at:%Y-%m-%d %H:%M} UTC")
        self.uses.note(key.id)
        return key

    async def by_id(self, key_id: str) -> ApiKey:
        """The key with this id, for a stored request that came with it. Raises BadKey if it is no longer
        valid."""
        if key_id == ENVIRONMENT_KEY_ID:
            if self._environment is None:
                raise BadKey
            return self._environment
        return await self.named(key_id)

    async def _ask(self, key_id: str) -> _CachedKey | None:
        version = self._version_lately()
        known = self._known.get(key_id)
        if known is not None:
            if known.version == version:
                return known
            self._known[key_id] = replace(known, version=version)  # concurrent requests need not read it too
        try:
            found = await self._store.key(key_id)
        except BaseException:
            self._known.pop(key_id, None)  # the read failed: the next request must read it
            raise
        if found is None:
            self._known.pop(key_id, None)
            return None
        key, secret_hash = found
        if key_id not in self._known and len(self._known) >= MOST_KEYS:
            del self._known[next(iter(self._known))]
        # The version was taken before the row was read: the cached row is at least as new as its version.
        known = _CachedKey(replace(key, tools=key.tools & self._tools), secret_hash, version)
        self._known[key_id] = known
        return known

    def _version_lately(self) -> int:
        """The store's version, read at most once a second."""
        now = self._monotonic()
        if now - self._looked_at >= RECHECK_SECONDS:
            self._version = self._store.version()
            self._looked_at = now
        return self._version


def _hash(text: str) -> bytes:
    """Hash tokens of any length and form, for comparison in constant time."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
