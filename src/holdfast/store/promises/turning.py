"""Turns and resets: what happens under a lease, and when a session ends by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...domain.events import Event
from ...domain.messages import NewMessage
from ...domain.resets import Verdict
from ...domain.turns import Delivery, Draft, Lease, TurnFailure, TurnOutcome, TurnRequest, TurnStatus
from ...domain.why import ResetDecision


class Takes(Protocol):
    """Takes turns, and ends what is due."""

    # --- turns ------------------------------------------------------------------------------------------

    async def begin_turn(self, request: TurnRequest) -> TurnOutcome:
        """Resolve, take the lease, open a session if one is needed, commit the messages: one transaction.

        Idempotent by owner, route, key and body hash. Another turn holding the conversation, or the
        same request seen before, and a conversation that is no longer as the caller has seen it, are
        outcomes; RequestMismatch, TurnSuperseded, NotFound and NodeReaped are raised. Nothing is written
        unless the turn has begun.
        """
        ...

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        """Append what the turn said, as it happens; returns the last number. LeaseLost writes nothing."""
        ...

    async def append_draft(self, lease: Lease, draft: Draft) -> None:
        """Keep a checkpoint of the running reply. LeaseLost writes nothing."""
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

        `draft` holds the last of the events that tell of it.

        `delivery` says how much of the answer clients have by now; None: as much as before.

        `answer` is kept for a repeated request; `history` is the chain of all that a client has now been
        shown, None if that is not known. Returns the conversation's last number. LeaseLost writes nothing.
        """
        ...

    async def settle_turn(self, lease: Lease, settlement: TurnFailure) -> None:
        """End a turn without an answer (interrupted, failed, cancelled) and release the lease.

        Its draft becomes an interrupted reply; its open tool calls are closed as "interrupted, outcome
        unknown"; the user's message stays. LeaseLost writes nothing.
        """
        ...

    async def note_deliveries(self, deliveries: Mapping[str, Delivery]) -> None:
        """Keep how much of these turns' answers clients have received. What was received whole stays so;
        unknown turns are passed over."""
        ...

    async def cancel_turn(self, owner: str | None, turn_id: str, status: TurnStatus, why: str) -> bool:
        """End somebody's running turn from outside, as `settle_turn` would; its writer is fenced off.

        False if it was not running any more.
        """
        ...

    # --- resets -----------------------------------------------------------------------------------------

    async def due_sessions(self, limit: int = 100) -> list[str]:
        """Open sessions whose reset is due, the longest due first; only those that our own policies have
        dated. Costs what is due, not what is stored."""
        ...

    async def reset_session(self, session_id: str) -> Verdict | None:
        """Reset this session if it is due: its end, event and notice in one transaction. Put off, visibly, if
        something holds it. Returns the verdict; None if there is no such session any more."""
        ...

    async def judge_session(self, owner: str | None, session_id: str) -> ResetDecision:
        """Would this session be reset now? With every reason, either way. Changes nothing."""
        ...

    async def history(self, owner: str | None, session_id: str, *, limit: int = 50) -> list[Event]:
        """What happened to a session and to what it started, oldest first; only the newest `limit`."""
        ...

    async def date_sessions(self, limit: int = 1000, *, over_servers: bool = True) -> int:
        """Reckon anew when sessions are due that other policies have dated; returns how many. None: all
        are. `over_servers=False`: only if no server has recorded other policies for this store."""
        ...
