"""Compaction: a conversation continues in a new session whose older messages are a summary."""

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
    """Replaces a session by one with a smaller context."""

    async def report(self, conversation_id: str) -> Report | None:
        """A model's last token report for this conversation's context; None: there is none yet."""
        ...

    async def outline(self, owner: str | None, session_id: str) -> ContextOutline:
        """A session's context, message by message. Cost depends on the context, not on what is stored."""
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
        """Claim the compaction of the conversation whose tip this is, for `span` at most, and write its
        event.

        ClaimRefused, having written nothing: it is not the open tip, a live node holds the claim, or earlier
        compactions failed (ignored for a manual one). A turn, by its lease, takes the claim from any holder.
        LeaseLost and NodeReaped write nothing.
        """
        ...

    async def compact(
        self, claim: Claim, view: View, revision: int, facts: CompactionStats, *, lease: Lease | None = None
    ) -> CompactionOutcome:
        """End the session as `compaction` and open one with this view after it: one transaction.

        The child inherits everything of its parent but the context: source, program, dates, deferral, model,
        background processes; no timer changes. A turn, by its lease, continues in the child. Done only if the
        tip is still the claimed one and nothing but appended messages has changed (`revision`). Otherwise, or
        if another turn holds the conversation, it returns an outcome and has written nothing. LeaseLost
        writes nothing.
        """
        ...

    async def note_suspected_window(
        self, session: Session, model: str | None, *, reported: int, given: int, reports: int, window: int
    ) -> None:
        """Write an event of this session: its model seems to drop input beyond `reported` tokens. By our
        estimate it was given more, this many times."""
        ...

    async def give_up_compaction(
        self, claim: Claim, failure: CompactionFailure, why: Trigger, *, turn_id: str | None = None
    ) -> bool:
        """Release the claim of a failed compaction and write its event; everything else stays. Repeatable
        failures back off, longer with each failure in a row. False if another holder has taken the claim
        over.
        """
        ...
