"""Compaction."""

from __future__ import annotations

from datetime import timedelta

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
from .. import compaction
from .base import Verbs


class CompactingVerbs(Verbs):
    """Implements `store.promises.compacting.Compacts`."""

    async def report(self, conversation_id: str) -> Report | None:
        return await self._read(lambda tx: compaction.report_of(tx, conversation_id))

    async def outline(self, owner: str | None, session_id: str) -> ContextOutline:
        return await self._read(lambda tx: compaction.outline(tx, owner, session_id))

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
        return await self._write(
            lambda tx: compaction.claim(
                tx, session_id, node_id, span, why=why, tokens=tokens, window=window, lease=lease
            )
        )

    async def compact(
        self, claim: Claim, view: View, revision: int, facts: CompactionStats, *, lease: Lease | None = None
    ) -> CompactionOutcome:
        return await self._write(lambda tx: compaction.compact(tx, claim, view, revision, facts, lease))

    async def note_suspected_window(
        self, session: Session, model: str | None, *, reported: int, given: int, reports: int, window: int
    ) -> None:
        data = {"model": model, "reported": reported, "given": given, "reports": reports, "window": window}
        await self._write(lambda tx: compaction.note_suspected_window(tx, session, data))

    async def give_up_compaction(
        self, claim: Claim, failure: CompactionFailure, why: Trigger, *, turn_id: str | None = None
    ) -> bool:
        return await self._write(lambda tx: compaction.give_up(tx, claim, failure, why, turn_id))
