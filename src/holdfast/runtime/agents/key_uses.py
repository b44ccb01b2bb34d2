"""Records when API keys were last used: at most once a minute for each key, and not on a request's path.

A use is noted in memory and written with the others a moment later. A process that dies in between loses it;
a write that fails is tried again with the next use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from ...domain.api_keys import USE_NOTED_EVERY
from ...errors import StoreClosed, StoreError
from ...store.store import Store

log = logging.getLogger(__name__)

WRITE_SECONDS = 1.0
MOST_KEYS = 10_000
"""How many keys are remembered; then all are forgotten, and noted again at their next use."""
_EVERY = USE_NOTED_EVERY.total_seconds()


class KeyUses:
    def __init__(self, store: Store, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._monotonic = monotonic
        self._noted_at: dict[str, float] = {}
        self._waiting: dict[str, datetime] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def note(self, key_id: str) -> None:
        """Record a use of this key, if none was recorded in the last minute."""
        now = self._monotonic()
        last = self._noted_at.get(key_id)
        if last is not None and now - last < _EVERY:
            return
        if len(self._noted_at) >= MOST_KEYS:
            self._noted_at.clear()
        self._noted_at[key_id] = now
        self._waiting[key_id] = self._store.now()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._start)

    async def write_once(self) -> None:
        """Write the noted uses. Those that cannot be written are noted again at the next use."""
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        try:
            await self._store.note_key_uses(waiting)
        except StoreError as error:
            for key_id in waiting:
                self._noted_at.pop(key_id, None)
            if not isinstance(error, StoreClosed):
                log.info("the last use of %d API keys was not written: %s", len(waiting), error)

    async def close(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await self.write_once()

    def _start(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self.write_once())
