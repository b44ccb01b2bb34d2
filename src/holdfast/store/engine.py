"""What both engines share: how a store method becomes a transaction, and the state of an open store.
Abstract methods are those that each engine implements itself.

A store method is a function of a transaction. `reads` runs it in one snapshot on a reader thread, `writes` in
the next group of the writer thread; the caller awaits the result. A method that writes has committed when it
returns, and has written nothing when it raises.

A store that was opened before a fork cannot be used in the child: its threads are not there, and its
connections belong to the parent. Every method then raises StoreClosed, as after `close`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

from ..domain.flushes import FlushRules
from ..domain.maintenance import Progress
from ..domain.nodes import Liveness, Node
from ..domain.pages import EVERY_MESSAGE, MOST_COUNTED
from ..domain.quotas import Quotas
from ..domain.resets import ResetPolicies
from ..errors import StoreClosed
from . import nodes
from .context_cache import ContextCache
from .readers import Readers
from .search_terms import Deadline
from .search_threads import SearchThreads
from .transaction import Transaction
from .values import Figures, Finding, Found, FoundPage, HitRange, SearchFilter, check_limit
from .watch import ChangeWatch
from .writer import GroupWriter

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Any])
S = TypeVar("S", bound="Engine")

log = logging.getLogger(__name__)


def reads(
    work: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]]:
    """The method that runs this function in one snapshot."""

    def method(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._read(work, *args, **kwargs)

    return _named_after(work, method, changes=False)


def writes(
    work: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]]:
    """The method that runs this function as one write, and returns when it is committed."""

    def method(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self._write(work, *args, **kwargs)

    return _named_after(work, method, changes=True)


def erases(
    work: Callable[Concatenate[Transaction, P], T],
) -> Callable[Concatenate[Engine, P], Coroutine[Any, Any, T]]:
    """Like `writes`, for a function that deletes text: it leaves the cached contexts and the search index
    too."""

    async def method(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        done = await self._write(work, *args, **kwargs)
        self._erased()
        return done

    return _named_after(work, method)


def _named_after(work: Callable[..., Any], method: M, *, changes: bool | None = None) -> M:
    """The method, with the function's docstring and signature for `help`. `changes`: whether it writes, for
    `Engine.blocking`."""
    method.__doc__ = work.__doc__
    method.__dict__["__wrapped__"] = work
    if changes is not None:
        method.__dict__["changes"] = changes
    return method


class NodeLocks(Protocol):
    """Locks by which a node proves that it is alive."""

    async def hold(self, node_id: str) -> None:
        """Lock this node for as long as this process lives."""
        ...

    def let_go(self, node_id: str) -> None:
        """Release the lock: the node has left cleanly, or did not join."""
        ...

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        """Liveness of each of these nodes, as far as provable from here, and why."""
        ...


class Engine(ABC):
    """An open store: its writer, readers, watch, locks and cache. An engine creates them when it opens."""

    _lost_in_a_fork: ClassVar[str]
    """What does not survive a fork, for the error message."""

    _writer: GroupWriter[Any]
    _readers: Readers[Any]
    _search_readers: Readers[Any]
    _watch: ChangeWatch
    _locks: NodeLocks

    def __init__(self, policies: ResetPolicies, flushing: FlushRules | None, quotas: Quotas) -> None:
        self._policies = policies
        self._flushing = flushing
        self._quotas = quotas
        self._cache = ContextCache()
        self._searches = SearchThreads()
        self._forked = False
        self._closed = False

    # --- reading and writing ----------------------------------------------------------------------------

    async def _read(
        self, work: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work` in one snapshot, on a reader thread."""
        self._check_open()
        if self._writer.failure is not None:  # a store that cannot be trusted is not read either
            raise self._writer.failure
        return await self._readers.run(work, *args, **kwargs)

    async def _write(
        self, work: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work` in the next group of writes; returns when it is committed."""
        self._check_open()
        told: list[str] = []
        done: T = await self._writer.submit(*self._job(told, work, *args, **kwargs))
        for line in told:
            log.info("%s", line)
        return done

    @abstractmethod
    def _job(
        self,
        told: list[str],
        work: Callable[Concatenate[Transaction, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Any, ...]:
        """The arguments of the writer's `submit` for `work`. Its log lines go to `told`, which is emptied if
        it is run again."""

    def blocking(
        self,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call this method of the store (`Store.checkpoint`, a single `reads` or `writes`) from a thread that
        may block: without a way over an event loop."""
        self._check_open()
        work: Callable[..., T] = method.__dict__["__wrapped__"]
        if method.__dict__["changes"]:
            told: list[str] = []
            done: T = self._writer.submit_blocking(*self._job(told, work, *args, **kwargs))
            for line in told:
                log.info("%s", line)
            return done
        if self._writer.failure is not None:
            raise self._writer.failure
        return self._readers.run_blocking(work, *args, **kwargs)

    def _search_read(
        self, work: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Blocking, on a search thread: run `work` in one snapshot, on that thread's own connection."""
        if self._writer.failure is not None:
            raise self._writer.failure
        return self._search_readers.run_here(work, args, kwargs)

    def paused(self, seconds: float) -> AbstractContextManager[None]:
        """No transaction that writes is open within the block: this process may be stopped. One that takes
        longer than `seconds` is not waited for."""
        return self._writer.paused(seconds)

    @property
    def failure(self) -> Exception | None:
        """Why this store has stopped permanently, if it has."""
        return self._writer.failure

    def _check_open(self) -> None:
        if self._forked:
            raise StoreClosed(
                "the store was opened in another process, from which this one was forked; open it again here "
                f"({self._lost_in_a_fork} do not survive a fork)"
            )
        if self._closed:
            raise StoreClosed("the store is closed")

    # --- after commits ----------------------------------------------------------------------------------

    def version(self) -> int:
        """A number that differs after a commit: here at once; by another process as soon as that is noticed
        (in a file at once, over a network on notification). It may also change without a commit."""
        self._check_open()
        return self._watch.version()

    async def changed(self, since: int, timeout: float, group: str = "") -> bool:
        """Wait until the version is no longer `since` (taken before reading), or until the timeout.

        `group`: on whose behalf (an owner, an API key). A group of many waiters is paced: each returns up to
        `LONGEST_PAUSE_SECONDS` later, because what they do next costs others.
        """
        self._check_open()
        return await self._watch.changed(since, timeout, group)

    @abstractmethod
    def start_indexing(self) -> None:
        """Start the indexer thread, which keeps the search index up to date."""

    def _erased(self) -> None:
        """Text was deleted: drop the cached contexts, and have the index updated."""
        self._cache.clear()
        self.start_indexing()

    # --- search -----------------------------------------------------------------------------------------

    async def search(
        self,
        owner: str | None,
        words: str,
        *,
        conversation_id: str | None = None,
        wanted: SearchFilter | None = None,
        limit: int = 20,
    ) -> list[Found]:
        """Messages of this owner that contain all these words. No committed message is ever missing."""
        if conversation_id is not None:
            wanted = replace(wanted or EVERY_MESSAGE, conversation_id=conversation_id)
        return list((await self.search_page(owner, words, wanted, limit=limit, count=limit)).hits)

    async def search_page(
        self,
        owner: str | None,
        words: str,
        wanted: SearchFilter | None = None,
        *,
        skip: int = 0,
        limit: int = 20,
        count: int = MOST_COUNTED,
    ) -> FoundPage:
        """The same, page by page: without the first `skip` hits, and with how many there are, up to
        `count`."""
        self._check_open()
        check_limit(limit)
        hits = HitRange(skip, limit, count)
        return await self._searches.run(
            owner, lambda deadline: self._find(owner, words, wanted or EVERY_MESSAGE, hits, deadline)
        )

    @abstractmethod
    def _find(
        self, owner: str | None, words: str, wanted: SearchFilter, hits: HitRange, deadline: Deadline
    ) -> FoundPage:
        """Blocking, on a search thread: `search_page`."""

    # --- nodes and their locks --------------------------------------------------------------------------

    async def join(self, node: Node, *, replaces: str | None = None) -> None:
        """Register an incarnation and hold its lock for as long as this process lives.

        `replaces`: the incarnation of this process that was reaped. Its lock is released when the new one has
        joined; if that fails, it is kept."""
        self._check_open()
        await self._locks.hold(node.id)
        try:
            await self._write(nodes.join, node)
        except BaseException:
            self._locks.let_go(node.id)
            raise
        if replaces is not None:
            self._locks.let_go(replaces)

    async def leave(self, node_id: str, reason: str) -> None:
        """Leave cleanly: running turns are interrupted, attached sessions end with `reason`, leases and the
        lock are released."""
        await self._write(nodes.leave, node_id, reason)
        self._locks.let_go(node_id)

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        """Liveness of each of these, as far as provable from here, and why. Writes nothing."""
        self._check_open()
        return await self._locks.probe(nodes)

    @abstractmethod
    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        """Mark a node as dead, unless its heartbeat has changed since. Its orphans must then be released."""

    # --- the whole store --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def location(self) -> str:
        """Its location, for people; without any password."""

    @abstractmethod
    def now(self) -> datetime:
        """The store's time, in UTC: the clock for all its timestamps."""

    @abstractmethod
    async def close(self) -> None:
        """Finish accepted jobs, then release everything. Idempotent."""

    @abstractmethod
    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        """A consistent copy of a store in use. Raises, leaving nothing, if the target exists, and BadInput if
        the database has its own backup tools. `progress` is called in another thread; if it raises, the
        backup is given up."""

    @abstractmethod
    def invariants(self) -> Sequence[str]:
        """What `check` verifies, in sentences."""

    @abstractmethod
    async def check(self, progress: Progress | None = None) -> list[Finding]:
        """Check every invariant that the store alone can decide, and its integrity. Empty: no finding."""

    @abstractmethod
    async def repair(self) -> list[str]:
        """Repair what can be repaired safely (derived data); returns what was done, in sentences."""

    @abstractmethod
    async def figures(self) -> Figures:
        """Totals for an operator; cheap enough to be read every few seconds."""

    # --- forks ------------------------------------------------------------------------------------------

    @abstractmethod
    def _close_in_child(self) -> None:
        """After a fork, in the child: let go of what would keep the parent's node locks held."""


_open_stores: weakref.WeakSet[Engine] = weakref.WeakSet()
_kept_in_child: list[Engine] = []


async def opened_in_thread(opens: Callable[P, S], *args: P.args, **kwargs: P.kwargs) -> S:
    """The store that `opens` returns. If the caller is cancelled meanwhile, the store is closed again: its
    threads, locks and connections would stay."""
    opening = asyncio.ensure_future(asyncio.to_thread(opens, *args, **kwargs))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait({opening})
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()
        raise


def opened(store: Engine) -> None:
    """Guard this store against use in a forked child."""
    _open_stores.add(store)


def _after_fork_in_child() -> None:
    """A forked child has none of the threads and must not use, close or collect the connections."""
    for store in list(_open_stores):
        store._forked = True
        store._close_in_child()
        _kept_in_child.append(store)


os.register_at_fork(after_in_child=_after_fork_in_child)
