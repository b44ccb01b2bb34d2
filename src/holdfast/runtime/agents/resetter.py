"""Resets sessions when they are due, and records why.

Due sessions are found by their reset date, so a pass costs what is due, not what is stored. A pass is
bounded, and the next one continues. The store decides and resets each session in its own transaction: a
failure of one does not affect others. Every reset and every change of a deferral is one log line. A message
that arrives before the sweep resets its session in the same way.

New policies reschedule sessions in small batches, in the background. If several programs on one store have
different policies, those of the last server apply, which it records in the store; in a store that no server
has opened, those of the program opened last. A program without policies, and a command, reschedule nothing.
Only the program that scheduled a session resets it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum

from ...domain.maintenance import Reset
from ...domain.resets import Decision
from ...store.store import Store
from ..periodic import STORE_WIDE

log = logging.getLogger(__name__)

BATCH = 200
TOGETHER = 50
DATED_AT_ONCE = 200
AGAIN_SECONDS = 60.0


class RescheduleMode(StrEnum):
    """When a program reschedules sessions that other policies have scheduled."""

    NEVER = "never"
    ONCE = "once"
    ALWAYS = "always"


class Resetter:
    def __init__(
        self,
        store: Store,
        dating: RescheduleMode = RescheduleMode.NEVER,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._dating = dating
        self._monotonic = monotonic
        self._dated: int | None = 0
        """How many were rescheduled so far; None: the first round is over."""
        self._troubled: dict[str, float] = {}
        """Sessions that failed, and until when they are skipped."""

    async def date_once(self) -> bool:
        """Reschedule a batch of sessions that other policies have scheduled; True: there are more."""
        if self._dating is RescheduleMode.NEVER:
            return False
        dated = await self._store.date_sessions(
            DATED_AT_ONCE, over_servers=self._dating is RescheduleMode.ALWAYS
        )
        if self._dated is not None:
            self._dated += dated
        if dated == DATED_AT_ONCE:
            return True
        if self._dated:
            log.info("the reset policies have changed: %d open sessions were rescheduled", self._dated)
        self._dated = None
        if self._dating is RescheduleMode.ONCE:
            self._dating = RescheduleMode.NEVER
        return False

    async def reset_once(self) -> Reset:
        """One bounded pass over the due sessions, longest due first."""
        now = self._monotonic()
        self._troubled = {each: until for each, until in self._troubled.items() if until > now}
        due = await self._store.due_sessions(BATCH + len(self._troubled))
        done = Reset(more=len(due) == BATCH + len(self._troubled))
        due = [session_id for session_id in due if session_id not in self._troubled][:BATCH]
        for start in range(0, len(due), TOGETHER):  # concurrent, so that they share group commits
            await asyncio.gather(*(self._reset(each, done) for each in due[start : start + TOGETHER]))
        return done

    async def reset_all(self) -> Reset:
        """Repeat passes until nothing is due."""
        total = Reset()
        while True:
            done = await self.reset_once()
            total.reset |= done.reset
            total.deferred += done.deferred
            total.troubles += done.troubles
            if not done.more:
                return total

    async def _reset(self, session_id: str, done: Reset) -> None:
        try:
            found = await self._store.reset_session(session_id)
        except STORE_WIDE:
            raise
        except Exception as error:  # isolate failures: the others are still reset
            log.exception("session %s could not be checked and will be retried", session_id)
            done.troubles.append(f"session {session_id}: {error}")
            self._troubled[session_id] = self._monotonic() + AGAIN_SECONDS
            return
        if found is not None and found.decision is Decision.DUE:
            assert found.end_reason is not None
            done.reset[session_id] = found.end_reason.value
        elif found is not None and found.decision is Decision.DEFERRED:
            done.deferred.append(session_id)
