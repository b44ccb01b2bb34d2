"""Begins queued turns when their conversation is free, in the order in which they were accepted.

Every server looks. The store decides which one begins a turn, so no turn begins twice. The server that
accepted a turn begins it first, because a stream may wait there; another one does so a moment later. While
anything is queued, a pass follows every commit; otherwise a pass a second reads an empty table. A queued turn
that can never begin, because its key was revoked or its request cannot be used, fails with the reason, so
that those after it are not held up. Owners take turns, and none may use all of a server's slots.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ...domain.conversations import Address
from ...domain.turns import Turn, TurnRequest, TurnStatus
from ...errors import BadInput, BadKey, Conflict, ConversationBusy, HoldfastError, NotFound
from ...store.store import Store
from .. import periodic
from ..turns.live import RunningTurn
from ..turns.runner import TurnRunner
from .recoverer import StoredTurns

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AT_ONCE = 100
OTHERS_SECONDS = 0.5
"""How long a turn is left to the server that accepted it."""
MOST_OWNERS = 1000
"""How many owners are remembered, to begin with those who have waited longest."""
KEY_REVOKED = "The key that it came with was revoked while it was queued."


class QueueRunner:
    """`run_once` begins what can begin. `most`: how many turns from queues may run here at once; `most_each`:
    how many of them may be of one owner, 0: nine tenths of `most`."""

    def __init__(
        self,
        store: Store,
        runner: TurnRunner,
        stored: StoredTurns,
        *,
        most: int,
        most_each: int = 0,
        collects: bool = False,
        own_node: Callable[[], str | None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`own_node`: the id of this node; None: it begins all turns at once."""
        self._store = store
        self._own_node = own_node
        self._monotonic = monotonic
        self._others: dict[str, float] = {}
        """Turns that other nodes have accepted, with the time at which they were first seen to be free."""
        self._runner = runner
        self._stored = stored
        self._most = most
        self._most_each = min(most_each or most, max(1, most - most // 10))
        self._collects = collects
        self._running: dict[str, asyncio.Task[None]] = {}
        """The turns of queues that were begun here and have not ended, by id."""
        self._of_owner: Counter[str] = Counter()
        """How many of them each owner has."""
        self._last_begun: dict[str, float] = {}
        """When each owner's last one was begun, the longest ago first."""
        self._loop = periodic.every(
            LOOK_SECONDS, self.run_once, "begin queued turns", pause=lambda waits: 0.0 if waits else None
        )
        self.begun = 0
        """How many queued turns were begun here since the start."""

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Begin nothing more. Turns that run are the runner's to end."""
        await self._loop.stop()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Something was queued: look now."""
        self._loop.wake()

    async def run_once(self) -> bool:
        """Begin the queued turns that can begin, as far as this node may. While others wait, returns True
        after the next commit, or after LOOK_SECONDS."""
        if self._runner.leaving:
            return False
        version = self._store.version()
        if not await self._store.count_queued():
            return False
        heads = await self._store.queue_heads(limit=AT_ONCE)
        self._others = {turn.id: self._others.get(turn.id, self._monotonic()) for turn in heads}
        for turn in self._in_fair_order(heads):
            if len(self._running) >= self._most:
                break
            if turn.id not in self._running and self._may_begin(turn):
                self._of_owner[turn.owner] += 1
                self._note_begun(turn.owner)
                self._running[turn.id] = asyncio.create_task(self._see_through(turn))
        await self._store.changed(version, OTHERS_SECONDS if self._others else LOOK_SECONDS)
        return True

    def _in_fair_order(self, heads: Sequence[Turn]) -> list[Turn]:
        """First the turns of owners with the fewest running here; of those, who has waited longest."""
        counted = self._of_owner.copy()

        def place(turn: Turn) -> tuple[int, float]:
            counted[turn.owner] += 1
            return counted[turn.owner], self._last_begun.get(turn.owner, 0.0)

        return sorted(heads, key=place)

    def _note_begun(self, owner: str) -> None:
        self._last_begun.pop(owner, None)
        self._last_begun[owner] = self._monotonic()
        if len(self._last_begun) > MOST_OWNERS:
            del self._last_begun[next(iter(self._last_begun))]

    def _may_begin(self, turn: Turn) -> bool:
        """False: its own node may begin it in the next moment, or its owner has as many running as it may."""
        if self._of_owner[turn.owner] >= self._most_each:
            return False
        own = self._own_node()
        if own is None or turn.node_id == own:
            return True
        return self._monotonic() - self._others[turn.id] >= OTHERS_SECONDS

    async def _see_through(self, turn: Turn) -> None:
        try:
            running = await self._begin(turn)
            if running is not None:
                self.begun += 1
                await running.ended()
        except HoldfastError as error:
            log.warning("queued turn %s cannot begin now: %s", turn.id, error)
            await asyncio.sleep(LOOK_SECONDS)
        except Exception:
            log.exception("queued turn %s cannot begin (unexpected error)", turn.id)
            await asyncio.sleep(LOOK_SECONDS)
        finally:
            del self._running[turn.id]
            self._of_owner -= Counter((turn.owner,))  # drops an owner that has none left
            self._loop.wake()

    async def _begin(self, turn: Turn) -> RunningTurn | None:
        """Begin the turn and run it; None: another node has it, it waits again, or it has failed."""
        try:
            spec = await self._stored.spec(turn)
            request = TurnRequest(
                turn_id=turn.id,
                owner=turn.owner,
                node_id=spec.request.node_id,
                address=Address(id=turn.conversation_id, create=False),
                messages=(),
                starts_queued=True,
                api_key=spec.request.api_key,
                collects=self._collects,
            )
            outcome = await self._runner.begin(replace(spec, request=request), 0.0)
        except (NotFound, ConversationBusy):
            return None  # deleted, or another turn has begun in this moment
        except BadKey:
            await self._fail(turn, KEY_REVOKED)
            return None
        except (BadInput, Conflict) as error:
            await self._fail(turn, f"It could not begin: {error}.")
            return None
        if not isinstance(outcome, RunningTurn) or outcome.turn.id != turn.id:
            return None
        return self._stored.begun(spec, outcome)

    async def _fail(self, turn: Turn, why: str) -> None:
        log.warning("queued turn %s has failed: %s", turn.id, why)
        await self._store.withdraw_queued(None, turn.id, why, status=TurnStatus.FAILED)
