"""Deletes expired drafts of ended turns, events, request keys and nodes that are long gone.

Whole conversations are deleted only if the settings say so; messages, sessions and turns only with their
conversation. Each pass is bounded, oldest first. While passes are full they follow each other, with pauses
that leave most of the time to writers; then it pauses for ten minutes. A sweep with nothing to delete costs
nothing. Retention comes from the store's policy, else from this program's settings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...domain.maintenance import Pruned, Reaped, Reset, Swept
from ...store.store import Store
from ...store.values import Retention
from .. import periodic
from .reaper import Reaper
from .resetter import Resetter

log = logging.getLogger(__name__)

PAUSE_SECONDS = 600.0


class Pruner:
    def __init__(
        self, store: Store, keep: Retention, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._keep = keep
        self._monotonic = monotonic
        self._next = 0.0

    async def prune_once(self) -> Pruned:
        """One bounded pass; `more`: the next call continues, else it pauses."""
        if self._monotonic() < self._next:
            return Pruned()
        done = await self._store.prune((await self._store.policy()).retention or self._keep)
        if done.anything:
            log.info(
                "dropped %d drafts, %d events, %d request keys, %d nodes that are gone",
                done.drafts, done.events, done.requests, done.nodes,
            )  # fmt: skip
        if done.conversations:
            left = "" if done.more else f"; {done.spared} as old are still in use"
            log.info("deleted %d conversations past their retention%s", done.conversations, left)
        if not done.more:
            self._next = self._monotonic() + PAUSE_SECONDS
        return done


PRUNING_SECONDS = 0.1
"""Pause between two passes when the first could not delete everything: writers get most of the time."""

T = TypeVar("T")


class Sweeper:
    def __init__(
        self,
        reaper: Reaper,
        sweep_seconds: float,
        pruner: Pruner | None = None,
        resetter: Resetter | None = None,
    ) -> None:
        self._reaper = reaper
        self._resetter = resetter
        self._pruner = pruner
        self._loop = periodic.every(sweep_seconds, self.sweep_once, "sweep", pause=_pause)
        self._ticks = periodic.every(
            sweep_seconds,
            self.tick_once,
            "watch the heartbeats of other nodes",
            first=sweep_seconds,
            steady=True,
        )

    async def sweep_once(self) -> Swept:
        """One pass: reap dead nodes and their orphans, reset due sessions, then delete expired data. Bounded:
        `more` says whether something is left. A part that fails does not stop the others; its error is raised
        afterwards."""
        errors: list[Exception] = []
        swept = Swept(await _part(self._reaper.reap_once(), Reaped(), errors))
        if self._resetter is not None:
            undated = await _part(self._resetter.date_once(), False, errors)
            swept.reset = await _part(self._resetter.reset_once(), Reset(), errors)
            swept.reset.more |= undated
        if self._pruner is not None:
            swept.pruned = await _part(self._pruner.prune_once(), Pruned(), errors)
        if errors:
            raise errors[0]
        return swept

    async def tick_once(self) -> None:
        """Record that this process is awake, however long its sweeps take: hung nodes are judged by that."""
        self._reaper.tick()

    @property
    def running(self) -> bool:
        return self._loop.running

    def start(self) -> None:
        self._loop.start()
        self._ticks.start()

    async def stop(self) -> None:
        await self._ticks.stop()
        await self._loop.stop()


async def _part(work: Awaitable[T], failed: T, errors: list[Exception]) -> T:
    try:
        return await work
    except periodic.STORE_WIDE:
        raise
    except Exception as error:
        errors.append(error)
        return failed


def _pause(swept: object) -> float | None:
    """The pause before the next sweep; None: the default."""
    assert isinstance(swept, Swept)
    if swept.reset.more:
        return 0.0
    return PRUNING_SECONDS if swept.pruned.more else None
