"""The SQLite engine: executes `Store`'s methods with one writer thread and a few readers.

Several processes may share the file. Opening it runs checks (the linked SQLite, the filesystem, the owner of
the file, its schema) and changes nothing if one fails.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import apsw

from ...domain.flushes import FlushRules
from ...domain.maintenance import Progress, no_progress
from ...domain.quotas import UNLIMITED, Quotas
from ...domain.resets import ResetPolicies
from ...errors import SearchFailed, StoreFailed, StoreUnusable
from .. import maintenance, nodes
from ..engine import opened, opened_in_thread
from ..rows import to_stamp
from ..search_terms import CATCH_UP_SECONDS, Deadline
from ..store import Store
from ..transaction import NO_RESETS, Transaction
from ..values import Figures, Finding, FoundPage, HitRange, SearchFilter
from .backup import back_up
from .connections import PATIENCE_SECONDS, check_library, connect
from .db_errors import cannot_open
from .files import Inodes, log_size, prepare_directory, real, space
from .locks import FileNodeLocks
from .migrations import migrate, newest
from .posix_lock_guard import PosixLockGuard, handles_of
from .readers import SQLiteReaders
from .search import SearchIndex, search
from .transaction import STATEMENTS, SQLiteTransaction
from .watch import FileChangeWatch
from .writer import SQLiteWriter

P = ParamSpec("P")
T = TypeVar("T")

INTEGRITY = "the store is intact"
SEARCH_INVARIANT = "the search index is sound"

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class SQLiteStore(Store):
    """One open store. Made by `open_store`."""

    _lost_in_a_fork = "SQLite's handles and locks"

    _writer: SQLiteWriter
    _readers: SQLiteReaders
    _search_readers: SQLiteReaders
    _watch: FileChangeWatch
    _locks: FileNodeLocks

    def __init__(
        self,
        database: Path,
        *,
        clock: Clock = utc_now,
        patience: float = PATIENCE_SECONDS,
        policies: ResetPolicies = NO_RESETS,
        flushing: FlushRules | None = None,
        quotas: Quotas = UNLIMITED,
    ) -> None:
        """Blocking: open the file, migrate its schema, start the threads."""
        check_library(apsw.sqlite_lib_version())
        self._database = real(database)
        super().__init__(policies, flushing, quotas)
        self._clock = clock
        self._patience = patience
        prepare_directory(self._database.parent)
        handles = handles_of(self._database)
        left = log_size(self._database)
        connection = connect(self._database, patience=patience)
        try:
            migrate(connection, self._database, to_stamp(clock()))
            self._inodes = Inodes(self._database)
            self._anchor = PosixLockGuard(self._database, handles)
        except apsw.Error as error:
            reason = connection.system_errno
            connection.close()
            raise cannot_open(error, str(self._database), reason) from error
        except StoreFailed as error:
            connection.close()
            raise StoreUnusable(f"cannot open {self._database}: {error}") from error
        except BaseException:
            connection.close()
            raise
        self._locks = FileNodeLocks(self._database)
        self._search: SearchIndex | None = None
        self._search_guard = threading.Lock()
        self._watch = FileChangeWatch(self._connect_reader, self.location, self._failed)
        self._writer = SQLiteWriter(
            connection, self._database, newest(), self._inodes, self._committed, patience
        )
        if left:  # a crashed process may have left text in the log that it had deleted
            self._writer.truncate_soon()
        self._readers = SQLiteReaders(self._connect_reader, self._begin_read, self.location, self._failed)
        self._search_readers = SQLiteReaders(
            self._connect_reader, self._begin_read, self.location, self._failed
        )
        opened(self)

    def _connect_reader(self) -> apsw.Connection:
        try:
            return connect(self._database, patience=self._patience, reader=True)
        except StoreFailed as failure:
            self._failed(failure)
            raise

    def _failed(self, failure: StoreFailed) -> None:
        self._writer.fail(failure)

    @property
    def location(self) -> str:
        return str(self._database)

    def now(self) -> datetime:
        return self._clock()

    async def close(self) -> None:
        if self._closed or self._forked:
            return
        self._closed = True
        # Blocking, but short: accepted jobs are finished. Not in an executor, because none exists any more
        # when a program's exit closes stores that it forgot to close.
        self._searches.stop()
        self._searches.join()
        self._search_readers.close()
        if self._search is not None:
            self._search.stop()
        self._watch.close()
        self._readers.close()
        self._anchor.release()
        self._writer.stop()
        self._locks.close()

    # --- reading and writing ----------------------------------------------------------------------------

    def _job(
        self,
        told: list[str],
        work: Callable[Concatenate[Transaction, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Any, ...]:
        def run(connection: apsw.Connection) -> Any:
            told.clear()  # the function may be run again, if its group failed
            now = to_stamp(self._clock())
            tx = SQLiteTransaction(connection, now, self._policies, told, self._flushing, self._quotas)
            done = work(tx, *args, **kwargs)
            if tx.erased:
                self._writer.erase()
            return done

        return (run,)

    def _begin_read(self, connection: apsw.Connection) -> Transaction:
        return SQLiteTransaction(connection, to_stamp(self._clock()), self._policies)

    def _close_in_child(self) -> None:
        self._locks.close_in_child()

    def _committed(self) -> None:
        self._watch.notice()
        if self._search is not None:
            self._search.notice()

    def _index(self) -> SearchIndex:
        with self._search_guard:
            if self._search is None:
                self._search = SearchIndex(self._database, self._forgotten)
            return self._search

    def _forgotten(self, ids: Sequence[int]) -> None:
        """Delete these rows of `unindexed`: the indexer has processed them."""
        self._writer.submit_later(
            lambda connection: connection.executemany(STATEMENTS["forgotten"], ({"id": id_} for id_ in ids))
        )

    def start_indexing(self) -> None:
        self._index().notice()

    def _find(
        self, owner: str | None, words: str, wanted: SearchFilter, hits: HitRange, deadline: Deadline
    ) -> FoundPage:
        index = self._index()
        index.catch_up(time.monotonic() + CATCH_UP_SECONDS)
        if deadline.passed:
            deadline = Deadline(owner)  # the wait before does not count against the search
        return self._search_read(search, index, owner, words, wanted, hits, deadline)

    # --- nodes ------------------------------------------------------------------------------------------

    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        reaped = await self._write(nodes.reap, node_id, seen_beat, why)
        if reaped:
            self._locks.remove(node_id)
        return reaped

    # --- the whole store --------------------------------------------------------------------------------

    async def figures(self) -> Figures:
        self._check_open()
        unindexed = await asyncio.to_thread(_unindexed, self._index())
        return await self._read(maintenance.figures, *space(self._database), unindexed)

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        self._check_open()
        await asyncio.to_thread(back_up, self._database, target, progress or no_progress)

    def invariants(self) -> Sequence[str]:
        return [INTEGRITY, *maintenance.INVARIANTS.values(), SEARCH_INVARIANT]

    async def check(self, progress: Progress | None = None) -> list[Finding]:
        whole, show = len(self.invariants()), progress or no_progress
        show(0, whole)
        findings = await self._read(_intact)
        findings += await self._read(maintenance.check, lambda done: show(done + 1, whole))
        trouble = await asyncio.to_thread(self._index().check)
        if trouble is not None:
            findings.append(Finding(SEARCH_INVARIANT, 1, [trouble], repairable=True))
        return findings

    async def repair(self) -> list[str]:
        mended = await self._write(maintenance.repair_sizes)
        number = await asyncio.to_thread(self._index().rebuild)
        return [*mended, f"rebuilt the search index over {number} messages"]


def _intact(tx: Transaction) -> list[Finding]:
    """Findings of SQLite's own integrity check."""
    assert isinstance(tx, SQLiteTransaction)
    problems = [row[0] for row in tx.connection.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]
    problems += [
        f"dangling reference in {row[0]}" for row in tx.connection.execute("PRAGMA foreign_key_check")
    ]
    return [Finding(INTEGRITY, len(problems), problems[:5])] if problems else []


def _unindexed(index: SearchIndex) -> int | None:
    """How many messages the search index lags; None if that cannot be read. Blocking."""
    try:
        return index.lag()
    except SearchFailed:
        return None


async def open_store(
    database: Path,
    *,
    clock: Clock = utc_now,
    patience: float = PATIENCE_SECONDS,
    policies: ResetPolicies = NO_RESETS,
    flushing: FlushRules | None = None,
    quotas: Quotas = UNLIMITED,
) -> SQLiteStore:
    """Open (or create) the store in this file. Raises StoreUnusable, having changed nothing, if it cannot."""
    return await opened_in_thread(
        SQLiteStore,
        database,
        clock=clock,
        patience=patience,
        policies=policies,
        flushing=flushing,
        quotas=quotas,
    )
