"""Runs turns: sends the context to the model, publishes its output, saves drafts, commits the answer.

A turn belongs to this process, not to the client: a disconnect does not end it. Whatever interrupts it (a
signal, the model, a person, a lost lease), its output so far is stored, and subscribers get the outcome after
it is on disk. A repeated request joins its turn while that runs here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from ...domain.recovery import Cause, RecoveryRules, decoded_request, is_passing, refusal_delay
from ...domain.turns import (
    Delivery,
    TurnBegun,
    TurnFailure,
    TurnOutdated,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
)
from ...errors import HoldfastError, LeaseLost, ModelError, NodeReaped, NotFound, TurnStopped
from ...models.base import Model
from ...models.refusals import CONTEXT_EXCEEDED
from ...store.store import Store
from .. import periodic
from ..agents.heartbeat import Heartbeat
from ..agents.receipts import Receipts
from ..agents.titler import Titler
from ..contexts.compactor import Compactor
from ..contexts.preamble import TurnPreamble
from ..refused_names import withdraw
from ..shutdown import through
from ..tools.toolbox import Toolbox
from .agent_loop import AgentLoop
from .gate import SentAgain, TurnGate
from .live import Answered, Outcome, RunningTurn, Stop, TurnRenderer, TurnSpec, Unanswered

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 0.5
LOOK_SECONDS = 1.0
IDLE_SECONDS = 60.0
SENDING_SECONDS = 5.0
"""How long a repeated request waits to learn whether a connected client has received the answer."""
LASTING = frozenset({"insufficient_quota", "content_policy_violation", "content_filter", CONTEXT_EXCEEDED})
"""Codes of refusals that do not pass, whatever their status."""
_SERVER_STOPPED = Stop(TurnStatus.INTERRUPTED, "the server was terminated", retry=True, cause=Cause.STOP)


class TurnRunner:
    """Runs all turns of this node. `watch_once` stops turns that were ended from outside."""

    def __init__(
        self,
        store: Store,
        heartbeat: Heartbeat,
        gate: TurnGate,
        model: Model,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        on_speech: Callable[[], None] = lambda: None,
        on_end: Callable[[TurnStatus], None] = lambda status: None,
        toolbox: Toolbox | None = None,
        preamble: TurnPreamble | None = None,
        compactor: Compactor | None = None,
        titler: Titler | None = None,
        rules: RecoveryRules | None = None,
    ) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._gate = gate
        self._model = model
        self._checkpoint_seconds = checkpoint_seconds
        self._on_speech = on_speech
        self._on_end = on_end
        self._toolbox = toolbox or Toolbox()
        self._preamble = preamble
        self._titler = titler
        self.compactor = compactor
        """Compacts contexts; None: compaction is off."""
        self._rules = rules or RecoveryRules()
        self._running: dict[str, RunningTurn] = {}
        self._beginning: dict[str, asyncio.Future[RunningTurn | None]] = {}
        self._watching = periodic.every(
            LOOK_SECONDS / 4, self.watch_once, "look after running turns", pause=self._pause
        )
        self._next_look: asyncio.TimerHandle | None = None
        self._leaving = False
        self.receipts = Receipts(store)

    # --- turns -------------------------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        """True: this node is draining, and begins no turn that is to last."""
        return self._leaving

    @property
    def running(self) -> Mapping[str, RunningTurn]:
        """The running turns, by id."""
        return self._running

    async def begin(
        self, order: TurnSpec, wait_seconds: float, *, interrupt: bool = False
    ) -> RunningTurn | TurnRepeated | TurnOutdated:
        """Begin the turn and run it in the background, or join the turn that this request already is.

        TurnRepeated: it has ended, or, with `follows`, runs elsewhere. TurnOutdated: the conversation has
        changed, match again. `interrupt`: interrupt the turn that holds the conversation instead of waiting
        for it. Raises what TurnGate.begin raises.
        """
        turn_id = order.request.turn_id
        while (same := self._beginning.get(turn_id)) is not None:
            await asyncio.shield(same)  # the queue and a connector may begin it at the same time
        if (here := self._running.get(turn_id)) is not None:
            here.attend(order.client)
            return here
        begun: asyncio.Future[RunningTurn | None] = asyncio.get_running_loop().create_future()
        self._beginning[turn_id] = begun
        running: RunningTurn | None = None
        key = order.request.request_key

        def is_here(other_id: str) -> bool:  # not this turn itself: it may already run on another node
            return other_id in self._running or (other_id != turn_id and other_id in self._beginning)

        try:
            if key is not None and key.implied and key.opener and key.may_repeat:
                await self.receipts.write()  # the decision depends on delivery, so the store must know it
            while True:
                outcome = await self._gate.begin(
                    order.request,
                    wait_seconds,
                    is_here=is_here,
                    follows=order.follows,
                    when_busy=self._cut_short if interrupt else None,
                    check=order.check,
                    sent_again=self._judge(time.monotonic() + SENDING_SECONDS),
                )
                if isinstance(outcome, TurnBegun):
                    running = self._run(outcome, order)
                    if self._leaving:  # it waited for the lease, and draining began meanwhile
                        self._stop(running, _SERVER_STOPPED)
                    return running
                if isinstance(outcome, TurnOutdated) or outcome.turn.status is not TurnStatus.RUNNING:
                    return outcome
                if order.follows and not is_here(outcome.turn.id):
                    return outcome
                if outcome.turn.joined is not None and (order.request.response or order.request.streams):
                    return outcome  # its events are those of another request
                joined = self._running.get(outcome.turn.id)
                if joined is None:  # still starting; cancelling a joiner must not cancel that
                    joined = await asyncio.shield(self._beginning[outcome.turn.id])
                if joined is not None:
                    joined.attend(order.client)
                    return joined
        finally:
            del self._beginning[turn_id]
            begun.set_result(running)

    def _judge(self, patience: float) -> SentAgain:
        """Decide whether a request without an idempotency key repeats a turn. While an answer is being sent,
        wait for its delivery until `patience`."""

        async def judge(
            request: TurnRequest, repeated: TurnRepeated
        ) -> TurnRepeated | TurnWaits | TurnRequest:
            turn = repeated.turn
            waits = TurnWaits(turn.conversation_id, turn.node_id, turn.id)
            if turn.status is TurnStatus.RUNNING:
                running = self._running.get(turn.id)
                if running is None:  # still starting, or on another node, which alone knows its clients
                    return waits
                if not running.has_listener:
                    return repeated
                assert request.request_key is not None
                if request.request_key.opener:  # a client waits for that turn: this is a new request
                    return replace(request, request_key=request.request_key.as_new())
                return waits
            known = self.receipts.of(turn.id)
            if known is Delivery.WHOLE:
                await self.receipts.write()
                return request
            if known is None and turn.delivery is Delivery.SENDING and time.monotonic() < patience:
                return waits if await self._is_present(turn.node_id) else repeated
            return repeated

        return judge

    async def _is_present(self, node_id: str) -> bool:
        return any(node.id == node_id for node in await self._store.nodes())

    async def stop(self, owner: str | None, turn_id: str, status: TurnStatus, why: str) -> bool:
        """End a running turn, on any node, and keep its output. False if it was not running."""
        running = self._running.get(turn_id)
        if running is None or (owner is not None and running.turn.owner != owner):
            return await self._store.cancel_turn(owner, turn_id, status, why)
        if running.outcome is not None:
            return False
        self._stop(running, Stop(status, why))
        ended = await running.ended()
        if isinstance(ended, Unanswered) and ended.waits:  # it was about to wait for a retry in this moment
            return await self._store.cancel_turn(owner, turn_id, status, why)
        return isinstance(ended, Unanswered)

    async def drain(self, seconds: float) -> None:
        """Wait this long for running turns, then interrupt them; their output is kept. Turns that begin later
        are interrupted at once."""
        self._leaving = True
        await self._all_ended(seconds)
        while self._running:  # a turn may begin meanwhile
            for turn in self._running.values():
                self._stop(turn, _SERVER_STOPPED)
            await self._all_ended(None)

    async def close(self) -> None:
        await self.drain(0)
        if self._next_look is not None:
            self._next_look.cancel()
        await self._watching.stop()
        await self.receipts.close()
        if self.compactor is not None:
            await self.compactor.close()

    async def _all_ended(self, seconds: float | None) -> None:
        tasks = {turn.task for turn in self._running.values() if turn.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _cut_short(self, turn_id: str) -> None:
        with suppress(NotFound):  # deleted meanwhile: it no longer holds the lease
            await self.stop(None, turn_id, TurnStatus.INTERRUPTED, "it was replaced by a newer request")

    def _stop(self, running: RunningTurn, stop: Stop) -> None:
        assert running.task is not None
        if running.stop is None:
            running.stop = stop
            # Cancel later, not now: a task cancelled before its first step never runs it, and the turn would
            # not be ended in the store. The first step was scheduled before this call.
            asyncio.get_running_loop().call_soon(running.task.cancel)

    # --- one turn ----------------------------------------------------------------------------------

    def _run(self, begun: TurnBegun, order: TurnSpec) -> RunningTurn:
        if begun.request is not None and order.request.resumes_turn is None:  # the client sent it again
            order = replace(order, instructions=decoded_request(begun.request).first_messages())
        running = RunningTurn(begun, sent=begun.turn.delivery > order.request.delivery)
        running.attend(order.client)
        running.task = asyncio.create_task(self._see_through(running, order), name=begun.turn.id)
        self._running[begun.turn.id] = running
        self._on_speech()
        if not self._watching.running:
            self._watching.start()
        elif self._next_look is None:  # one timer for all turns that begin meanwhile
            self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS / 4, self._look)
        return running

    def _look(self) -> None:
        self._next_look = None
        self._watching.wake()

    async def _see_through(self, running: RunningTurn, order: TurnSpec) -> None:
        """Run the turn to its outcome, whatever it is."""
        begun = running.begun
        loop = AgentLoop(
            self._store,
            self._model,
            running,
            order,
            self._checkpoint_seconds,
            self._toolbox,
            self._preamble,
            self.compactor,
        )
        outcome: Outcome | None = None
        try:
            outcome = await loop.run()
        except asyncio.CancelledError:
            stop = running.stop or _SERVER_STOPPED
            outcome = await through(self._settle(running, stop, None, loop))
        except HoldfastError as error:
            outcome = await self._settle_failed(running, error, loop, order)
        except Exception as error:
            log.exception("turn %s failed with an unexpected error", begun.turn.id)
            outcome = await self._settle_failed(running, _mistake(error), loop, order)
        finally:  # subscribers always get an outcome
            if outcome is None:
                outcome = Unanswered(
                    _SERVER_STOPPED.status,
                    _stopped(begun.turn.id, _SERVER_STOPPED),
                    waits=begun.turn.recovery.recover,
                )
            self._running.pop(begun.turn.id, None)
            self._heartbeat.ran(begun.turn.id)
            self._on_speech()
            if isinstance(outcome, Answered):
                self._on_end(TurnStatus.COMPLETED)
            elif not outcome.waits:
                self._on_end(outcome.status)
            running.finish(outcome, self._end_events(running, order.renderer, outcome))
        if isinstance(outcome, Answered):
            if self._titler is not None:
                self._titler.answered(running.session, running.session.last_seq + len(outcome.said))
            try:
                await loop.compact_if_over_threshold()
            except HoldfastError as trouble:
                log.warning("the context was not compacted after turn %s: %s", begun.turn.id, trouble)

    def _end_events(self, running: RunningTurn, renderer: TurnRenderer, outcome: Outcome) -> Sequence[bytes]:
        if isinstance(outcome, Answered):
            return running.final_events
        if outcome.waits and renderer.numbered:
            return ()  # its stream continues with the next attempt
        try:
            return renderer.end(outcome)
        except Exception:
            log.exception("the end of turn %s could not be published", running.turn.id)
            return ()

    async def _settle_failed(
        self, running: RunningTurn, error: HoldfastError, loop: AgentLoop, order: TurnSpec
    ) -> Outcome:
        stop = Stop(TurnStatus.FAILED, error.public)
        if await through(withdraw(self._store, running, order, error, spoke=loop.spoke)):
            return Unanswered(stop.status, error, withdrawn=True)
        if self._is_patient(running, error):
            stop.cause = Cause.MODEL
        return await through(self._settle(running, stop, error, loop))

    def _is_patient(self, running: RunningTurn, error: HoldfastError) -> bool:
        """True: no connection waits for this turn, and the model may answer it later."""
        return (
            self._rules.retry_model
            and running.turn.recovery.is_patient
            and isinstance(error, ModelError)
            and is_passing(error.status)
            and error.code not in LASTING
        )

    async def _settle(
        self, running: RunningTurn, stop: Stop, error: HoldfastError | None, loop: AgentLoop
    ) -> Outcome:
        """Store the output and end the turn; if it was ended elsewhere, return that outcome. A turn that
        cannot be ended now is found by this node's heartbeat."""
        reason = error or _stopped(running.turn.id, stop)
        known = running.turn.recovery
        waits = stop.cause is Cause.MODEL or (stop.cause is not None and known.recover)
        delay = timedelta(0)
        if stop.cause is Cause.MODEL:
            asked = error.retry_after if isinstance(error, ModelError) else None
            delay = refusal_delay(known, asked, random.uniform(-1, 1))
        try:
            if not isinstance(error, LeaseLost | NodeReaped):
                try:
                    await loop.drafts.save()
                    settlement = TurnFailure(
                        stop.status,
                        error=_public(reason),
                        code=code_of(reason),
                        usage=loop.usage,
                        delivery=Delivery.PART if running.sent else Delivery.NONE,
                        cause=stop.cause,
                        delay=delay,
                    )
                    await self._store.settle_turn(running.lease, settlement)
                    return Unanswered(stop.status, reason, loop.spoke, waits)
                except (LeaseLost, NodeReaped) as lost:
                    error = lost
            await loop.drafts.rest()
            return await self._ended_by_others(running, error, loop.spoke)
        except HoldfastError as trouble:
            log.error("turn %s could not be ended: %s", running.turn.id, trouble)
            return Unanswered(stop.status, error or trouble, loop.spoke, known.recover)
        except Exception as mistake:
            log.exception("turn %s could not be ended (bug)", running.turn.id)
            return Unanswered(stop.status, error or _mistake(mistake), loop.spoke)

    async def _ended_by_others(self, running: RunningTurn, lost: HoldfastError, spoke: bool) -> Outcome:
        try:
            turn = await self._store.turn(None, running.turn.id)
        except NotFound:
            gone = NotFound("conversation", running.turn.conversation_id)
            return Unanswered(TurnStatus.CANCELLED, gone, spoke)
        if turn.status is TurnStatus.COMPLETED and turn.attempt == running.turn.attempt and running.answered:
            return running.answered  # committed by us: only the confirmation was lost
        if turn.waits or (turn.status is TurnStatus.RUNNING and turn.recovery.recover):
            elsewhere = TurnStopped(
                turn.id, "interrupted", "this server lost its lease; another one retries it", True
            )
            return Unanswered(TurnStatus.INTERRUPTED, elsewhere, spoke, waits=True)
        if turn.status is TurnStatus.CANCELLED or turn.status is TurnStatus.INTERRUPTED:
            stopped = TurnStopped(turn.id, turn.status.value, "it was ended elsewhere")
            return Unanswered(turn.status, stopped, spoke)
        return Unanswered(TurnStatus.INTERRUPTED, lost, spoke)

    # --- watching ----------------------------------------------------------------------------------

    async def watch_once(self) -> None:
        """Stop turns that were ended from outside, even if their model is silent. Then wait for the next
        commit, at most LOOK_SECONDS."""
        before = dict(self._running)
        if not before:
            return
        version = self._store.version()
        held = set((await self._store.held(self._heartbeat.node_id)).leases.values())
        for turn_id, running in before.items():
            if turn_id not in held:
                self._stop(running, Stop(TurnStatus.INTERRUPTED, "it was ended elsewhere"))
        await self._store.changed(version, LOOK_SECONDS)

    def _pause(self, _: object) -> float | None:
        return None if self._running else IDLE_SECONDS


def code_of(error: HoldfastError) -> str:
    """An error's code, for events."""
    return getattr(error, "code", None) or type(error).__name__


def _public(error: HoldfastError) -> str:
    """The error text stored with the turn. The whole text goes to the log if it says more."""
    if error.public != str(error):
        log.warning("a turn failed: %s", error)
    return error.public


def _stopped(turn_id: str, stop: Stop) -> TurnStopped:
    return TurnStopped(turn_id, stop.status.value, stop.why, stop.retry)


def _mistake(error: Exception) -> HoldfastError:
    return HoldfastError(f"internal error ({type(error).__name__}); the server's log has the details")
