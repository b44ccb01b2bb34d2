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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg

from ...domain.flushes import FlushRules
from ...domain.maintenance import Progress, no_progress
from ...domain.messages import NewMessage
from ...domain.quotas import UNLIMITED, Quotas
from ...domain.resets import ResetPolicies
from ...domain.turns import Lease
from ...errors import BadInput, SearchFailed
from .. import checkpoints, items, maintenance, nodes, session_messages, turns
from ..engine import opened, opened_in_thread
from ..rows import to_stamp, to_time
from ..search_terms import CATCH_UP_SECONDS, Deadline
from ..store import Store
from ..transaction import NO_RESETS, Q, Transaction
from ..values import Figures, Finding, FoundPage, HitRange, SearchFilter
from . import locks, search
from .connections import ANSWER_SECONDS, DatabaseAddress, check_arrived, connect, open_connection
from .db_errors import cannot_open
from .foresight import (
    foreseen_begin,
    foreseen_by_id,
    foreseen_by_key,
    foreseen_commit,
    foreseen_with_items,
)
from .listen_connection import ListenConnection
from .locks import AdvisoryNodeLocks
from .migrations import migrate, newest
from .pipeline import Connection, Pipeline
from .readers import PostgresReaders
from .search import Indexer
from .statements import statement
from .transaction import Batch, Changes, PostgresTransaction
from .watch import NotifyChangeWatch
from .writer import Foresight, PostgresWriter

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_SECONDS = 30.0
SEARCH_INVARIANT = "the search index holds every message, or lists those it lacks"

Clock = Callable[[], datetime]

_FORESEEN: Mapping[Callable[..., Any], Callable[..., list[Batch]]] = {
    turns.begin: foreseen_begin,
    turns.commit_reply: foreseen_commit,
    session_messages.append: foreseen_by_id,
    items.append_with_items: foreseen_with_items,
    checkpoints.put: foreseen_by_key,
    checkpoints.put_writes: foreseen_by_key,
}


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


class PostgresStore(Store):
    """One open store. Made by `open_store`."""

    _lost_in_a_fork = "connections to PostgreSQL"

    _writer: PostgresWriter
    _readers: PostgresReaders
    _search_readers: PostgresReaders
    _watch: NotifyChangeWatch
    _locks: AdvisoryNodeLocks

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
        super().__init__(policies, flushing, quotas)
        self._clock = clock
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
        self._line = ListenConnection(self._connect, self.location)
        self._watch = NotifyChangeWatch(self._line)
        self._locks = AdvisoryNodeLocks(self._line, self._watch.notice)
        self._indexer = Indexer(self._dial)
        self._writer = PostgresWriter(
            self._dial, self.location, newest(), patience, self._watch.tag, self._committed, self._told_time
        )
        self._readers = PostgresReaders(
            self._dial, self._begin_read, self.location, patience, self._writer.fail
        )
        self._search_readers = PostgresReaders(
            self._dial, self._begin_read, self.location, patience, self._writer.fail
        )
        opened(self)

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

    def _job(
        self,
        told: list[str],
        work: Callable[Concatenate[Transaction, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Any, ...]:
        def run(changes: Changes, now: int) -> Any:
            told.clear()  # the function may be run again, if its group failed
            tx = PostgresTransaction(
                changes, now, self._policies, told, self._flushing, self._quotas, writes=True
            )
            return work(tx, *args, **kwargs)

        return run, self._foresight(work, *args, **kwargs)

    def _foresight(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Foresight | None:
        """For functions in `_FORESEEN`: a function that returns what they will ask first."""
        foresee = _FORESEEN.get(work)
        if foresee is None:
            return None

        def transaction(changes: Changes, now: int) -> PostgresTransaction:
            return PostgresTransaction(
                changes, now, self._policies, None, self._flushing, self._quotas, writes=True
            )

        return lambda now: foresee(transaction, now, *args, **kwargs)

    def _begin_read(self, changes: Changes) -> Transaction:
        return PostgresTransaction(changes, self._stamp(), self._policies)

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        """See `turns.append`. All waiting appends are executed together, of all conversations."""
        self._check_open()
        return await self._writer.append(lease, messages)

    def _close_in_child(self) -> None:
        self._line.close_in_child()

    def _committed(self) -> None:
        self._watch.notice()
        self._indexer.notice()

    def start_indexing(self) -> None:
        self._indexer.start()

    def _find(
        self, owner: str | None, words: str, wanted: SearchFilter, hits: HitRange, deadline: Deadline
    ) -> FoundPage:
        behind = self._search_read(search.tail, owner)
        if behind > search.LONGEST_TAIL:
            self._catch_up(time.monotonic() + CATCH_UP_SECONDS)
            behind = self._search_read(search.tail, owner)
            deadline = Deadline(owner)  # the wait before does not count against the search
        if behind > search.LONGEST_TAIL:
            raise search.far_behind(behind, self.location)
        return self._search_read(search.search, owner, words, wanted, hits, deadline)

    def _catch_up(self, until: float | None = None) -> None:
        """Index unindexed messages until then."""
        try:
            while self._indexer.index_once() and (until is None or time.monotonic() < until):
                pass
        except psycopg.Error as error:
            raise SearchFailed(f"the search index of {self.location} cannot be used now: {error}") from error

    # --- nodes ------------------------------------------------------------------------------------------

    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        by_lock = self._locks.found_free(node_id)

        def work(tx: Transaction) -> bool:
            if by_lock and not locks.claim(tx, node_id):
                return False
            return nodes.reap(tx, node_id, seen_beat, why)

        return await self._write(work)

    # --- the whole store --------------------------------------------------------------------------------

    async def figures(self) -> Figures:
        def read(tx: Transaction) -> Figures:
            row = tx.one(Q.unindexed_total)
            return maintenance.figures(tx, 0, None, int(row[0]) if row else None)

        return await self._read(read)

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        self._check_open()
        raise BadInput(
            "a PostgreSQL store is backed up by PostgreSQL's own tools, while it is in use: "
            f"pg_dump --format=custom --schema={self._address.schema} --file={target} "
            f"{self.location.partition('?')[0]}, and pg_restore brings it back; nothing was written"
        )

    def invariants(self) -> Sequence[str]:
        return [*maintenance.INVARIANTS.values(), SEARCH_INVARIANT]

    async def check(self, progress: Progress | None = None) -> list[Finding]:
        whole, show = len(self.invariants()), progress or no_progress
        findings = await self._read(maintenance.check, lambda done: show(done, whole))
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

        mended = await self._write(maintenance.repair_sizes)
        number = await self._write(anew)
        await asyncio.to_thread(self._catch_up)
        return [*mended, f"rebuilt the search index over {number} messages"]


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
    return await opened_in_thread(
        PostgresStore,
        url,
        clock=clock,
        patience=patience,
        policies=policies,
        flushing=flushing,
        quotas=quotas,
        moving=moving,
    )
