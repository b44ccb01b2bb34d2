"""Begins turns: acquires the conversation's lease, waits if it is held, and fails closed.

The wait is bounded; on timeout nothing has been written and `ConversationBusy` is raised. A holder that is
provably dead is reaped at once instead of being waited for. History is read only while the lease is held.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import TypeVar

from msgspec.structs import replace

from ...domain.recovery import Cause
from ...domain.turns import (
    TurnBegun,
    TurnOutcome,
    TurnOutdated,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
)
from ...errors import ConversationBusy, HoldfastError, NestedTurn, NodeReaped
from ...store.store import Store
from ..agents.heartbeat import Heartbeat
from ..agents.reaper import Reaper
from ..shutdown import ended
from .live import allowed

T = TypeVar("T")

LONGEST_WAIT_SECONDS = 1.0

SentAgain = Callable[[TurnRequest, TurnRepeated], Awaitable[TurnRepeated | TurnWaits | TurnRequest]]

own_turns: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("own_turns", default=())
"""Conversations whose lease this task holds, each with its turn. Waiting for one would deadlock. A task
started in a turn's block inherits it, and may outlive the turn: ask `TurnGate.own_turn`."""


class TurnGate:
    def __init__(self, store: Store, heartbeat: Heartbeat, reaper: Reaper) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._reaper = reaper
        self._abandoned: set[asyncio.Task[None]] = set()

    async def begin(
        self,
        request: TurnRequest,
        wait_seconds: float,
        *,
        is_here: Callable[[str], bool] = lambda turn_id: False,
        follows: bool = False,
        when_busy: Callable[[str], Awaitable[None]] | None = None,
        check: Callable[[], Awaitable[None]] = allowed,
        sent_again: SentAgain | None = None,
    ) -> TurnBegun | TurnRepeated | TurnOutdated:
        """Begin the turn, or return the turn this request already is. Raises ConversationBusy on timeout.

        A repeated request waits while its turn runs, unless the turn runs here and can be joined (`is_here`),
        or the caller `follows` it on any node. `when_busy` may interrupt the turn that holds the
        conversation. `check` raises if the caller may no longer begin a turn; it runs before every attempt,
        because there may have been a wait. `sent_again` decides about a request without an idempotency key
        that repeats a turn: it is that turn, waits, or begins as a new request. TurnOutdated: the
        conversation has changed since the request was placed (optimistic lock).
        """

        async def attempt() -> TurnBegun | TurnRepeated | TurnOutdated | TurnWaits:
            nonlocal request
            await check()
            try:
                outcome = await self._begin(request)
            except NodeReaped as reaped:
                request = replace(request, node_id=await self._heartbeat.rejoin(reaped.node_id))
                outcome = await self._begin(request)
            key = request.request_key
            if sent_again and isinstance(outcome, TurnRepeated) and key is not None and key.implied:
                judged = await sent_again(request, outcome)
                if not isinstance(judged, TurnRequest):
                    return judged
                request = judged
                outcome = await self._begin(request)
            if isinstance(outcome, TurnWaits) and when_busy is not None and outcome.turn_id is not None:
                await when_busy(outcome.turn_id)
                outcome = await self._begin(request)
            if isinstance(outcome, TurnRepeated) and outcome.turn.status is TurnStatus.RUNNING:
                if is_here(outcome.turn.id):
                    return outcome
                if follows and not await self._reaper.reap_if_dead(outcome.turn.node_id):
                    return outcome
                return TurnWaits(outcome.turn.conversation_id, outcome.turn.node_id, outcome.turn.id)
            return outcome

        begun_id = ""
        try:
            outcome: TurnBegun | TurnRepeated | TurnOutdated = await self._wait(
                attempt, wait_seconds, request.owner
            )
            if isinstance(outcome, TurnBegun):
                begun_id = outcome.turn.id
                self._heartbeat.runs(begun_id)
            return outcome
        finally:  # a retry may have begun this very turn here meanwhile
            if begun_id != request.turn_id and not is_here(request.turn_id):
                self._heartbeat.ran(request.turn_id)

    async def _begin(self, request: TurnRequest) -> TurnOutcome:
        self._heartbeat.runs(request.turn_id)
        beginning = asyncio.get_running_loop().create_task(self._store.begin_turn(request))
        try:
            await ended(beginning)
        except asyncio.CancelledError:
            self._abandon(beginning)
            raise
        return beginning.result()

    def _abandon(self, beginning: asyncio.Future[TurnOutcome]) -> None:
        """Interrupt a turn whose caller was cancelled while it was starting: nothing would ever run it."""

        async def interrupt() -> None:
            with suppress(HoldfastError):  # it did not begin, or the next heartbeats find the orphaned lease
                outcome = await beginning
                if isinstance(outcome, TurnBegun):
                    turn_id, why = outcome.turn.id, "its caller was cancelled"
                    await self._store.cancel_turn(
                        None, turn_id, TurnStatus.INTERRUPTED, why, cause=Cause.STOP
                    )

        task = asyncio.get_running_loop().create_task(interrupt())
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    async def settle_abandoned(self) -> None:
        """Wait until turns whose caller was cancelled while they were starting have ended."""
        if self._abandoned:
            await asyncio.wait(set(self._abandoned))

    def own_turn(self, conversation_id: str) -> str | None:
        """The running turn of this conversation in whose block this task is, or was started."""
        own = (turn for conversation, turn in own_turns.get() if conversation == conversation_id)
        return next((turn for turn in own if self._heartbeat.is_running(turn)), None)

    async def when_free(self, act: Callable[[], Awaitable[T]], wait_seconds: float) -> T:
        """Run `act`, which needs a free conversation; retry while it is busy, until the timeout."""

        async def attempt() -> tuple[T] | TurnWaits:
            try:
                return (await act(),)
            except ConversationBusy as busy:
                return TurnWaits(busy.conversation_id, busy.holder or "", busy.turn_id)

        (result,) = await self._wait(attempt, wait_seconds)
        return result

    async def _wait(
        self, attempt: Callable[[], Awaitable[T | TurnWaits]], wait_seconds: float, owner: str = ""
    ) -> T:
        """Retry after every commit until the attempt succeeds or the timeout passes.

        Many waits of one owner (or, without one, for one conversation) are paced: each attempt is a write.
        """
        deadline = time.monotonic() + wait_seconds
        version: int | None = None
        while True:
            outcome = await attempt()
            if not isinstance(outcome, TurnWaits):
                return outcome
            if own := self.own_turn(outcome.conversation_id):
                raise NestedTurn(outcome.conversation_id, own)
            left = deadline - time.monotonic()
            if outcome.holder and await self._reaper.reap_if_dead(outcome.holder):
                continue
            if left <= 0:
                raise ConversationBusy(outcome.conversation_id, outcome.holder, outcome.turn_id)
            if version is not None:
                group = owner or outcome.conversation_id
                await self._store.changed(version, min(left, LONGEST_WAIT_SECONDS), group)
            version = self._store.version()  # taken before the next attempt, so no release is missed
