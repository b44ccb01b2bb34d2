"""Carries ended sessions into memory: one model call for each normally, at most one more for each crash in
mid-call, at most one memory.

What is to be flushed is a row that the end of the session has written; who flushes it claims it first. A node
that dies with its claim is followed by the next as soon as somebody has noticed. What fails is tried again,
later each time, and after `max_attempts` it is a dead letter that a person can take up again. The memory and
the mark that it is done are committed together, by whoever holds the claim.

It works beside everything else, at a bounded rate over all nodes: a slow or dead model delays nothing but
flushes, and nothing happens again because a server was started again. An answer that the store cannot take
now, because its disk is full, is kept until it can: the model is not asked twice for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ...domain.flushes import Flush, backlog_line, pause_after
from ...errors import (
    HoldfastError,
    NotFound,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUncertain,
    StoreUnreachable,
)
from ...store.base import Store
from .. import periodic
from ..shutdown import finished
from .memory_writers import FlushFailed, FlushTarget

log = logging.getLogger(__name__)

PASSING = (StoreBusy, StoreFull, StoreUnreachable, StoreUncertain)
"""Trouble of a store that passes. Whoever does not know whether it was committed may ask again: the token
allows it once."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
CROWDED_SECONDS = 2.0
"""How long to wait when something is due, but no more may be attempted now."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much at once, how often, how many times."""

    together: int = 4
    per_minute: int = 30
    max_attempts: int = 5
    retry: timedelta = timedelta(seconds=5)


@dataclass(slots=True)
class Flushed:
    """What one pass has done, by session id."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why each attempt came to nothing."""
    dead: list[str] = field(default_factory=list)
    """Those of them that were given up."""


class Flusher:
    def __init__(
        self,
        store: Store,
        own_node: Callable[[], str],
        target: FlushTarget,
        pace: Pace,
        pause_seconds: float = 1.0,
    ) -> None:
        self._store = store
        self._own_node = own_node
        self._target = target
        self._pace = pace
        self._pause_seconds = pause_seconds
        self._loop = periodic.every(pause_seconds, self.begin_once, "flush sessions", pause=self._pause)
        self._claiming = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()
        self._held: set[str] = set()
        """Sessions whose claims this node works at."""
        self._unsure = False
        """Did the store not say whether a claim was committed?"""
        self._unwell = ""
        """Why flushes fail, if they do; told once, and again when it is over."""
        self.counts: Counter[str] = Counter()
        """What attempts of this node came to: done, failed, dead."""

    async def flush_once(self) -> Flushed:
        """Claim what may be flushed now, and flush it. Bounded by the pace."""
        done = Flushed()
        await asyncio.gather(*(self._flush(claimed, done) for claimed in await self._claim() or ()))
        return done

    async def backlog(self, *, more: bool = False) -> str | None:
        """What an operator should know when there is more to do than a minute's worth. `more`: not all
        sessions have been looked at yet."""
        figures = await self._store.flush_figures()
        waiting = figures.pending + figures.coming
        if waiting <= self._pace.per_minute:
            return None
        return ("more than " if more else "") + backlog_line(waiting, self._pace.per_minute)

    async def _claim(self) -> list[Flush] | None:
        """What may be flushed now; None: nothing is due."""
        async with self._claiming:
            if self._unsure:
                await self._store.release_flushes(self._own_node(), keep=self._held)
                self._unsure = False
            if not await self._store.flushes_due():
                return None
            try:
                claimed = await self._store.claim_flushes(
                    self._own_node(), together=self._pace.together, per_minute=self._pace.per_minute
                )
            except StoreError:
                self._unsure = True
                raise
            self._held |= {each.session_id for each in claimed}
            return claimed

    # --- one flush ---------------------------------------------------------------------------------

    async def _flush(self, claimed: Flush, done: Flushed) -> None:
        """To the end, whatever that is."""
        try:
            await self._flush_claimed(claimed, done)
        finally:
            self._held.discard(claimed.session_id)

    async def _flush_claimed(self, claimed: Flush, done: Flushed) -> None:
        """Cut short, the claim is given back, and the model is asked again."""
        try:
            problem, text = await self._asked(claimed)
        except asyncio.CancelledError:
            await finished(self._store.release_flush(claimed))
            raise
        except StoreError as error:  # the model is not to blame
            log.warning("what %s said cannot be read now: %s", claimed.session_id, error)
            await _stored(lambda: self._store.release_flush(claimed))
            return
        if problem is not None:
            kept = await self._failed(claimed, problem, done)
        elif kept := await _stored(lambda: self._store.finish_flush(claimed, text)):
            done.done.append(claimed.session_id)
            self.counts["done"] += 1
        if not kept:
            log.warning(
                "the flush of %s is no longer this node's; what came of it is dropped", claimed.session_id
            )
        self._tell(problem)

    async def _asked(self, claimed: Flush) -> tuple[str | None, str | None]:
        """Why it came to nothing, if it did, and what is remembered, if anything is."""
        try:
            given = await self._store.flush_input(claimed.session_id)
            if not given.entries:  # all of it was deleted meanwhile
                return None, None
            return None, await self._target.write(claimed, given)
        except FlushFailed as problem:
            return str(problem), None
        except NotFound:
            return "its conversation is gone", None
        except StoreError:
            raise
        except HoldfastError as error:
            return f"{type(error).__name__}: {error}", None
        except Exception as error:  # a mistake of ours must not leave the claim behind
            log.exception("the flush of %s failed by a mistake of our own", claimed.session_id)
            return f"a mistake of the server ({type(error).__name__}); its log has more", None

    async def _failed(self, claimed: Flush, problem: str, done: Flushed) -> bool:
        pause = pause_after(claimed.attempts, self._pace.max_attempts, self._pace.retry)
        kept = await _stored(lambda: self._store.fail_flush(claimed, problem, pause))
        if kept:
            done.failed[claimed.session_id] = problem
            if pause is None:
                done.dead.append(claimed.session_id)
                log.error(
                    "session %s could not be flushed in %d attempts (%s) and is given up; `holdfast memories "
                    "retry %s` takes it up again",
                    claimed.session_id,
                    claimed.attempts,
                    problem,
                    claimed.session_id,
                )
            self.counts["dead" if pause is None else "failed"] += 1
        return kept

    def _tell(self, problem: str | None) -> None:
        if problem is None:
            if self._unwell:
                log.info("sessions are flushed again")
        elif not self._unwell:
            log.warning("a session could not be flushed (%s); it will be tried again", problem)
        self._unwell = problem or ""

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.start()

    @property
    def running(self) -> bool:
        return self._loop.running

    async def stop(self, patience_seconds: float = 0.0) -> None:
        """Claim nothing more. What is running gets so long to end; then it is given back."""
        await self._loop.stop()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=patience_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        await self._target.close()

    async def begin_once(self) -> bool:
        """Claim what may be flushed now and begin to flush it, without waiting for its end. False: something
        is due, but no more may be attempted now."""
        claimed = await self._claim()
        for each in claimed or ():
            task = asyncio.create_task(self._flush_alone(each))
            self._running.add(task)
            task.add_done_callback(self._ended)
        return claimed != []

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._loop.wake()  # there may be room for another now

    def _pause(self, room: object) -> float | None:
        return None if room else max(self._pause_seconds, CROWDED_SECONDS)

    async def _flush_alone(self, claimed: Flush) -> None:
        try:
            await self._flush(claimed, Flushed())
        except StoreError as error:  # it has stopped for good, and so will this node
            log.error("what came of the flush of %s could not be stored: %s", claimed.session_id, error)
        except Exception:
            log.exception(
                "the flush of %s failed; its claim is released and it is tried again", claimed.session_id
            )
            self._unsure = True  # the next pass releases claims that no task works at


async def _stored(work: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
    """Store what came of a flush, as soon as the store can take it."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await finished(work())
        except PASSING as trouble:
            log.warning("what came of a flush waits to be stored: %s", trouble)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
