"""Rebuilds turns from the store alone, to be run by this node.

The caller's key is looked up again: a turn whose key was revoked meanwhile cannot be run (BadKey), and one
that runs stops using tools when its key is revoked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from ...domain.recovery import StoredRequest, decoded_request
from ...domain.turns import Turn
from ...errors import BadInput, KeyRevoked
from ...store.store import Store
from ..turns.live import TurnSpec, allowed
from .authenticator import Authenticator

Check = Callable[[], Awaitable[None]]
Rebuild = Callable[[Turn, StoredRequest, frozenset[str], Check], Awaitable[TurnSpec]]
"""Makes the turn of a stored request. A surface provides it, because it has the renderers."""


class StoredTurns:
    def __init__(self, store: Store, authenticator: Authenticator, rebuild: Rebuild) -> None:
        self._store = store
        self._authenticator = authenticator
        self._rebuild = rebuild

    async def spec(self, turn: Turn) -> TurnSpec:
        """The turn as its client asked for it. Raises BadKey if its key was revoked, and BadInput if its
        stored request cannot be used."""
        stored = await self._store.stored_request(None, turn.id)
        if stored is None:
            raise BadInput("its request is no longer stored")
        try:
            request = decoded_request(stored)
        except msgspec.MsgspecError as error:
            raise BadInput(f"its stored request cannot be read: {error}") from None
        if not request.key_id:
            return await self._rebuild(turn, request, frozenset(request.tools), allowed)
        key = await self._authenticator.by_id(request.key_id)

        async def still_valid() -> None:
            if not await self._authenticator.is_valid(key):
                raise KeyRevoked

        return await self._rebuild(turn, request, key.tools, still_valid)
