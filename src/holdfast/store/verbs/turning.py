"""Turns and resets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...domain.events import Event
from ...domain.messages import NewMessage
from ...domain.resets import Verdict
from ...domain.turns import (
    Delivery,
    Draft,
    Lease,
    TurnBegun,
    TurnFailure,
    TurnOutcome,
    TurnRequest,
    TurnStatus,
)
from ...domain.why import ResetDecision
from .. import reads, resets, resolve, turns
from .base import Verbs


class TurningVerbs(Verbs):
    """Implements `store.promises.turning.Takes`."""

    # --- turns ------------------------------------------------------------------------------------------

    async def begin_turn(self, request: TurnRequest) -> TurnOutcome:
        outcome = await self._write(lambda tx: turns.begin(tx, request))
        if isinstance(outcome, TurnBegun) and not outcome.taken_up:
            return replace(outcome, context=self._cache.begun(outcome, request.messages))
        return outcome

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        return await self._write(lambda tx: turns.append(tx, lease, messages))

    async def append_draft(self, lease: Lease, draft: Draft) -> None:
        await self._write(lambda tx: turns.append_draft(tx, lease, draft))

    async def commit_reply(
        self,
        lease: Lease,
        messages: Sequence[NewMessage] = (),
        *,
        usage: Mapping[str, int] | None = None,
        answer: bytes | None = None,
        history: bytes | None = None,
        draft: Draft | None = None,
        delivery: Delivery | None = None,
    ) -> int:
        last_seq = await self._write(
            lambda tx: turns.commit_reply(tx, lease, messages, usage, answer, history, draft, delivery)
        )
        self._cache.replied(lease.session_id, messages, last_seq)
        return last_seq

    async def settle_turn(self, lease: Lease, settlement: TurnFailure) -> None:
        await self._write(lambda tx: turns.settle_turn(tx, lease, settlement))

    async def note_deliveries(self, deliveries: Mapping[str, Delivery]) -> None:
        await self._write(lambda tx: turns.note_deliveries(tx, deliveries))

    async def cancel_turn(self, owner: str | None, turn_id: str, status: TurnStatus, why: str) -> bool:
        return await self._write(lambda tx: turns.cancel_turn(tx, owner, turn_id, status, why))

    # --- resets -----------------------------------------------------------------------------------------

    async def due_sessions(self, limit: int = 100) -> list[str]:
        return await self._read(lambda tx: resets.due_sessions(tx, limit))

    async def reset_session(self, session_id: str) -> Verdict | None:
        return await self._write(lambda tx: resets.reset_session(tx, session_id))

    async def judge_session(self, owner: str | None, session_id: str) -> ResetDecision:
        return await self._read(lambda tx: resets.judged(tx, resolve.session_of(tx, owner, session_id)))

    async def history(self, owner: str | None, session_id: str, *, limit: int = 50) -> list[Event]:
        return await self._read(lambda tx: reads.history(tx, owner, session_id, limit))

    async def date_sessions(self, limit: int = 1000, *, over_servers: bool = True) -> int:
        return await self._write(lambda tx: resets.date_some(tx, limit, over_servers))
