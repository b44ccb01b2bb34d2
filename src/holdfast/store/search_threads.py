"""Threads only for searches, so that nothing else ever waits for a search.

Guarantees: at most THREADS searches run at once, at most one of them per owner, each until its deadline. A
search that is still queued at its deadline, or finds the queue full, is refused (back-pressure).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import SearchFailed, SearchTimeout, StoreClosed
from ..os_support import LazyThread
from .search_terms import Deadline

T = TypeVar("T")

THREADS = 2
MOST_WAITING = 200


class _QueuedSearch:
    __slots__ = ("deadline", "future", "owner", "work")

    def __init__(self, owner: str | None, work: Callable[[Deadline], Any]) -> None:
        self.owner = owner
        self.work = work
        self.deadline = Deadline(owner)
        self.future: Future[Any] = Future()


class SearchThreads:
    """Started with the first search. Call `run` from any event loop, in any thread."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = [LazyThread(self._run, f"holdfast-search-{number}") for number in range(threads)]
        self._closed = False
        self._change = threading.Condition()
        self._waiting: deque[_QueuedSearch] = deque()
        self._running: set[str | None] = set()

    async def run(self, owner: str | None, work: Callable[[Deadline], T]) -> T:
        """Run `work` for this owner on one of the threads. SearchTimeout: still queued at its deadline."""
        search = _QueuedSearch(owner, work)
        with self._change:
            if self._closed:
                raise StoreClosed("the store is closed")
            if len(self._waiting) >= MOST_WAITING:
                raise SearchTimeout(search.deadline.seconds, waited=True)
            started = [thread.start() for thread in self._threads]
            if not any(started):
                raise SearchFailed("no thread can be started for a search: the system has too many. Retry")
            self._waiting.append(search)
            self._change.notify()
        found: T = await asyncio.wrap_future(search.future)
        return found

    def _run(self) -> None:
        while (search := self._next()) is not None:
            try:
                if not search.future.set_running_or_notify_cancel():
                    continue
                if search.deadline.passed:
                    raise SearchTimeout(search.deadline.seconds, waited=True)
                search.future.set_result(search.work(search.deadline))
            except BaseException as error:  # passed to the caller: this thread continues
                search.future.set_exception(error)
            finally:
                with self._change:
                    self._running.discard(search.owner)
                    self._change.notify_all()

    def _next(self) -> _QueuedSearch | None:
        """Wait for a search whose owner has none running; None: closed."""
        with self._change:
            while not self._closed:
                for place, search in enumerate(self._waiting):
                    if search.owner not in self._running:
                        del self._waiting[place]
                        self._running.add(search.owner)
                        return search
                self._change.wait()
            return None

    def stop(self) -> None:
        """Refuse queued and new searches; running ones continue until done, or until their deadline."""
        with self._change:
            self._closed = True
            waiting, self._waiting = self._waiting, deque()
            self._change.notify_all()
        for search in waiting:
            if search.future.set_running_or_notify_cancel():
                search.future.set_exception(StoreClosed("the store is closed"))

    def join(self) -> None:
        """Wait for running searches."""
        for thread in self._threads:
            thread.join()
