"""Resets sessions when they are due, and says why.

What is due is found by its date, so a pass costs what is due and not what is stored. Each session is judged
and reset in a transaction of its own, by the store: rows fail alone. Every reset and every change of a
deferral is one line in the log. A message that comes before the sweep has the same done to its session.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from ..domain.resets import Decision, Verdict
from ..store.base import Store

log = logging.getLogger(__name__)

BATCH = 100
DATED_AT_ONCE = 1000


@dataclass(slots=True)
class Reset:
    """What one pass has done, by session id."""

    reset: dict[str, str] = field(default_factory=dict)
    """The reason of each."""
    deferred: list[str] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return bool(self.reset or self.deferred)


class Resetter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: dict[str, tuple[str, ...]] = {}

    async def date_all(self) -> int:
        """Reckon anew when sessions are due that were dated by other policies than today's: once, at
        start."""
        total = 0
        while dated := await self._store.date_sessions(DATED_AT_ONCE):
            total += dated
        if total:
            log.info("the reset policies have changed: %d open sessions were dated anew", total)
        return total

    async def reset_once(self) -> Reset:
        """One pass over the sessions that are due."""
        done = Reset()
        while due := await self._store.due_sessions(BATCH):
            for session_id in due:
                found = await self._store.reset_session(session_id)
                if found is not None:
                    self._tell(session_id, found, done)
            if len(due) < BATCH:
                break
        return done

    def _tell(self, session_id: str, found: Verdict, done: Reset) -> None:
        if found.decision is Decision.DUE:
            assert found.end_reason is not None
            done.reset[session_id] = found.end_reason.value
            self._told.pop(session_id, None)
            why = found.reasons[0].message
            log.info("session %s was reset (%s): %s", session_id, found.end_reason.value, why)
        elif found.decision is Decision.DEFERRED:
            done.deferred.append(session_id)
            holding = "; ".join(reason.message for reason in found.holding)
            codes = tuple(sorted(reason.process_id or reason.code for reason in found.holding))
            if self._told.get(session_id) != codes:
                self._told[session_id] = codes
                log.info("session %s is due to be reset, which is put off: %s", session_id, holding)
