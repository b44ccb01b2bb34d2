"""Retries waiting turns: those whose server died or was stopped, and those that the model has refused.

Every server looks for turns that are due, the longest due first, and claims them as a retry does: under a new
fencing token, with the attempt counted in the same transaction. One of several nodes wins. At most a quarter
of a server's requests are retried turns, and many that are due at once are spread over two seconds. From its
third attempt on, a turn is retried alone: if it kills the server, no other loses an attempt by it.

A turn that has used up its attempts or its time is given up, with a sentence that says why. Nothing is
decided about a turn while the store cannot be asked. A turn that cannot be retried (a full disk, an error of
its own) is skipped for a moment: it does not hold up others, and is not tried without a pause.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from ...domain.recovery import (
    KEY_REVOKED,
    NO_REQUEST,
    SUPERSEDED,
    Cause,
    Origin,
    RecoveryRules,
    StoredRequest,
    decoded_request,
    reason_to_give_up,
    runs_alone,
)
from ...domain.turns import Turn
from ...errors import (
    BadInput,
    BadKey,
    ConversationBusy,
    HoldfastError,
    KeyRevoked,
    NotFound,
    TurnSuperseded,
)
from ...store.store import Store
from .. import periodic
from ..turns.live import Answered, RunningTurn, TurnSpec, allowed
from ..turns.runner import TurnRunner
from .authenticator import Authenticator

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
AT_ONCE = 100
"""How many due turns are considered in one pass."""
FEW = 4
"""How many turns are retried without a pause between them."""
SPREAD_SECONDS = 2.0
AGAIN_SECONDS = 5.0
"""How long a turn that could not be retried is skipped."""
MOST_TIMES = 10_000


@dataclass(slots=True)
class RecoveryCounts:
    """What a node has done about waiting turns."""

    taken_up: Counter[str] = field(default_factory=Counter)
    """By cause."""
    given_up: int = 0
    seconds: list[float] = field(default_factory=list)
    """For each turn that was answered: the time since its last attempt had ended."""


class Recoverer:
    """`recover_once` retries what is due. `most`: how many retried turns may run here at once."""

    def __init__(
        self,
        store: Store,
        runner: TurnRunner,
        stored: StoredTurns,
        rules: RecoveryRules,
        most: int,
        spread_seconds: float = SPREAD_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._runner = runner
        self._stored = stored
        self._rules = rules
        self._most = most
        self._spread_seconds = spread_seconds
        self._monotonic = monotonic
        self._taken: dict[str, asyncio.Task[None]] = {}
        """The turns retried here that have not ended, by id."""
        self._alone: str | None = None
        """The turn among them that runs alone."""
        self._troubled: dict[str, float] = {}
        """Turns that could not be retried, and until when they are skipped."""
        self._loop = periodic.every(LOOK_SECONDS, self.recover_once, "retry waiting turns")
        self._counts = RecoveryCounts()

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Retry nothing more. The runner ends the turns that run."""
        await self._loop.stop()
        for task in self._taken.values():
            task.cancel()
        await asyncio.gather(*self._taken.values(), return_exceptions=True)

    def take_counts(self) -> RecoveryCounts:
        """What was counted since the last call."""
        counts, self._counts = self._counts, RecoveryCounts()
        return counts

    async def idle(self) -> None:
        """Return when every turn retried here has ended."""
        while self._taken:
            await asyncio.wait(set(self._taken.values()))

    async def recover_once(self) -> int:
        """Retry the turns that are due, as far as this node may; returns how many."""
        if self._runner.leaving:
            return 0
        begun, now = 0, self._monotonic()
        self._troubled = {each: until for each, until in self._troubled.items() if until > now}
        found = await self._store.due_turns(limit=AT_ONCE + len(self._troubled))
        due = [turn for turn in found if turn.id not in self._taken and turn.id not in self._troubled]
        for turn in due:
            why = reason_to_give_up(
                turn.recovery, self._rules, turn.started_at, turn.ended_at, self._store.now()
            )
            if why is not None:
                await self._give_up(turn, why)
                continue
            alone = runs_alone(turn.recovery)
            if self._alone is not None or len(self._taken) >= self._most or (alone and self._taken):
                break
            pause = random.uniform(0, self._spread_seconds) if len(due) > FEW else 0.0
            self._taken[turn.id] = asyncio.create_task(self._see_through(turn, pause))
            self._alone = turn.id if alone else None
            begun += 1
        return begun

    async def _see_through(self, turn: Turn, pause: float) -> None:
        try:
            await asyncio.sleep(pause)
            running = await self._take_up(turn)
            if running is None:
                self._skip(turn, LOOK_SECONDS)
            elif isinstance(await running.ended(), Answered):
                self._count_recovered(turn, self._store.now())
        except HoldfastError as error:
            self._skip(turn)
            log.warning("turn %s cannot be retried now: %s", turn.id, error)
        except Exception:
            self._skip(turn)
            log.exception("turn %s cannot be retried (bug)", turn.id)
        finally:
            del self._taken[turn.id]
            if self._alone == turn.id:
                self._alone = None
            self._loop.wake()

    async def _take_up(self, turn: Turn) -> RunningTurn | None:
        """Claim the turn and run it; None: it was given up, or another node has it."""
        try:
            spec = await self._spec(turn)
        except BadKey:
            await self._give_up(turn, KEY_REVOKED)
            return None
        except BadInput as error:
            log.warning("the stored request of turn %s cannot be used: %s", turn.id, error)
            await self._give_up(turn, NO_REQUEST)
            return None
        try:
            outcome = await self._runner.begin(spec, 0.0)
        except TurnSuperseded:
            await self._give_up(turn, SUPERSEDED)
            return None
        except (NotFound, ConversationBusy):
            return None  # deleted, or claimed by a retry, in this moment
        if not isinstance(outcome, RunningTurn) or outcome.turn.id != turn.id:
            return None
        cause = turn.recovery.cause or Cause.DEATH
        self._counts.taken_up[cause.value] += 1
        log.info("retrying turn %s (attempt %d, after a %s)", turn.id, outcome.turn.attempt, _after(cause))
        return self._stored.begun(spec, outcome)

    async def _spec(self, turn: Turn) -> TurnSpec:
        spec = await self._stored.spec(turn)
        late = None
        if turn.recovery.origin is Origin.FOREGROUND:
            late = f"Your message of {turn.started_at:%H:%M} UTC was answered after a restart of its server."
        return replace(spec, request=replace(spec.request, by_recovery=True), notice=late)

    async def _give_up(self, turn: Turn, why: str) -> None:
        """Isolate failures: one that cannot be given up now does not stop the others."""
        try:
            if await self._store.give_up_turn(turn.id, why):
                self._counts.given_up += 1
        except periodic.STORE_WIDE:
            raise
        except Exception as error:
            self._skip(turn)
            log.warning("turn %s cannot be given up now and will be tried again: %s", turn.id, error)

    def _skip(self, turn: Turn, seconds: float = AGAIN_SECONDS) -> None:
        until = self._monotonic() + seconds
        self._troubled[turn.id] = max(until, self._troubled.get(turn.id, until))

    def _count_recovered(self, turn: Turn, now: datetime) -> None:
        if turn.ended_at is not None and len(self._counts.seconds) < MOST_TIMES:
            self._counts.seconds.append(max(0.0, (now - turn.ended_at).total_seconds()))


def _after(cause: Cause) -> str:
    return {
        Cause.DEATH: "death of its server",
        Cause.STOP: "stop of its server",
        Cause.MODEL: "refusal of the model",
        Cause.RETRY: "request by hand",
    }[cause]


Check = Callable[[], Awaitable[None]]
Rebuild = Callable[[Turn, StoredRequest, frozenset[str], Check], Awaitable[TurnSpec]]
"""Makes the turn of a stored request. A surface provides it, because it has the renderers."""
OnBegun = Callable[[str, RunningTurn], None]


class StoredTurns:
    """Rebuilds turns from the store alone, to be run by this node.

    The caller's key is looked up again: a turn whose key was revoked meanwhile cannot be run (BadKey), and
    one that runs stops using tools when its key is revoked.
    """

    def __init__(
        self,
        store: Store,
        authenticator: Authenticator,
        rebuild: Rebuild,
        on_begun: OnBegun = lambda key_id, running: None,
    ) -> None:
        """`on_begun` is called with each turn that was begun from its stored request, and its API key."""
        self._store = store
        self._authenticator = authenticator
        self._rebuild = rebuild
        self._on_begun = on_begun

    def begun(self, spec: TurnSpec, running: RunningTurn) -> RunningTurn:
        """Note that the turn of this spec runs here; returns it."""
        if spec.key_id is not None:
            self._on_begun(spec.key_id, running)
        return running

    async def spec(self, turn: Turn) -> TurnSpec:
        """The turn as its client asked for it. Raises BadKey if its key was revoked, and BadInput if its
        stored request cannot be used."""
        stored = await self._store.stored_request(None, turn.id)
        if stored is None:
            raise BadInput("its request is no longer stored")
        try:
            request = decoded_request(stored)
        except msgspec.MsgspecError as error:
            raise BadInput(f"its stored request cannot be read: {error}") from None
        if not request.key_id:
            return await self._rebuild(turn, request, frozenset(request.tools), allowed)
        key = await self._authenticator.by_id(request.key_id)

        async def still_valid() -> None:
            if not await self._authenticator.is_valid(key):
                raise KeyRevoked

        spec = replace(await self._rebuild(turn, request, key.tools, still_valid), key_id=key.id)
        if not key.limits:
            return spec
        return replace(spec, request=replace(spec.request, api_key=key.id))  # its tokens count for the key
