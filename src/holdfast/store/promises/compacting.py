"""Compaction: a conversation goes on in a new session whose older messages are a summary."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from ...domain.compaction import (
    Claim,
    ClaimRefused,
    CompactionFailure,
    CompactionOutcome,
    CompactionStats,
    ContextOutline,
    Report,
    Trigger,
)
from ...domain.sessions import Session
from ...domain.turns import Lease
from ...domain.views import View


class Compacts(Protocol):
    """Swaps a session for one that sees less."""

    async def report(self, conversation_id: str) -> Report | None:
        """What a model last reported of this conversation's context; None: none has yet."""
        ...

    async def outline(self, owner: str | None, session_id: str) -> ContextOutline:
        """A session's context, message by message. Costs what is in the context, not what is stored."""
        ...

    async def claim_compaction(
        self,
        session_id: str,
        node_id: str,
        span: timedelta,
        *,
        why: Trigger,
        tokens: int,
        window: int,
        lease: Lease | None = None,
    ) -> Claim | ClaimRefused:
        """The right to compact the conversation whose tip this is, for `span` at most, with its event.

        Unclaimed, having written nothing: it is not the open tip, somebody living has the right, or earlier
        ones have failed (which by hand does not count). A turn, by its lease, takes the right from whoever
        has it. LeaseLost and NodeReaped write nothing.
        """
        ...

    async def compact(
        self, claim: Claim, view: View, revision: int, facts: CompactionStats, *, lease: Lease | None = None
    ) -> CompactionOutcome:
        """End the session as `compaction` and open one with this view behind it: one transaction.

        The child has everything of its parent's but the context: source, program, dates, deferral, model,
        what runs in the background; no clock moves. A turn, by its lease, goes on in the child. Only if the
        tip is still the one that was claimed and nothing but appended messages has changed (`revision`); an
        outcome otherwise, as is another turn that holds the conversation: then nothing was written.
        LeaseLost writes nothing.
        """
        ...

    async def note_suspected_window(
        self, session: Session, model: str | None, *, reported: int, given: int, reports: int, window: int
    ) -> None:
        """Tell, as an event of this session, that its model seems to leave out what is past `reported`
        tokens: it was given more, by our estimate, so many times."""
        ...

    async def give_up_compaction(
        self, claim: Claim, failure: CompactionFailure, why: Trigger, *, turn_id: str | None = None
    ) -> bool:
        """It did not come about, and is told: everything stays as it is. What would fail again is not tried
        for a while, which grows with each failure in a row. False if somebody else has taken the right over.
        """
        ...
