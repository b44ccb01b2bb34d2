"""Flushes and memories."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from ...domain.flushes import Flush, FlushInput, FlushState
from ...domain.memories import Memory, MemoryOrigin
from .. import flushes as flush_writes
from .. import memories as memory_writes
from ..base import FlushFigures, Page
from ..reads import check_limit
from ..transaction import Transaction
from .base import Verbs


class RememberingVerbs(Verbs):
    """Implements `store.promises.remembering.Remembers`."""

    # --- processing flushes -----------------------------------------------------------------------------

    async def flushes_due(self) -> bool:
        return await self._read(flush_writes.are_due)

    async def claim_flushes(self, node_id: str, *, together: int, per_minute: int) -> list[Flush]:
        return await self._write(lambda tx: flush_writes.claim(tx, node_id, together, per_minute))

    async def flush_input(self, session_id: str) -> FlushInput:
        return await self._read(lambda tx: flush_writes.read_input(tx, session_id))

    async def finish_flush(self, claimed: Flush, text: str | None) -> bool:
        return await self._write(lambda tx: flush_writes.finish(tx, claimed, text))

    async def fail_flush(self, claimed: Flush, error: str, pause: timedelta | None) -> bool:
        return await self._write(lambda tx: flush_writes.fail(tx, claimed, error, pause))

    async def release_flush(self, claimed: Flush) -> bool:
        return await self._write(lambda tx: flush_writes.release(tx, claimed))

    async def release_flushes(self, node_id: str, *, keep: Collection[str]) -> int:
        return await self._write(lambda tx: flush_writes.release_strays(tx, node_id, keep))

    # --- reading flushes, and manual actions -------------------------------------------------------------

    async def flush(self, owner: str | None, session_id: str) -> Flush:
        return await self._read(lambda tx: flush_writes.flush_of(tx, owner, session_id))

    async def flushes_of(self, session_ids: Sequence[str]) -> Mapping[str, Flush]:
        return await self._read(lambda tx: flush_writes.flushes_of(tx, session_ids))

    async def flushes(
        self,
        owner: str | None,
        *,
        state: FlushState | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> Page[Flush]:
        check_limit(limit)
        return await self._read(lambda tx: flush_writes.flushes(tx, owner, state, after, limit))

    async def retry_flush(self, owner: str | None, session_id: str) -> Flush:
        return await self._write(lambda tx: flush_writes.retry(tx, owner, session_id))

    async def retry_flushes(self, owner: str | None, *, limit: int = 1000) -> int:
        return await self._write(lambda tx: flush_writes.retry_dead(tx, owner, limit))

    async def skip_flush(self, owner: str | None, session_id: str, why: str) -> Flush:
        return await self._write(lambda tx: flush_writes.skip(tx, owner, session_id, why))

    async def skip_flushes(self, owner: str | None, before: datetime, why: str, *, limit: int = 1000) -> int:
        return await self._write(lambda tx: flush_writes.skip_before(tx, owner, before, why, limit))

    async def flush_figures(self) -> FlushFigures:
        return await self._read(flush_writes.figures)

    # --- memories ---------------------------------------------------------------------------------------

    async def memories(
        self,
        owner: str | None,
        *,
        key: str | None = None,
        conversation_id: str | None = None,
        words: str | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> Page[Memory]:
        check_limit(limit)
        return await self._read(
            lambda tx: memory_writes.memories(tx, owner, key, conversation_id, words, after, limit)
        )

    async def memory(self, owner: str | None, memory_id: str) -> Memory:
        return await self._read(lambda tx: memory_writes.memory_of(tx, owner, memory_id))

    async def remember(
        self,
        owner: str,
        conversation_id: str,
        text: str,
        *,
        session_id: str | None = None,
        origin: MemoryOrigin = MemoryOrigin.PERSON,
    ) -> Memory:
        def work(tx: Transaction) -> Memory:
            return memory_writes.remember(tx, owner, conversation_id, text, session_id, origin)

        return await self._write(work)

    async def edit_memory(self, owner: str | None, memory_id: str, text: str) -> Memory:
        return await self._write(lambda tx: memory_writes.edit(tx, owner, memory_id, text))

    async def forget_memory(self, owner: str | None, memory_id: str) -> None:
        await self._write(lambda tx: memory_writes.forget(tx, owner, memory_id))
