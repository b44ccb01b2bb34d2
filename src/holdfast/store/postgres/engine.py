"""The PostgreSQL engine: executes `Store`'s methods with one writer thread, a few readers, and the listen
connection.

Any number of nodes share a database. Opening it runs checks (can it be reached, is it new enough, is it
PostgreSQL itself, do we have the rights, is the schema ours and known) and changes nothing if one fails. A
server outage does not stop the store: requests wait for a while, then fail, saying so; later requests succeed
when the server is back.

Time is the database's, one clock for all nodes: every transaction reads it, and in between it is extrapolated
by this machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import psycopg

from ...domain.flushes import FlushRules
from ...domain.quotas import UNLIMITED, Quotas
from ...domain.resets import ResetPolicies
from ...errors import BadInput, StoreClosed
from .. import checks
from ..base import Finding, Progress, no_progress
from ..context import ContextCache
from ..rows import to_stamp, to_time
from ..search_threads import SearchThreads
from ..transaction import NO_RESETS, Q, Transaction
from ..verbs.compacting import CompactingVerbs
from ..verbs.conversing import ConversingVerbs
from ..verbs.finding import FindingVerbs
from ..verbs.importing import ImportingVerbs
from ..verbs.living import LivingVerbs
from ..verbs.remembering import RememberingVerbs
from ..verbs.turning import TurningVerbs
from .connections import ANSWER_SECONDS, DatabaseAddress, check_arrived, connect, open_connection
from .db_errors import cannot_open
from .listen_connection import ListenConnection
from .locks import AdvisoryNodeLocks
from .migrations import migrate, newest
from .own_verbs import PostgresOwnVerbs
from .pipeline import Connection, Pipeline
from .readers import PostgresReaders
from .search import Indexer
from .statements import statement
from .transaction import Changes, PostgresTransaction
from .watch import NotifyChangeWatch
from .writer import PostgresWriter

T = TypeVar("T")

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0
SEARCH_INVARIANT = "the search index holds every message, or knows which it lacks"

Clock = Callable[[], datetime]


class DatabaseClock:
    """The database's time: the last answer, extrapolated."""

    def __init__(self) -> None:
        self._ahead = 0
        """Offset from our monotonic clock, in microseconds."""

    def told(self, stamp: int) -> int:
        """Set the clock to a stamp just received from the database."""
        self._ahead = stamp - time.monotonic_ns() // 1000
        return stamp

    def stamp(self) -> int:
        return self._ahead + time.monotonic_ns() // 1000


class PostgresStore(
    PostgresOwnVerbs,
    FindingVerbs,
    ConversingVerbs,
    TurningVerbs,
    CompactingVerbs,
    LivingVerbs,
    RememberingVerbs,
    ImportingVerbs,
):
    """One open store. Made by `open_store`; see `store.base.Store` for what each method guarantees."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        patience: float = PATIENCE_SECONDS,
        policies: ResetPolicies = NO_RESETS,
        flushing: FlushRules | None = None,
        quotas: Quotas = UNLIMITED,
        moving: bool = False,
    ) -> None:
        """Blocking: connect, migrate the schema, start the threads. A given `clock` replaces the database's.
        `moving`: a store is being copied there, and may be incomplete."""
        self._address = DatabaseAddress.parse(url)
        self._clock = clock
        self._policies = policies
        self._flushing = flushing
        self._quotas = quotas
        self._database_clock = DatabaseClock()
        connection = open_connection(self._address)
        try:
            migrate(connection, self._address, to_stamp(clock()) if clock else None)
            if not moving:
                check_arrived(connection, self._address)
            first = Pipeline(connection, ANSWER_SECONDS)
            self._database_clock.told(first.ask(statement(Q.clock))[0][0])
        except psycopg.Error as error:
            connection.close()
            raise cannot_open(error, self.location) from error
        except BaseException:
            connection.close()
            raise
        self._unused: list[Pipeline] = [first]
        self._guard = threading.Lock()
        self._cache = ContextCache()
        self._line = ListenConnection(self._connect, self.location)
        self._watch = NotifyChangeWatch(self._line)
        self._locks = AdvisoryNodeLocks(self._line, self._watch.notice)
        self._indexer = Indexer(self._dial)
        self._writer = PostgresWriter(
            self._dial, self.location, newest(), patience, self._watch.tag, self._committed, self._told_time
        )
        self._readers = PostgresReaders(self._dial, self.location, patience, self._writer.fail)
        self._search_readers = PostgresReaders(self._dial, self.location, patience, self._writer.fail)
        self._searches = SearchThreads()
        self._forked = False
        self._closed = False
        _open_stores.add(self)

    def _connect(self) -> Connection:
        return connect(self._address)

    def _dial(self) -> Pipeline:
        with self._guard:
            if self._unused:
                return self._unused.pop()
        return Pipeline(self._connect(), ANSWER_SECONDS)

    def _told_time(self, stamp: int) -> int:
        self._database_clock.told(stamp)
        return stamp if self._clock is None else to_stamp(self._clock())

    def _stamp(self) -> int:
        return self._database_clock.stamp() if self._clock is None else to_stamp(self._clock())

    @property
    def location(self) -> str:
        return self._address.location

    @property
    def failure(self) -> Exception | None:
        """Why this store has stopped for good, if it has."""
        return self._writer.failure

    def now(self) -> datetime:
        return to_time(self._stamp())

    async def close(self) -> None:
        if self._closed or self._forked:
            return
        self._closed = True
        # Blocking, but short: accepted jobs are finished. Not in an executor, because none exists any more
        # when a program's exit closes stores that it forgot to close.
        self._indexer.stop()
        self._searches.stop()
        self._search_readers.close()
        self._searches.join()
        self._readers.close()
        self._writer.stop()
        self._locks.close()
        self._line.close()
        for wire in self._unused:
            wire.close()

    # --- reading and writing ----------------------------------------------------------------------------

    async def _write(self, work: Callable[[Transaction], T]) -> T:
        self._check_open()
        told: list[str] = []

        def run(changes: Changes, now: int) -> T:
            told.clear()  # the function may be run again, if its group failed
            return work(
                PostgresTransaction(
                    changes, now, self._policies, told, self._flushing, self._quotas, writes=True
                )
            )

        done = await self._writer.submit(run)
        for line in told:
            log.info("%s", line)
        return done

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        self._check_open()
        if self._writer.failure is not None:  # a store that cannot be trusted is not read either
            raise self._writer.failure
        return await self._readers.run(
            lambda changes: work(PostgresTransaction(changes, self._stamp(), self._policies))
        )

    def _search_read(self, work: Callable[[Transaction], T]) -> T:
        if self._writer.failure is not None:
            raise self._writer.failure
        return self._search_readers.run_here(
            lambda changes: work(PostgresTransaction(changes, self._stamp(), self._policies))
        )

    def _check_open(self) -> None:
        if self._forked:
            raise StoreClosed(
                "this store was opened before the process forked; open it again in the child "
                "(connections to PostgreSQL do not survive a fork)"
            )
        if self._closed:
            raise StoreClosed("the store is closed")

    def _committed(self) -> None:
        self._watch.notice()
        self._indexer.notice()

    def start_indexing(self) -> None:
        """Start the indexer thread, which keeps the search index up to date."""
        self._indexer.start()

    # --- waiting and maintenance ------------------------------------------------------------------------

    def version(self) -> int:
        self._check_open()
        return self._watch.version()

    async def changed(self, since: int, timeout: float) -> bool:
        self._check_open()
        return await self._watch.changed(since, timeout)

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        self._check_open()
        raise BadInput(
            "a PostgreSQL store is backed up by PostgreSQL's own tools, while everything goes on: "
            f"pg_dump --format=custom --schema={self._address.schema} --file={target} "
            f"{self.location.partition('?')[0]}, and pg_restore brings it back; nothing was written"
        )

    def invariants(self) -> Sequence[str]:
        return [*checks.INVARIANTS.values(), SEARCH_INVARIANT]

    async def check(self, progress: Progress | None = None) -> list[Finding]:
        whole, show = len(self.invariants()), progress or no_progress
        findings = await self._read(lambda tx: checks.check(tx, lambda done: show(done, whole)))
        unknown = await self._read(lambda tx: tx.all(Q.messages_unknown_to_search))
        if unknown:
            examples = [str(row[0]) for row in unknown[:5]]
            findings.append(Finding(SEARCH_INVARIANT, len(unknown), examples, repairable=True))
        return findings

    async def repair(self) -> list[str]:
        """Rebuild derived data: the search index and sizes."""

        def anew(tx: Transaction) -> int:
            tx.run(Q.empty_index)
            tx.run(Q.index_anew)
            row = tx.one(Q.unindexed_total)
            return int(row[0]) if row else 0

        mended = await self._write(checks.repair_sizes)
        number = await self._write(anew)
        await asyncio.to_thread(self._catch_up)
        return [*mended, f"made the search index anew, over {number} messages"]


_open_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_kept_in_child: list[PostgresStore] = []


def _after_fork_in_child() -> None:
    """A forked child has none of the threads and must not use, close or collect the connections."""
    for store in list(_open_stores):
        store._forked = True
        store._line.close_in_child()
        _kept_in_child.append(store)


os.register_at_fork(after_in_child=_after_fork_in_child)


async def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    patience: float = PATIENCE_SECONDS,
    policies: ResetPolicies = NO_RESETS,
    flushing: FlushRules | None = None,
    quotas: Quotas = UNLIMITED,
    moving: bool = False,
) -> PostgresStore:
    """Open (or create) the store in this database. Raises StoreUnusable, having changed nothing, if it
    cannot; also for an incompletely copied store, unless `moving` (to finish the copy)."""
    return await asyncio.to_thread(
        PostgresStore,
        url,
        clock=clock,
        patience=patience,
        policies=policies,
        flushing=flushing,
        quotas=quotas,
        moving=moving,
    )
