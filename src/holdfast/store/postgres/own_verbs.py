"""Methods that PostgreSQL implements its own way: node locks, appending, search, figures."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import psycopg

from ...domain.messages import NewMessage
from ...domain.nodes import Liveness, Node
from ...domain.turns import Lease
from ...errors import SearchFailed
from .. import nodes as node_writes
from .. import reads
from ..base import Figures, Found
from ..search_terms import CATCH_UP_SECONDS, Deadline
from ..search_threads import SearchThreads
from ..transaction import Q, Transaction
from ..verbs.base import Verbs
from . import locks, search
from .locks import AdvisoryNodeLocks
from .search import Indexer
from .writer import PostgresWriter

T = TypeVar("T")


class PostgresOwnVerbs(Verbs):
    _locks: AdvisoryNodeLocks
    _writer: PostgresWriter
    _indexer: Indexer
    _searches: SearchThreads

    @abstractmethod
    def _search_read(self, work: Callable[[Transaction], T]) -> T:
        """Blocking, on a search thread: read from one snapshot, on that thread's own connection."""

    # --- turns ------------------------------------------------------------------------------------------

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        """All waiting appends are executed together, of all conversations."""
        self._check_open()
        return await self._writer.append(lease, messages)

    # --- nodes ------------------------------------------------------------------------------------------

    async def join(self, node: Node, *, replaces: str | None = None) -> None:
        self._check_open()
        await self._locks.hold(node.id)
        try:
            await self._write(lambda tx: node_writes.join(tx, node))
        except BaseException:
            self._locks.let_go(node.id)
            raise
        if replaces is not None:
            self._locks.let_go(replaces)

    async def leave(self, node_id: str, reason: str) -> None:
        await self._write(lambda tx: node_writes.leave(tx, node_id, reason))
        self._locks.let_go(node_id)

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        self._check_open()
        return await self._locks.probe(nodes)

    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        by_lock = self._locks.found_free(node_id)

        def work(tx: Transaction) -> bool:
            if by_lock and not locks.claim(tx, node_id):
                return False
            return node_writes.reap(tx, node_id, seen_beat, why)

        return await self._write(work)

    # --- finding ----------------------------------------------------------------------------------------

    async def search(
        self, owner: str | None, words: str, *, conversation_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        self._check_open()

        def look(deadline: Deadline) -> list[Found]:
            behind = self._search_read(search.tail)
            if behind > search.LONGEST_TAIL:
                self._catch_up(time.monotonic() + CATCH_UP_SECONDS)
                behind = self._search_read(search.tail)
                deadline = Deadline(owner)  # the wait before does not count against the search
            if behind > search.LONGEST_TAIL:
                raise search.far_behind(behind, self.location)
            return self._search_read(
                lambda tx: search.search(tx, owner, words, conversation_id, limit, deadline)
            )

        return await self._searches.run(owner, look)

    def _catch_up(self, until: float | None = None) -> None:
        """Index unindexed messages until then."""
        try:
            while self._indexer.index_once() and (until is None or time.monotonic() < until):
                pass
        except psycopg.Error as error:
            raise SearchFailed(f"the search index of {self.location} cannot be used now: {error}") from error

    async def figures(self) -> Figures:
        def read(tx: Transaction) -> Figures:
            row = tx.one(Q.unindexed_total)
            return reads.figures(tx, 0, int(row[0]) if row else None)

        return await self._read(read)
