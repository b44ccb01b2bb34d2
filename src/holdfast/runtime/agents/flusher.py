"""Flushes ended sessions into memory: at most one memory each.

A flush is normally one model call, and at most one more for each crash during a call. The end of a session
writes a row to be flushed; a node claims it before it flushes. When a node dies with its claim, another takes
over as soon as the death is noticed. A failed flush is retried with back-off; after `max_attempts` it is a
dead letter that a person can requeue. The memory and the done mark are committed together, by the holder of
the claim.

It runs in the background, at a bounded rate over all nodes. A slow or dead model delays only flushes, and a
restart repeats nothing. An answer that the store cannot write now, because its disk is full, is kept until it
can: the model is not called twice for it.
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
from ...store.store import Store
from .. import periodic
from ..shutdown import finished
from .memory_writers import FlushFailed, FlushTarget

log = logging.getLogger(__name__)

PASSING = (StoreBusy, StoreFull, StoreUnreachable, StoreUncertain)
"""Transient store errors. A commit with an unknown outcome may be retried: the token allows it once."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
CROWDED_SECONDS = 2.0
"""Pause when a flush is due but the pace allows no more now."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Concurrency, rate and number of attempts."""

    together: int = 4
    per_minute: int = 30
    max_attempts: int = 5
    retry: timedelta = timedelta(seconds=5)


@dataclass(slots=True)
class Flushed:
    """What one pass has done, by session id."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Why each attempt failed."""
    dead: list[str] = field(default_factory=list)
    """Those that became dead letters."""


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
        """Sessions whose claims this node is working on."""
        self._unsure = False
        """True if the outcome of a claim's commit is unknown."""
        self._unwell = ""
        """Why flushes fail, if they do; logged once, and again when it is over."""
        self.counts: Counter[str] = Counter()
        """Outcomes of this node's attempts: done, failed, dead."""

    async def flush_once(self) -> Flushed:
        """Claim what may be flushed now, and flush it. Bounded by the pace."""
        done = Flushed()
        await asyncio.gather(*(self._flush(claimed, done) for claimed in await self._claim() or ()))
        return done

    async def backlog(self, *, more: bool = False) -> str | None:
        """A line for operators when the backlog is more than a minute's work, else None. `more`: not all
        sessions have been counted yet."""
        figures = await self._store.flush_figures()
        waiting = figures.pending + figures.coming
        if waiting <= self._pace.per_minute:
            return None
        return ("more than " if more else "") + backlog_line(waiting, self._pace.per_minute)

    async def _claim(self) -> list[Flush] | None:
        """Claim what may be flushed now; None: nothing is due."""
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
        """Run one flush to its outcome, then drop it from `_held`."""
        try:
            await self._flush_claimed(claimed, done)
        finally:
            self._held.discard(claimed.session_id)

    async def _flush_claimed(self, claimed: Flush, done: Flushed) -> None:
        """Flush and store the outcome. On cancellation the claim is released, and the model is called again
        later."""
        try:
            problem, text = await self._asked(claimed)
        except asyncio.CancelledError:
            await finished(self._store.release_flush(claimed))
            raise
        except StoreError as error:  # not the model's fault: no failed attempt is counted
            log.warning("the messages of %s cannot be read now: %s", claimed.session_id, error)
            await _stored(lambda: self._store.release_flush(claimed))
            return
        if problem is not None:
            kept = await self._failed(claimed, problem, done)
        elif kept := await _stored(lambda: self._store.finish_flush(claimed, text)):
            done.done.append(claimed.session_id)
            self.counts["done"] += 1
        if not kept:
            log.warning("another node has the flush of %s now; the result is discarded", claimed.session_id)
        self._tell("" if problem is None else str(problem))

    async def _asked(self, claimed: Flush) -> tuple[FlushFailed | None, str | None]:
        """Why the attempt failed, or None; and the memory's text, or None."""
        try:
            given = await self._store.flush_input(claimed.session_id)
            if not given.entries:  # all of it was deleted meanwhile
                return None, None
            return None, await self._target.write(claimed, given)
        except FlushFailed as problem:
            return problem, None
        except NotFound:
            return FlushFailed("its conversation is gone"), None
        except StoreError:
            raise
        except HoldfastError as error:
            kind = type(error).__name__
            return FlushFailed(f"{kind}: {error}", public=f"{kind}: {error.public}"), None
        except Exception as error:  # a bug of ours must not leave the claim held
            log.exception("the flush of %s failed with an unexpected error", claimed.session_id)
            said = f"an internal error ({type(error).__name__}); the server's log has the details"
            return FlushFailed(said), None

    async def _failed(self, claimed: Flush, problem: FlushFailed, done: Flushed) -> bool:
        pause = pause_after(claimed.attempts, self._pace.max_attempts, self._pace.retry)
        kept = await _stored(lambda: self._store.fail_flush(claimed, problem.public, pause))
        if kept:
            done.failed[claimed.session_id] = str(problem)
            if pause is None:
                done.dead.append(claimed.session_id)
                log.error(
                    "session %s could not be flushed in %d attempts (%s) and is given up; `holdfast memories "
                    "retry %s` retries it",
                    claimed.session_id,
                    claimed.attempts,
                    problem,
                    claimed.session_id,
                )
            self.counts["dead" if pause is None else "failed"] += 1
        return kept

    def _tell(self, problem: str) -> None:
        if self._unwell and not problem:
            log.info("flushing works again")
        elif problem and not self._unwell:
            log.warning("a session could not be flushed (%s); it will be retried", problem)
        self._unwell = problem

    # --- lifecycle ---------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop.start()

    @property
    def running(self) -> bool:
        return self._loop.running

    async def stop(self, patience_seconds: float = 0.0) -> None:
        """Stop claiming. Running flushes get this long to end; then their claims are released."""
        await self._loop.stop()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=patience_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        await self._target.close()

    async def begin_once(self) -> bool:
        """Claim what may be flushed now and start it, without waiting for the outcome. False: something is
        due, but the pace allows no more now."""
        claimed = await self._claim()
        for each in claimed or ():
            task = asyncio.create_task(self._flush_alone(each))
            self._running.add(task)
            task.add_done_callback(self._ended)
        return claimed != []

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._loop.wake()  # a slot may be free now

    def _pause(self, room: object) -> float | None:
        return None if room else max(self._pause_seconds, CROWDED_SECONDS)

    async def _flush_alone(self, claimed: Flush) -> None:
        try:
            await self._flush(claimed, Flushed())
        except StoreError as error:  # the store has stopped permanently, and so will this node
            log.error("the result of the flush of %s could not be stored: %s", claimed.session_id, error)
        except Exception:
            log.exception(
                "the flush of %s failed; its claim is released and it will be retried", claimed.session_id
            )
            self._unsure = True  # the next pass releases claims without a task


async def _stored(work: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
    """Store the outcome of a flush; retry while the store has a transient error."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await finished(work())
        except PASSING as trouble:
            log.warning("the result of a flush is not stored yet: %s", trouble)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
