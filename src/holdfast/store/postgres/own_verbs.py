"""The verbs that PostgreSQL has its own way to: node locks, appending, search, figures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import psycopg

from ...domain.leases import Lease
from ...domain.messages import NewMessage
from ...domain.nodes import Liveness, Node
from ...errors import SearchFailed
from ..base import Figures, Found
from ..transactions import node_writes, overviews
from ..transactions.transaction import Q, Transaction
from ..transactions.verbs.base import Verbs
from . import locks, search
from .locks import NodeLocks
from .search import Indexer
from .writer import Writer


class OwnVerbs(Verbs):
    _locks: NodeLocks
    _writer: Writer
    _indexer: Indexer

    # --- turns ------------------------------------------------------------------------------------------

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        """All appends that wait together are carried out together, whosever they are."""
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
        if await self._read(search.tail) > search.LONGEST_TAIL:
            await asyncio.to_thread(self._catch_up)
        return await self._read(lambda tx: search.search(tx, owner, words, conversation_id, limit))

    def _catch_up(self) -> None:
        """Index what is not indexed yet, as far as a search may wait for it."""
        until = time.monotonic() + search.LONGEST_WAIT_SECONDS
        try:
            while self._indexer.index_once() and time.monotonic() < until:
                pass
        except psycopg.Error as error:
            raise SearchFailed(f"the search index of {self.location} cannot be used now: {error}") from error

    async def figures(self) -> Figures:
        def read(tx: Transaction) -> Figures:
            row = tx.one(Q.unindexed_total)
            return overviews.figures(tx, 0, int(row[0]) if row else None)

        return await self._read(read)
