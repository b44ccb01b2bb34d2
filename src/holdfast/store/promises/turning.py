"""Turns and resets: writes under a lease, and automatic ends of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...domain.events import Event
from ...domain.messages import NewMessage
from ...domain.resets import Verdict
from ...domain.turns import Delivery, Draft, Lease, TurnFailure, TurnOutcome, TurnRequest, TurnStatus
from ...domain.why import ResetDecision


class Takes(Protocol):
    """Methods about turns and resets."""

    # --- turns ------------------------------------------------------------------------------------------

    async def begin_turn(self, request: TurnRequest) -> TurnOutcome:
        """Resolve, take the lease, open a session if one is needed, commit the messages: one transaction.

        Idempotent by owner, route, key and body hash. Another turn that holds the conversation, a request
        seen before, and a conversation that changed since the caller read it are outcomes; RequestMismatch,
        TurnSuperseded, NotFound and NodeReaped are raised. Nothing is written unless the turn has begun.
        """
        ...

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        """Append the turn's messages as they are made; returns the last seq. LeaseLost writes nothing."""
        ...

    async def append_draft(self, lease: Lease, draft: Draft) -> None:
        """Store a checkpoint of the running reply. LeaseLost writes nothing."""
        ...

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
        """Append the reply, complete the turn and release the lease: one transaction.

        `draft` holds the last of its events.

        `delivery` says how much of the answer clients have received; None: unchanged.

        `answer` is stored for retries of the request; `history` is the fingerprint chain of all messages
        visible to the client now, None if unknown. Returns the conversation's last seq. LeaseLost writes
        nothing.
        """
        ...

    async def settle_turn(self, lease: Lease, settlement: TurnFailure) -> None:
        """End a turn without an answer (interrupted, failed, cancelled) and release the lease.

        Its draft becomes an interrupted reply; its open tool calls are closed as "interrupted, outcome
        unknown"; the user's message stays. LeaseLost writes nothing.
        """
        ...

    async def note_deliveries(self, deliveries: Mapping[str, Delivery]) -> None:
        """Store how much of these turns' answers clients have received. `WHOLE` never changes back; unknown
        turns are ignored."""
        ...

    async def cancel_turn(self, owner: str | None, turn_id: str, status: TurnStatus, why: str) -> bool:
        """End a running turn from outside, as `settle_turn` would; its writer is fenced off.

        False if it was no longer running.
        """
        ...

    # --- resets -----------------------------------------------------------------------------------------

    async def due_sessions(self, limit: int = 100) -> list[str]:
        """Open sessions whose reset is due, the longest due first; only those scheduled under our own
        policies. Cost depends on what is due, not on what is stored."""
        ...

    async def reset_session(self, session_id: str) -> Verdict | None:
        """Reset this session if it is due: its end, event and notice in one transaction. Deferred, visibly,
        if something blocks it. Returns the verdict; None if the session no longer exists."""
        ...

    async def judge_session(self, owner: str | None, session_id: str) -> ResetDecision:
        """Whether this session would be reset now, with every reason for and against. Changes nothing."""
        ...

    async def history(self, owner: str | None, session_id: str, *, limit: int = 50) -> list[Event]:
        """Events of a session and of what it started, oldest first; only the newest `limit`."""
        ...

    async def date_sessions(self, limit: int = 1000, *, over_servers: bool = True) -> int:
        """Reschedule sessions that were scheduled under other policies; returns how many, 0: none is left.
        `over_servers=False`: only if no server has recorded other policies for this store."""
        ...
