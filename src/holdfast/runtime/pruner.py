"""Drops what has been kept long enough: checkpoints of ended turns, events, request keys, nodes long gone;
whole conversations only if the settings say so.

Each pass is bounded, the oldest first. While passes are full they follow each other, with pauses that leave
most of the time to writers; then it rests for ten minutes: a sweep with nothing to drop costs nothing. How
long things are kept is what the store's policy says, else the settings of this program. Messages, sessions
and turns never go by themselves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..store.base import Pruned, Retention, Store

log = logging.getLogger(__name__)

PAUSE_SECONDS = 600.0


class Pruner:
    def __init__(
        self, store: Store, keep: Retention, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._keep = keep
        self._monotonic = monotonic
        self._next = 0.0

    async def prune_once(self) -> Pruned:
        """One bounded pass; `more` says whether the next call goes on, else it pauses."""
        if self._monotonic() < self._next:
            return Pruned()
        done = await self._store.prune((await self._store.policy()).retention or self._keep)
        if done.anything:
            log.info(
                "dropped %d drafts, %d events, %d request keys, %d nodes that are gone",
                done.drafts, done.events, done.requests, done.nodes,
            )  # fmt: skip
        if done.conversations:
            log.info(
                "deleted %d conversations that were kept long enough; %d as old stay, because something goes "
                "on in them",
                done.conversations,
                done.spared,
            )
        if not done.more:
            self._next = self._monotonic() + PAUSE_SECONDS
        return done
