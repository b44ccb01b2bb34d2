"""Methods that SQLite implements its own way: node locks, search, and file facts."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ...domain.nodes import Identity, Liveness, Node, proof_of_death
from ...errors import SearchFailed, StoreUnusable
from ...os_support import HIDDEN, identity, start_of
from .. import nodes as node_writes
from .. import reads
from ..base import Figures, Found
from ..reads import check_limit, snippet
from ..resolve import conversation_of
from ..rows import to_message
from ..search_terms import CATCH_UP_SECONDS, Deadline, terms_of
from ..search_threads import SearchThreads
from ..transaction import Q, Transaction
from ..verbs.base import Verbs
from .files import log_size
from .locks import FileNodeLocks
from .search import SearchIndex

T = TypeVar("T")


class SQLiteOwnVerbs(Verbs):
    _database: Path
    _locks: FileNodeLocks

    _searches: SearchThreads

    @abstractmethod
    def _index(self) -> SearchIndex: ...

    @abstractmethod
    def _search_read(self, work: Callable[[Transaction], T]) -> T:
        """Blocking, on a search thread: read from one snapshot, on that thread's own connection."""

    # --- nodes ------------------------------------------------------------------------------------------

    async def join(self, node: Node, *, replaces: str | None = None) -> None:
        self._check_open()
        try:
            self._locks.hold(node.id)
        except OSError as error:
            raise StoreUnusable(
                f"cannot make the node's lock file beside {self.location}: {error}"
            ) from error
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
        here = identity()
        return {node.id: self._judge(node, here) for node in nodes}

    def _judge(self, node: Node, here: Identity) -> tuple[Liveness, str]:
        lock_free = self._locks.is_free(node.id)
        start = start_of(node.identity.pid) if lock_free is None else None
        why = proof_of_death(
            node.identity,
            lock_free=lock_free,
            here=here,
            start_of_their_pid=start,
            one_machine=True,
            is_hidden=start == HIDDEN,
        )
        if why is not None:
            return Liveness.DEAD, why
        if lock_free is False:
            return Liveness.ALIVE, "it holds its lock"
        return Liveness.UNKNOWN, "its lock cannot be tested"

    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        reaped = await self._write(lambda tx: node_writes.reap(tx, node_id, seen_beat, why))
        if reaped:
            self._locks.remove(node_id)
        return reaped

    # --- finding ----------------------------------------------------------------------------------------

    async def search(
        self, owner: str | None, words: str, *, conversation_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        self._check_open()
        index = self._index()

        def look(deadline: Deadline) -> list[Found]:
            index.catch_up(time.monotonic() + CATCH_UP_SECONDS)
            if deadline.passed:
                deadline = Deadline(owner)  # the wait before does not count against the search
            return self._search_read(
                lambda tx: _search(tx, index, owner, words, conversation_id, limit, deadline)
            )

        return await self._searches.run(owner, look)

    async def figures(self) -> Figures:
        self._check_open()
        unindexed = await asyncio.to_thread(_unindexed, self._index())
        return await self._read(lambda tx: reads.figures(tx, log_size(self._database), unindexed))


def _search(
    tx: Transaction,
    index: SearchIndex,
    owner: str | None,
    words: str,
    conversation_id: str | None,
    limit: int,
    deadline: Deadline,
) -> list[Found]:
    """The index gives numbers; the rows decide whether they match and who may see them."""
    check_limit(limit)
    terms = terms_of(words)
    if conversation_id is not None:
        owner = conversation_of(tx, owner, conversation_id).owner
    owners = [owner] if owner is not None else [name for (name,) in tx.all(Q.owners)]
    asked = limit
    while True:
        numbers, more = index.search(terms, owners, conversation_id, asked, deadline)
        rows = [row for no in numbers if (row := tx.one(Q.found_message, no=no, owner=owner))]
        if len(rows) >= limit or not more:
            break
        asked *= 4  # deleted messages still in the index must not push out existing ones
    found = []
    for *columns, key, title in rows[:limit]:
        deadline.check()
        message = to_message(columns)
        found.append(Found(message, snippet(message, words), key, title))
    return found


def _unindexed(index: SearchIndex) -> int | None:
    """How many messages the search index lags; None if that cannot be read. Blocking."""
    try:
        return index.lag()
    except SearchFailed:
        return None
