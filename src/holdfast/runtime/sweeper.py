"""One agent that runs every due pass, so that there is no janitor to forget.

Any node may sweep, any number of them at once: every change is guarded by the state it was decided on.
`sweep_once` is also what `holdfast sweep` and the start of every command call.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from ..errors import StoreClosed, StoreError
from ..store.base import Pruned
from .pruner import Pruner
from .reaper import Reaped, Reaper
from .resetter import Reset, Resetter

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Swept:
    """What one sweep has done."""

    reaped: Reaped = field(default_factory=Reaped)
    reset: Reset = field(default_factory=Reset)
    pruned: Pruned = field(default_factory=Pruned)

    @property
    def anything(self) -> bool:
        return self.reaped.anything or self.reset.anything or self.pruned.anything

    @property
    def more(self) -> bool:
        """Is there more to be done at once?"""
        return self.reset.more


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
        self._sweep_seconds = sweep_seconds
        self._task: asyncio.Task[None] | None = None

    async def sweep_once(self) -> Swept:
        """One pass over what is due: dead nodes and what they left, sessions whose time has come, then what
        was kept long enough. Bounded: `more` says whether something is left."""
        reaped = await self._reaper.reap_once()
        reset = Reset()
        if self._resetter is not None:
            undated = await self._resetter.date_once()
            reset = await self._resetter.reset_once()
            reset.more |= undated
        return Swept(reaped, reset, await self._pruner.prune_once() if self._pruner else Pruned())

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._sweep_for_ever())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _sweep_for_ever(self) -> None:
        """Trouble with the store is told once, and again when it is over."""
        quiet = False
        while True:
            more = False
            try:
                more = (await self.sweep_once()).more
                if quiet:
                    log.info("sweeping again")
                quiet = False
            except StoreClosed:
                return
            except StoreError as error:
                if not quiet:
                    log.error("cannot sweep: %s", error)
                quiet = True
            except Exception:  # nobody would notice that it is gone
                log.exception("a sweep has failed; it will be tried again")
            await asyncio.sleep(0 if more else self._sweep_seconds)
