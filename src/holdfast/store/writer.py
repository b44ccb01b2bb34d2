"""The queue of a writer thread, and the futures of its callers.

Both engines commit in groups: jobs that wait together share one transaction. Here is what does not depend on
the database: accept a job, remember why the writer has stopped, answer the callers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ..errors import HoldfastError, StoreClosed

log = logging.getLogger(__name__)

LARGEST_GROUP = 256

WOKEN_TOGETHER = 2
LOOK_AGAIN_SECONDS = 1.0

T = TypeVar("T")
W = TypeVar("W")


class ThreadResult(Generic[T]):
    """The result of a job that a thread waits for.

    The threads of a group are woken one after the other: each wakes the next when it has its own result. If
    all were woken at once, they would wait for Python's global lock, and take it from the writer at each of
    its statements. A thread that leaves without waking the next (Ctrl-C) delays that one, not more: it looks
    again after `LOOK_AGAIN_SECONDS`.
    """

    __slots__ = ("_done", "_error", "_next", "_value", "_woken")

    def __init__(self) -> None:
        self._woken = threading.Lock()
        self._woken.acquire()
        self._next: list[ThreadResult[Any]] = []
        self._value: T
        self._error: BaseException | None = None
        self._done = False

    def done(self) -> bool:
        return self._done

    def set_result(self, value: T) -> None:
        self._value = value
        self._done = True

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._done = True

    def followed_by(self, next_: ThreadResult[Any]) -> None:
        """Have the thread that waits for this result wake the one that waits for the next."""
        self._next.append(next_)

    def wake(self) -> None:
        """Wake the thread that waits for this result. Once."""
        self._woken.release()

    def result(self) -> T:
        """Wait for the result."""
        while not self._done:
            self._woken.acquire(timeout=LOOK_AGAIN_SECONDS)
        while self._next:
            self._next.pop().wake()
        if self._error is not None:
            raise self._error
        return self._value


class WriteJob(Generic[W]):
    """One caller's write, and the future for its result: of this event loop, or of a thread that waits.
    Without a future nothing waits for it."""

    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(
        self,
        work: W,
        loop: asyncio.AbstractEventLoop | None = None,
        future: asyncio.Future[Any] | ThreadResult[Any] | None = None,
    ) -> None:
        self.work = work
        self.loop = loop
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None


J = TypeVar("J", bound=WriteJob[Any])


class GroupWriter(ABC, Generic[J]):
    """Jobs wait in `_queue`, guarded by `_wake`; the engine's thread takes them in groups."""

    def __init__(self) -> None:
        self._queue: deque[J] = deque()
        self._wake = threading.Condition()
        self._writing = threading.Lock()
        """Held by the thread while a transaction may be open."""
        self._stopping = False
        self._failure: HoldfastError | None = None

    @contextmanager
    def paused(self, seconds: float) -> Iterator[None]:
        """Open no transaction within the block; one that takes longer than `seconds` is not waited for."""
        held = self._writing.acquire(timeout=seconds)
        try:
            yield
        finally:
            if held:
                self._writing.release()

    @property
    def failure(self) -> HoldfastError | None:
        """Why this writer has stopped permanently, if it has."""
        return self._failure

    def fail(self, failure: HoldfastError) -> None:
        """Stop permanently: every later call gets this error."""
        if self._failure is None:
            self._failure = failure
            log.critical("the store has stopped: %s", failure)

    @abstractmethod
    async def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Run the work of a job inside the next group; returns when it is committed. An engine types it."""

    @abstractmethod
    def submit_blocking(self, *args: Any, **kwargs: Any) -> Any:
        """The same for a thread without an event loop."""

    def _accept(self, job: J) -> None:
        with self._wake:
            failure = self.failure
            if failure is not None:
                raise failure
            if self._stopping:
                raise StoreClosed("the store is closed")
            self._queue.append(job)
            if len(self._queue) == 1:
                self._wake.notify()

    def _take_group(self) -> list[J]:
        """Take the longest waiting jobs. The caller holds `_wake`."""
        return [self._queue.popleft() for _ in range(min(len(self._queue), LARGEST_GROUP))]

    def _answer(self, jobs: Sequence[J]) -> None:
        """Wake each event loop once, not once per job; threads one after the other."""
        by_loop: dict[asyncio.AbstractEventLoop, list[J]] = {}
        threads: list[J] = []
        for job in jobs:
            if job.loop is not None:
                by_loop.setdefault(job.loop, []).append(job)
            elif job.future is not None:
                threads.append(job)
            elif job.error is not None:
                log.warning("bookkeeping failed and will be retried: %s", job.error)
        for loop, waiting in by_loop.items():
            try:
                loop.call_soon_threadsafe(_settle, waiting)
            except RuntimeError:
                log.debug("the event loop of %d callers closed before their results arrived", len(waiting))
        answer_threads(threads)


def answer_threads(jobs: Sequence[WriteJob[Any]]) -> None:
    """Give these jobs, for each of which a thread waits, their results. A job that has one keeps it."""
    waiting = [job.future for job in jobs if isinstance(job.future, ThreadResult) and not job.future.done()]
    for each, next_ in zip(waiting, waiting[WOKEN_TOGETHER:], strict=False):
        each.followed_by(next_)
    _settle(jobs)
    for first in waiting[:WOKEN_TOGETHER]:
        first.wake()


def _settle(jobs: Sequence[WriteJob[Any]]) -> None:
    for job in jobs:
        if job.future is None or job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
