"""Tracks which answers clients have received: known in memory at once, written a moment later.

The mark is not on the path of an answer. It is noted when the last byte was handed to an open connection, and
written in a batch after WRITE_SECONDS. A process that dies in between leaves the answer marked as being sent,
and a retry of the request gets it again. A failed write is retried; the marks stay in memory.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from ...domain.turns import Delivery
from ...errors import StoreClosed, StoreError
from ...store.store import Store

log = logging.getLogger(__name__)

WRITE_SECONDS = 0.2
RETRY_SECONDS = 5.0


class Receipts:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._noted: dict[str, Delivery] = {}
        self._writing: dict[str, Delivery] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._failing = False

    def note(self, turn_id: str, delivery: Delivery) -> None:
        """Record how much of this turn's answer a client has received. The mark only increases: a client that
        received less does not lower it."""
        self._noted[turn_id] = max(delivery, self._noted.get(turn_id, delivery))
        self._write_in(WRITE_SECONDS)

    def of(self, turn_id: str) -> Delivery | None:
        """The mark in memory, which may not be on disk yet; None: the store has it."""
        return self._noted.get(turn_id, self._writing.get(turn_id))

    async def settle(self, turn_id: str, delivery: Delivery) -> None:
        """Record the mark and return when it is on disk."""
        self._noted[turn_id] = delivery
        await self.write()

    async def write(self) -> None:
        """Write the recorded marks. Raises StoreError, and keeps the marks, if that fails."""
        async with self._lock:
            if not self._noted:
                return
            self._writing, self._noted = self._noted, {}
            try:
                await self._store.note_deliveries(self._writing)
                self._failing = False
            except BaseException:
                self._noted = {**self._writing, **self._noted}
                raise
            finally:
                self._writing = {}

    async def close(self) -> None:
        """Write the remaining marks. Marks that cannot be written are lost, as in a crash."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self.write()
        except StoreError as error:
            log.warning("could not record the receipt of %d answers: %s", len(self._noted), error)

    def _write_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _start(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._write_soon())

    async def _write_soon(self) -> None:
        try:
            with suppress(StoreClosed):
                await self.write()
        except StoreError as error:
            if not self._failing:
                log.warning("cannot record which answers were received, retrying: %s", error)
            self._failing = True
            self._write_in(RETRY_SECONDS)
