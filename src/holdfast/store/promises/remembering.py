"""Flushes and memories: what is carried from ended sessions into later ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from ...domain.flushes import Flush, FlushInput, FlushState
from ...domain.memories import Memory, MemoryOrigin
from ..values import FlushFigures, Page


class Remembers(Protocol):
    """Flushes ended sessions, once, and stores memories.

    Every end of a session schedules its flush in the same transaction, by the rules that the store was opened
    with; without rules nothing is scheduled. A session that continues the context of one whose flush is
    pending takes that flush over.
    """

    # --- processing flushes -----------------------------------------------------------------------------

    async def flushes_due(self) -> bool:
        """True: there is a flush to claim. Cost is constant, whatever is stored or done."""
        ...

    async def claim_flushes(self, node_id: str, *, together: int, per_minute: int) -> list[Flush]:
        """Claim due flushes, the longest waiting first, for this node, under a new token.

        Limits, over all nodes: `together` running, and `per_minute` attempted within a minute. First requeues
        the claims of nodes that are gone; those do not count as attempts. Each new claim counts as one.
        """
        ...

    async def flush_input(self, session_id: str) -> FlushInput:
        """Input of a flush: summaries of compacted parts and messages since the last flush."""
        ...

    async def finish_flush(self, claimed: Flush, text: str | None) -> bool:
        """Mark it done and store the memory (None: nothing to remember): one transaction. False, having
        written nothing, if the claim was lost."""
        ...

    async def fail_flush(self, claimed: Flush, error: str, pause: timedelta | None) -> bool:
        """Record a failed attempt and requeue after this pause. None: no automatic retry, it is a dead
        letter. False, having written nothing, if the claim was lost."""
        ...

    async def release_flush(self, claimed: Flush) -> bool:
        """Give a claim back; does not count as an attempt. False if the claim was lost."""
        ...

    async def release_flushes(self, node_id: str, *, keep: Collection[str]) -> int:
        """Give back claims of this node that it does not work on: all but the sessions `keep`. For a node
        that does not know whether its claim was committed. Returns how many."""
        ...

    # --- reading flushes, and manual actions -------------------------------------------------------------

    async def flush(self, owner: str | None, session_id: str) -> Flush:
        """The flush of this session; NotFound if it has none."""
        ...

    async def flushes_of(self, session_ids: Sequence[str]) -> Mapping[str, Flush]:
        """The flushes of these sessions, by session id; sessions without one are omitted."""
        ...

    async def flushes(
        self,
        owner: str | None,
        *,
        state: FlushState | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> Page[Flush]:
        """A page of flushes, the newest first, after the flush of the session `after`."""
        ...

    async def retry_flush(self, owner: str | None, session_id: str) -> Flush:
        """Make a dead, skipped or pending flush due now, with a fresh count of attempts. Conflict, having
        changed nothing, if it is running, done or taken over."""
        ...

    async def retry_flushes(self, owner: str | None, *, limit: int = 1000) -> int:
        """The same for dead letters, the oldest first; returns how many."""
        ...

    async def skip_flush(self, owner: str | None, session_id: str, why: str) -> Flush:
        """Do not flush this session; `why` is stored. Conflict, having changed nothing, if it is running,
        done or taken over."""
        ...

    async def skip_flushes(self, owner: str | None, before: datetime, why: str, *, limit: int = 1000) -> int:
        """Skip flushes of sessions without activity since `before`: pending and dead ones, and open sessions
        that may become due. Bounded; returns how many, 0: no more.
        """
        ...

    async def flush_figures(self) -> FlushFigures:
        """How many flushes are pending, running and dead, and how many sessions are due for a reset."""
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
        """A page of memories, the newest first, after the memory `after`: of one key or conversation, and
        only those that contain all these words."""
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
        """Add a memory to a conversation."""
        ...

    async def edit_memory(self, owner: str | None, memory_id: str, text: str) -> Memory:
        """Replace its text; the old text is gone."""
        ...

    async def forget_memory(self, owner: str | None, memory_id: str) -> None:
        """Delete it with its text. The session it came from is not flushed again."""
        ...
