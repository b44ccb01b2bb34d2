"""Flushes and memories: what is carried from ended sessions into later ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from ...domain.flushes import Flush, FlushInput, FlushState
from ...domain.memories import Memory, MemoryOrigin
from ..values import FlushFigures, Page


class Remembers(Protocol):
    """Flushes ended sessions, once, and keeps what is remembered.

    Whatever ends a session schedules its flush in the same transaction, by the rules that the store was
    opened with; without rules nothing is scheduled. A session that goes on with the context of one whose
    flush is waiting takes that flush over.
    """

    # --- working flushes off ----------------------------------------------------------------------------

    async def flushes_due(self) -> bool:
        """Is there a flush to claim? Costs the same whatever is stored, or long done."""
        ...

    async def claim_flushes(self, node_id: str, *, together: int, per_minute: int) -> list[Flush]:
        """Claim flushes that are due, the longest waiting first, for this node, under a new token.

        No more than leaves `together` running and `per_minute` attempted within a minute, by all nodes. What
        nodes that are gone had claimed is free again first; that was no attempt. Each claimed one counts as
        attempted.
        """
        ...

    async def flush_input(self, session_id: str) -> FlushInput:
        """What a flush is to read: summaries of compacted parts and messages since the last flush."""
        ...

    async def finish_flush(self, claimed: Flush, text: str | None) -> bool:
        """It is done, and this is remembered (None: nothing is): one transaction. False, having written
        nothing, if the claim has passed on."""
        ...

    async def fail_flush(self, claimed: Flush, error: str, pause: timedelta | None) -> bool:
        """The attempt has failed: again after this pause. None: never by itself, it is a dead letter. False,
        having written nothing, if the claim has passed on."""
        ...

    async def release_flush(self, claimed: Flush) -> bool:
        """Give a claim back; that was no attempt. False if it has passed on."""
        ...

    async def release_flushes(self, node_id: str, *, keep: Collection[str]) -> int:
        """Give back what this node has claimed but does not work at: all but the flushes of the sessions
        `keep`. For a node that was not told whether a claim of its was committed. Returns how many."""
        ...

    # --- looking at flushes, and acting by hand ----------------------------------------------------------

    async def flush(self, owner: str | None, session_id: str) -> Flush:
        """The flush of this session; NotFound if it has none."""
        ...

    async def flushes_of(self, session_ids: Sequence[str]) -> Mapping[str, Flush]:
        """The flushes of these sessions, by session id; those without one are left out."""
        ...

    async def flushes(
        self,
        owner: str | None,
        *,
        state: FlushState | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> Page[Flush]:
        """A page of flushes, the newest first, behind the flush of the session `after`."""
        ...

    async def retry_flush(self, owner: str | None, session_id: str) -> Flush:
        """What was given up, skipped or waits is due now, with all its attempts before it. Conflict, having
        changed nothing, if it is running, done or taken over."""
        ...

    async def retry_flushes(self, owner: str | None, *, limit: int = 1000) -> int:
        """The same for dead letters, the oldest first; returns how many."""
        ...

    async def skip_flush(self, owner: str | None, session_id: str, why: str) -> Flush:
        """Do not flush this session; `why` is kept. Conflict, having changed nothing, if it is running, done
        or taken over."""
        ...

    async def skip_flushes(self, owner: str | None, before: datetime, why: str, *, limit: int = 1000) -> int:
        """Do not flush what sessions have said that nobody has spoken in since `before`: what waits or was
        given up, and what is still open and may become due. Bounded; returns how many, 0: there are no more.
        """
        ...

    async def flush_figures(self) -> FlushFigures:
        """How many flushes wait, are running and were given up, and how many sessions are due to be reset."""
        ...

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
        """A page of memories, the newest first, behind the memory `after`: of one key or conversation, and
        only those that hold all these words."""
        ...

    async def memory(self, owner: str | None, memory_id: str) -> Memory: ...

    async def remember(
        self,
        owner: str,
        conversation_id: str,
        text: str,
        *,
        session_id: str | None = None,
        origin: MemoryOrigin = MemoryOrigin.PERSON,
    ) -> Memory:
        """Remember this with a conversation."""
        ...

    async def edit_memory(self, owner: str | None, memory_id: str, text: str) -> Memory:
        """From now on it says this; what it said before is gone."""
        ...

    async def forget_memory(self, owner: str | None, memory_id: str) -> None:
        """It is gone: nothing of what it said is left. The session it came from is not flushed again."""
        ...
