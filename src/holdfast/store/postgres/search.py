"""Full-text search over messages, by an index that is updated shortly after each write.

Indexing inside the commit would cost as much as the rest of an append. So a message is written with a row
in `unindexed`, and a thread of any node exchanges such rows for index rows, one batch per transaction. A
search reads both, in one snapshot: no committed message is ever missing, and none is found twice. A deletion
removes its index rows in the same transaction; it waits for a node that is indexing them at that moment.

Limits: words match without case and accents, by prefix (`data` finds `database`); the content of messages is
searched, the arguments of tool calls are not. The newest come first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import psycopg

from ...errors import SearchFailed, SearchTimeout, StoreError
from ...os_support import LazyThread
from ..messages import snippet
from ..resolve import conversation_of
from ..rows import Row, to_message, to_stamp_or_none
from ..search_terms import (
    Deadline,
    Term,
    holds,
    lexeme_of_conversation,
    lexeme_of_owner,
    lexemes_of,
    terms_of,
    text_of,
    tsquery_of,
)
from ..transaction import Q, Transaction
from ..values import Found, FoundPage, HitRange, SearchFilter
from .pipeline import Pipeline
from .statements import BEGIN, COMMIT, statement

log = logging.getLogger(__name__)

BATCH = 500
PAGE = 500
PAUSE_SECONDS = 0.2
RESTS_FOR = 9
"""Pause after a batch, as a multiple of its duration, while other threads write."""
LOOK_SECONDS = 5.0
LONGEST_TAIL = 1_000
END_OF_TIME = 2**62


class Indexer:
    """Indexes from a thread. Several nodes may do so at once: each takes rows that the others have not
    locked."""

    def __init__(self, connect: Callable[[], Pipeline]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._wire: Pipeline | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._wanted = False
        self._thread = LazyThread(self._run, "holdfast-search")

    def start(self) -> None:
        self._wanted = True
        self.notice()

    def notice(self) -> None:
        """Wake the thread: something was committed."""
        if self._wanted:
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        with self._lock:
            if self._wire is not None:
                self._wire.close()

    def _run(self) -> None:
        quiet = False
        while not self._stopping.is_set():
            self._wake.wait(LOOK_SECONDS)  # timeout: also for rows left by a dead node
            self._wake.clear()
            # Searches meanwhile read unindexed rows too; batches reduce the server's load.
            if self._stopping.wait(PAUSE_SECONDS):
                return
            try:
                while self._index_and_rest():
                    pass
                quiet = False
            except Exception as error:  # no failure may end the thread: the index would silently stop
                if not quiet:
                    expected = isinstance(error, psycopg.Error | StoreError)
                    log.warning(
                        "the search index cannot follow now (%s); it will catch up",
                        error, exc_info=None if expected else error,
                    )  # fmt: skip
                quiet = True

    def _index_and_rest(self) -> bool:
        """Index one batch; True: there is more. Words are extracted in this process, so while others write
        they get most of its time, and the index lags for a while."""
        began = time.monotonic()
        more = self.index_once() == BATCH
        if more and self._wake.is_set():
            self._wake.clear()
            self._stopping.wait(RESTS_FOR * (time.monotonic() - began))
        return more and not self._stopping.is_set()

    def index_once(self) -> int:
        """Index one batch of unindexed messages; returns its size."""
        with self._lock:
            if self._wire is None or self._wire.lost:
                self._wire = self._connect()
            wire = self._wire
            try:
                return _index(wire)
            except BaseException:
                if not wire.lost:
                    wire.roll_back()
                raise


def _index(wire: Pipeline) -> int:
    waiting = wire.exchange(
        [
            (BEGIN, {}),
            (statement(Q.lazily), {}),
            (statement(Q.take_unindexed), {"limit": BATCH}),
        ]
    )[-1].rows()
    if not waiting:
        wire.commit()
        return 0
    # A separate statement: messages deleted before we locked their rows must not be read.
    keys = {"conversations": [row[1] for row in waiting], "seqs": [row[2] for row in waiting]}
    rows = wire.ask(statement(Q.texts_to_index), **keys)
    columns: dict[str, list[Any]] = {"nos": [], "conversations": [], "seqs": [], "wholes": [], "texts": []}
    for no, conversation, seq, owner, body in rows:
        words = lexemes_of(text_of(body), owner)
        scopes = {lexeme_of_owner(owner), lexeme_of_conversation(conversation)}
        values = (no, conversation, seq, words is not None, " ".join(sorted(scopes | (words or set()))))
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    wire.exchange([(statement(Q.insert_indexed), columns), (COMMIT, {})])
    return len(waiting)


def tail(tx: Transaction, owner: str | None) -> int:
    """Number of unindexed messages, counted up to a limit. If all owners have too many: those of this one,
    because a tenant that adds messages faster than they are indexed must not end the searches of others."""
    row = tx.one(Q.unindexed_tail, limit=LONGEST_TAIL + 1)
    if row and row[0] > LONGEST_TAIL and owner is not None:
        row = tx.one(Q.unindexed_tail_of, owner=owner, limit=LONGEST_TAIL + 1)
    return int(row[0]) if row else 0


def search(
    tx: Transaction,
    owner: str | None,
    words: str,
    wanted: SearchFilter,
    hits: HitRange,
    deadline: Deadline,
) -> FoundPage:
    """The index gives candidates; the rows decide whether they match and who may see them."""
    terms = terms_of(words)
    try:
        tx.one(Q.search_deadline, timeout=f"{max(1, int(deadline.left * 1000))}")
        if wanted.conversation_id is not None:
            owner = conversation_of(tx, owner, wanted.conversation_id).owner
        return _IndexSearch(tx, terms, words, wanted, hits, deadline).page_of(owner)
    except psycopg.errors.QueryCanceled as error:
        raise SearchTimeout(deadline.seconds) from error


Hit = tuple[int, Found]
"""A message's number, and the message as a hit, without its snippet."""


class _IndexSearch:
    """One search, in one snapshot."""

    def __init__(
        self,
        tx: Transaction,
        terms: list[Term],
        words: str,
        wanted: SearchFilter,
        hits: HitRange,
        deadline: Deadline,
    ) -> None:
        self._tx = tx
        self._terms = terms
        self._words = words
        self._conversation = wanted.conversation_id
        self._wanted = {
            "role": wanted.role,
            "source": wanted.source,
            "since": to_stamp_or_none(wanted.since),
        }
        self._hits = hits
        self._deadline = deadline

    def page_of(self, owner: str | None) -> FoundPage:
        """The hits of an owner; None: of every owner, one after the other. Unindexed ones first."""
        skip, needed = self._hits.skip, self._hits.needed
        found: list[Found] = []
        number = 0
        for hit in islice(self._all_of(owner), needed):
            if skip <= number < skip + self._hits.limit:
                found.append(replace(hit, snippet=snippet(hit.message, self._words)))
            number += 1
        return FoundPage(found, min(number, self._hits.count), number > self._hits.count)

    def _all_of(self, owner: str | None) -> Iterator[Found]:
        yield from self._unindexed(owner)
        if owner is not None:
            yield from (hit for _, hit in self._indexed(owner))
            return
        hits: list[Hit] = []
        for (name,) in self._tx.all(Q.owners):
            self._deadline.check()
            hits += islice(self._indexed(name), self._hits.needed)
        hits.sort(key=lambda hit: hit[0], reverse=True)
        yield from (hit for _, hit in hits)

    def _unindexed(self, owner: str | None) -> Iterator[Found]:
        scope = {"owner": owner, "conversation": self._conversation, **self._wanted}
        below = END_OF_TIME
        waiting = Q.unindexed_messages if owner is None else Q.unindexed_of_owner
        while rows := self._tx.all(waiting, below=below, limit=PAGE, **scope):
            yield from (hit for _, hit in self._judged(rows))
            below = rows[-1][0]

    def _indexed(self, owner: str) -> Iterator[Hit]:
        query = tsquery_of(self._terms, owner, self._conversation)
        whose = lexeme_of_conversation(self._conversation) if self._conversation else lexeme_of_owner(owner)
        below, asked_for = END_OF_TIME, min(self._hits.needed, PAGE)
        while True:
            rows = self._tx.all(
                Q.indexed_messages,
                query=query,
                scope=f"'{whose}'",
                below=below,
                owner=owner,
                limit=asked_for,
                **self._wanted,
            )
            yield from self._judged(rows)
            if len(rows) < asked_for:
                return
            below, asked_for = rows[-1][0], asked_for * 4

    def _judged(self, rows: Sequence[Row]) -> Iterator[Hit]:
        """Those of these messages whose text contains the words; not the rows without a message."""
        for no, exists, *columns, key, title in rows:
            self._deadline.check()
            if exists is None:
                continue
            message = to_message(columns)
            if holds(text_of(message.body), self._terms):
                yield no, Found(message, "", key, title)


def far_behind(count: int, location: str) -> SearchFailed:
    """The error for a search when too many messages are unindexed to scan them."""
    return SearchFailed(
        f"the search index of {location} lacks at least {count} messages; it catches up while a server runs, "
        "`holdfast doctor --repair` does it at once. Try again later"
    )
