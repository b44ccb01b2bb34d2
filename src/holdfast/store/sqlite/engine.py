"""The SQLite engine: executes `Store`'s methods with one writer thread and a few readers.

Several processes may share the file. Opening it runs checks (the linked SQLite, the filesystem, the owner of
the file, its schema) and changes nothing if one fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import apsw

from ...domain.flushes import FlushRules
from ...domain.quotas import UNLIMITED, Quotas
from ...domain.resets import ResetPolicies
from ...errors import StoreClosed, StoreFailed, StoreUnusable
from .. import checks
from ..base import Finding, Progress, no_progress
from ..context import ContextCache
from ..rows import to_stamp
from ..search_threads import SearchThreads
from ..transaction import NO_RESETS, Transaction
from ..verbs.compacting import CompactingVerbs
from ..verbs.conversing import ConversingVerbs
from ..verbs.finding import FindingVerbs
from ..verbs.importing import ImportingVerbs
from ..verbs.living import LivingVerbs
from ..verbs.remembering import RememberingVerbs
from ..verbs.turning import TurningVerbs
from .backup import back_up
from .connections import PATIENCE_SECONDS, check_library, connect
from .db_errors import cannot_open
from .files import Inodes, log_size, prepare_directory, real
from .locks import FileNodeLocks
from .migrations import migrate, newest
from .own_verbs import SQLiteOwnVerbs
from .posix_lock_guard import PosixLockGuard, handles_of
from .readers import SQLiteReaders
from .search import SearchIndex
from .transaction import STATEMENTS, SQLiteTransaction
from .watch import FileChangeWatch
from .writer import SQLiteWriter

T = TypeVar("T")

log = logging.getLogger(__name__)

INTEGRITY = "the store is intact"
SEARCH_INVARIANT = "the search index is sound"

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class SQLiteStore(
    FindingVerbs,
    ConversingVerbs,
    TurningVerbs,
    CompactingVerbs,
    LivingVerbs,
    RememberingVerbs,
    ImportingVerbs,
    SQLiteOwnVerbs,
):
    """One open store. Made by `open_store`; see `store.base.Store` for what each method guarantees."""

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
        self._clock = clock
        self._policies = policies
        self._flushing = flushing
        self._quotas = quotas
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
        self._cache = ContextCache()
        self._search: SearchIndex | None = None
        self._search_guard = threading.Lock()
        self._watch = FileChangeWatch(self._connect_reader, self.location, self._failed)
        self._writer = SQLiteWriter(
            connection, self._database, newest(), self._inodes, self._committed, patience
        )
        if left:  # a crashed process may have left text in the log that it had deleted
            self._writer.truncate_soon()
        self._readers = SQLiteReaders(self._connect_reader, self.location, self._writer.fail)
        self._search_readers = SQLiteReaders(self._connect_reader, self.location, self._writer.fail)
        self._searches = SearchThreads()
        self._forked = False
        self._closed = False
        _open_stores.add(self)

    def _connect_reader(self) -> apsw.Connection:
        return connect(self._database, patience=self._patience, read_only=True)

    def _failed(self, failure: StoreFailed) -> None:
        self._writer.fail(failure)

    @property
    def location(self) -> str:
        return str(self._database)

    @property
    def failure(self) -> Exception | None:
        """Why this store has stopped for good, if it has."""
        return self._writer.failure

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

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        self._check_open()
        told: list[str] = []

        def run(connection: apsw.Connection) -> T:
            told.clear()  # the function may be run again, if its group failed
            now = to_stamp(self._clock())
            tx = SQLiteTransaction(connection, now, self._policies, told, self._flushing, self._quotas)
            done = work(tx)
            if tx.erased:
                self._writer.erase()
            return done

        done = await self._writer.submit(run)
        for line in told:
            log.info("%s", line)
        return done

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        self._check_open()
        if self._writer.failure is not None:  # a store that cannot be trusted is not read either
            raise self._writer.failure
        return await self._readers.run(
            lambda connection: work(SQLiteTransaction(connection, to_stamp(self._clock()), self._policies))
        )

    def _search_read(self, work: Callable[[Transaction], T]) -> T:
        if self._writer.failure is not None:
            raise self._writer.failure
        return self._search_readers.run_here(
            lambda connection: work(SQLiteTransaction(connection, to_stamp(self._clock()), self._policies))
        )

    def _check_open(self) -> None:
        if self._forked:
            raise StoreClosed(
                "this store was opened before the process forked; open it again in the child "
                "(SQLite's handles and locks do not survive a fork)"
            )
        if self._closed:
            raise StoreClosed("the store is closed")

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
        """Start the indexer thread, which keeps the search index up to date."""
        self._index().notice()

    # --- waiting and maintenance ------------------------------------------------------------------------

    def version(self) -> int:
        self._check_open()
        return self._watch.version()

    async def changed(self, since: int, timeout: float) -> bool:
        self._check_open()
        return await self._watch.changed(since, timeout)

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        self._check_open()
        await asyncio.to_thread(back_up, self._database, target, progress or no_progress)

    def invariants(self) -> Sequence[str]:
        return [INTEGRITY, *checks.INVARIANTS.values(), SEARCH_INVARIANT]

    async def check(self, progress: Progress | None = None) -> list[Finding]:
        whole, show = len(self.invariants()), progress or no_progress
        show(0, whole)
        findings = await self._read(_intact)
        findings += await self._read(lambda tx: checks.check(tx, lambda done: show(done + 1, whole)))
        trouble = await asyncio.to_thread(self._index().check)
        if trouble is not None:
            findings.append(Finding(SEARCH_INVARIANT, 1, [trouble], repairable=True))
        return findings

    async def repair(self) -> list[str]:
        mended = await self._write(checks.repair_sizes)
        number = await asyncio.to_thread(self._index().rebuild)
        return [*mended, f"made the search index anew, over {number} messages"]


def _intact(tx: Transaction) -> list[Finding]:
    """Findings of SQLite's own integrity check."""
    assert isinstance(tx, SQLiteTransaction)
    problems = [row[0] for row in tx.connection.execute("PRAGMA integrity_check(10)") if row[0] != "ok"]
    problems += [
        f"dangling reference in {row[0]}" for row in tx.connection.execute("PRAGMA foreign_key_check")
    ]
    return [Finding(INTEGRITY, len(problems), problems[:5])] if problems else []


_open_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()
_kept_in_child: list[SQLiteStore] = []


def _after_fork_in_child() -> None:
    """A forked child has none of the threads and must not use, close or collect the connections."""
    for store in list(_open_stores):
        store._forked = True
        store._locks.close_in_child()
        _kept_in_child.append(store)


os.register_at_fork(after_in_child=_after_fork_in_child)


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
    return await asyncio.to_thread(
        SQLiteStore,
        database,
        clock=clock,
        patience=patience,
        policies=policies,
        flushing=flushing,
        quotas=quotas,
    )
