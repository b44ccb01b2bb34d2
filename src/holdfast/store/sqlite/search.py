"""Full-text search over messages: an index in its own file beside the database.

Indexing inside the commit would cap appends at a quarter of their speed, so the index follows shortly after
by a cursor (the number of the last indexed message). It is derived, rebuildable, and never the source of
truth: a hit is only a number, and the message is read from the database, with its owner. A search also scans
the messages after the cursor, with the same rules, so no committed message is ever missing from a result.
Deleted text is removed through rows that the deletion itself wrote.

Deleting a row of the index only hides it: its words stay in the file until the segments that hold them are
merged. So a deletion is followed by an incremental merge of the whole index, in small steps, and by a
truncation of the index's own log. The pending merge is recorded in the index with the deletion itself: after
a crash the next start continues it. After a long merge the next one waits, so that merging never takes more
than a twentieth of the time.

Words are stored with a prefix for their owner (`search_terms`): a search reads its owner's part of the index.
Each searching thread has its own connection, so it waits for neither the indexer nor other searches.

Limits: words match without case and accents, by prefix (`data` finds `database`); the content of messages is
searched, the arguments of tool calls are not.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from ...errors import SearchFailed, SearchTimeout, StoreError
from ...os_support import LazyThread, exists, private_umask
from ..messages import snippet
from ..resolve import conversation_of
from ..rows import to_message, to_stamp_or_none
from ..search_terms import Deadline, Term, holds, mark_of, marked, terms_of
from ..transaction import Q, Transaction
from ..values import Found, FoundPage, HitRange, SearchFilter
from .connections import PATIENCE_SECONDS, BusyDeadline, Patience

log = logging.getLogger(__name__)

BATCH = 200
PAUSE_SECONDS = 0.2
LONGEST_TAIL = 2_000
YIELD = 9.0
"""How long the indexer pauses between two batches while messages are committed, by what a batch took."""
MERGE_PAGES = 64
MERGE_SHARE = 20
STOP_SECONDS = 5.0
"""How long closing may continue a merge; the next start does the rest."""
TRUNCATE_SECONDS = 0.25
RETRY_SECONDS = 1.0

# The text of a message: its content, or the text parts of it. A body that SQLite does not accept as JSON
# (nested too deeply) has no text, rather than stopping the index.
_TEXT = """
CASE iif(json_valid(CAST(body AS TEXT)), json_type(CAST(body AS TEXT), '$.content'), NULL)
    WHEN 'text' THEN CAST(body AS TEXT) ->> '$.content'
    WHEN 'array' THEN (SELECT group_concat(iif(part.type = 'text', part.value, part.value ->> '$.text'), ' ')
                       FROM json_each(CAST(body AS TEXT), '$.content') part
                       WHERE part.type = 'text'
                          OR (part.type = 'object' AND json_type(part.value, '$.text') = 'text'))
END
"""
# `ascii` splits nothing further: `search_terms` has already split the text.
_TABLE = "USING fts5(text, scope, content='', contentless_delete=1, tokenize='ascii', detail=full)"
VERSION = 2
"""Version of the index contents, as the file's user_version: an index of another version is rebuilt."""
_FILL = f"""
SELECT m.no, c.owner, c.id, {_TEXT}
FROM store.messages m JOIN store.conversations c ON c.id = m.conversation
WHERE m.deleted_at IS NULL
"""
_NEW = f"{_FILL} AND m.no > :after AND m.no <= :upto"
_SINGLE = f"{_FILL} AND m.no = :no"
_WANTED = """
AND (:role IS NULL OR m.role = :role) AND (:since IS NULL OR m.created_at >= :since)
AND (:source IS NULL OR EXISTS (SELECT 1 FROM store.sessions s WHERE s.id = m.session AND s.source = :source))
"""
_OF_ONE = f"""
AND (:owner IS NULL OR c.owner = :owner) AND (:conversation IS NULL OR c.id = :conversation) {_WANTED}
ORDER BY m.no DESC
"""
_TAILS = (
    f"{_FILL} AND m.no > :cursor AND m.no <= :newest {_OF_ONE}",
    f"{_FILL} AND m.no IN (SELECT no FROM store.unindexed) AND m.no <= :cursor {_OF_ONE}",
)
"""Messages that the index does not hold yet, or holds in an outdated form."""
_INSERT = "INSERT INTO words (rowid, text, scope) VALUES (?, ?, ?)"
_FIND = """
SELECT rank, rowid FROM words(:match)
WHERE rowid NOT IN (SELECT no FROM store.unindexed) ORDER BY rank LIMIT :limit
"""
# CROSS JOIN: the index first. The other way round, SQLite would ask it for every message.
_FIND_WANTED = f"""
SELECT words.rank, words.rowid FROM words(:match) CROSS JOIN store.messages m ON m.no = words.rowid
WHERE words.rowid NOT IN (SELECT no FROM store.unindexed) {_WANTED} ORDER BY words.rank LIMIT :limit
"""
STEPS = 10_000
"""SQLite VM instructions between two checks of the clock."""


def scope_of(conversation_id: str) -> str:
    """A conversation as one searchable word, whatever characters its id has."""
    return "s" + conversation_id.encode().hex()


def to_match(terms: Sequence[Term], owner: str, conversation_id: str | None) -> str:
    """An FTS5 query for this owner's messages that contain all of these terms."""
    mark = mark_of(owner)
    wanted = [
        f'text : "{" ".join(mark + token for token in term.tokens)}"' + (" *" if term.open else "")
        for term in terms
    ]
    scope = [] if conversation_id is None else [f"scope : {scope_of(conversation_id)}"]
    return " AND ".join([*scope, *wanted])


def _index_rows(connection: apsw.Connection, rows: Any) -> None:
    """Insert rows of `_FILL` into the index, one by one: a message may be large."""
    for no, owner, conversation, text in rows:
        connection.execute(_INSERT, (no, marked(text or "", owner), scope_of(conversation)))


# Pages that list deleted rows, one set for each segment of the index that holds some of their words (FTS5's
# rowids of such pages begin here). If there are none, no segment holds words of a deleted row.
_HIDDEN = f"SELECT count(*) FROM (SELECT 1 FROM main.words_data WHERE id >= {1 << 53} LIMIT 1)"


def _has(connection: apsw.Connection, table: str) -> bool:
    return bool(connection.execute("SELECT count(*) FROM main.sqlite_schema WHERE name = ?", (table,)).get)


def _start_over(connection: apsw.Connection) -> None:
    if _has(connection, "words"):  # its pages are overwritten, but stay in the log
        connection.execute("INSERT INTO leftovers DEFAULT VALUES")
    connection.execute("DROP TABLE IF EXISTS words")
    connection.execute(f"CREATE VIRTUAL TABLE words {_TABLE}")
    connection.execute("INSERT INTO words (words, rank) VALUES ('secure-delete', 1)")
    connection.execute("DELETE FROM cursor")
    connection.execute("INSERT INTO cursor (store, no) SELECT id, 0 FROM store.store")
    connection.execute(f"PRAGMA user_version = {VERSION}")


class _Handle:
    """A connection to the index file; reopened when another process has replaced the file."""

    def __init__(self) -> None:
        self._connection: apsw.Connection | None = None
        self._inode = 0

    def connection(self, path: Path, open_file: Callable[[], apsw.Connection]) -> apsw.Connection:
        if self._connection is not None and _inode(path) != self._inode:
            self.close()
        if self._connection is None:
            self._connection = open_file()
            self._inode = _inode(path)
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


class SearchIndex:
    """Indexes from its own thread; answers searches from any other."""

    def __init__(self, database: Path, forgotten: Callable[[Sequence[int]], None]) -> None:
        self._database = database
        self.path = database.with_name(f"{database.name}.search")
        self._forgotten = forgotten
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._mine = _Handle()
        """The indexer's connection, used under the lock."""
        self._local = threading.local()
        self._handles: list[_Handle] = []
        """Connections of the searching threads."""
        self._told: set[int] = set()
        """Rows of `unindexed` that are processed and being deleted."""
        self._merging: int | None = None
        """The newest of `leftovers` when the running merge began."""
        self._merged: int | None = None
        """The same for a finished merge, while the log still holds old pages."""
        self._merge_began = 0.0
        self._merge_earliest = 0.0
        self._merge_at: float | None = None
        """When to merge next; None: nothing is pending."""
        self._thread = LazyThread(self._run, "holdfast-search")
        self._thread.start()

    # --- indexing ----------------------------------------------------------------------------------

    def notice(self) -> None:
        """Wake the indexer: something was committed."""
        self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        try:
            self._forget_rest(time.monotonic() + STOP_SECONDS)
        except StoreError as error:
            log.warning("the search index %s may still hold deleted text (%s)", self.path, error)
        with self._lock:
            self._close()
            for handle in self._handles:
                handle.close()

    def _run(self) -> None:
        quiet = False
        while True:
            left = None if self._merge_at is None else max(0.0, self._merge_at - time.monotonic())
            self._wake.wait(left)
            # Searches meanwhile scan past the cursor too; batches reduce the writer's load.
            if self._stopping.wait(PAUSE_SECONDS):
                return
            self._wake.clear()
            if self._stopping.is_set():  # set just now: the wake-up was for that
                return
            try:
                self._follow()
                while self._merge_is_due() and not self._stopping.is_set() and self.merge_once():
                    self._stopping.wait(0.005)  # lets searches run between two steps
                quiet = False
            except Exception as error:  # the index is derived: no failure of it may end this thread
                if not quiet:
                    expected = isinstance(error, StoreError)
                    log.warning(
                        "the search index %s cannot follow now (%s); it will catch up",
                        self.path, error, exc_info=None if expected else error,
                    )  # fmt: skip
                quiet = True
                self._merge_at = None if self._merge_at is None else time.monotonic() + RETRY_SECONDS

    def _follow(self) -> None:
        """Index until nothing is left. While messages keep being committed, the indexer pauses between two
        batches: both need the interpreter, and the index may lag, but a commit's caller waits."""
        began = time.monotonic()
        while self.follow_once() and not self._stopping.is_set():
            if self._wake.is_set():
                self._wake.clear()
                self._stopping.wait((time.monotonic() - began) * YIELD)
            began = time.monotonic()

    def follow_once(self) -> bool:
        """Index one batch after the cursor, remove deleted text. False: nothing is left to do."""
        with self._opened() as connection:
            cursor, newest = self._where(connection)
            rows: list[Any] = connection.execute(
                "SELECT id, no FROM store.unindexed ORDER BY id LIMIT ?", (BATCH,)
            ).fetchall()
            asked = dict(rows)
            self._told &= asked.keys()
            forgetting = sorted(asked.keys() - self._told)
            if newest <= cursor and not forgetting:
                return False
            if forgetting:  # rows of `unindexed` are deleted durably: first this removal must be on disk
                connection.execute("PRAGMA main.synchronous = FULL")
            with connection:
                # The first statement takes this file's write lock, and only this file's: an immediate
                # transaction would take the database's too.
                connection.execute("UPDATE cursor SET no = no")
                cursor, newest = self._where(connection)  # another process may have indexed meanwhile
                upto = min(newest, cursor + BATCH)
                if cursor < upto:
                    _index_rows(connection, connection.execute(_NEW, {"after": cursor, "upto": upto}))
                    connection.execute("UPDATE cursor SET no = ?", (upto,))
                for no in {asked[row] for row in forgetting}:
                    connection.execute("DELETE FROM words WHERE rowid = ?", (no,))
                    if no <= upto:  # partly deleted messages have a rest to index
                        _index_rows(connection, connection.execute(_SINGLE, {"no": no}))
                if forgetting:
                    connection.execute("INSERT INTO leftovers DEFAULT VALUES")
            if forgetting:
                connection.execute("PRAGMA main.synchronous = NORMAL")
                self._merge_later()
        if forgetting:
            self._told.update(forgetting)
            self._forgotten(forgetting)
        return True

    # --- removing what was deleted from the file -----------------------------------------------------

    def _merge_later(self) -> None:
        if self._merge_at is None:
            self._merge_at = max(time.monotonic(), self._merge_earliest)

    def _merge_is_due(self) -> bool:
        return self._merge_at is not None and time.monotonic() >= self._merge_at

    def merge_once(self) -> bool:
        """One step of removing deleted text from the index's files. False: nothing more can be done now."""
        with self._opened() as connection:
            if self._merged is None:
                newest: Any = connection.execute("SELECT max(id) FROM leftovers").get
                if newest is None:
                    self._merging = self._merge_at = None
                    return False
                self._merge_step(connection, newest)
            if self._merged is None:
                return True
            return self._finish_merge(connection, self._merged)

    def _merge_step(self, connection: apsw.Connection, newest: int) -> None:
        begins = self._merging is None
        if begins:
            self._merging, self._merge_began = newest, time.monotonic()
        with connection:
            connection.execute("UPDATE cursor SET no = no")  # takes only this file's write lock
            before = connection.total_changes()
            # A negative number begins a merge of everything; positive ones continue it.
            pages = -MERGE_PAGES if begins else MERGE_PAGES
            connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?)", (pages,))
            # FTS5 reports fewer than two changes when nothing is left to merge.
            if connection.total_changes() - before >= 2:
                return
            merged, self._merging = self._merging, None
            if connection.execute(_HIDDEN).get:
                if not begins:
                    return  # a merge started earlier had not seen every deletion: merge again
                connection.execute("INSERT INTO words (words) VALUES ('optimize')")
            self._merged = merged

    def _finish_merge(self, connection: apsw.Connection, merged: int) -> bool:
        """Truncate the log, which still holds old pages: only then is the text gone."""
        connection.set_busy_handler(BusyDeadline(TRUNCATE_SECONDS))
        try:
            connection.wal_checkpoint("main", mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:  # another process is reading the index
            self._merge_at = time.monotonic() + RETRY_SECONDS
            return False
        finally:
            connection.set_busy_handler(Patience(PATIENCE_SECONDS))
        connection.execute("DELETE FROM leftovers WHERE id <= ?", (merged,))
        self._merged = self._merge_at = None
        now = time.monotonic()
        self._merge_earliest = now + (now - self._merge_began) * MERGE_SHARE
        if connection.execute("SELECT count(*) FROM leftovers").get:
            self._merge_later()
        return False

    def _forget_rest(self, until: float) -> None:
        """When the store closes: remove deleted text, as far as time allows."""
        if not self._mine.is_open and not exists(self.path):
            return
        while self._has_to_forget() and self.follow_once() and time.monotonic() < until:
            pass
        while time.monotonic() < until and self.merge_once():
            pass
        if self._merge_at is not None and time.monotonic() < until:
            self.merge_once()  # for deletions during the last merge

    def _has_to_forget(self) -> bool:
        with self._opened() as connection:
            rows: list[Any] = connection.execute("SELECT id FROM store.unindexed").fetchall()
        return bool({row[0] for row in rows} - self._told)

    def rebuild(self) -> int:
        """Rebuild the index; returns how many messages it covers."""
        try:
            with self._opened() as connection, connection:
                _start_over(connection)
        except SearchFailed:  # the file itself is damaged: it is derived, so it may be deleted
            with self._lock:
                self._close()
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        while self.follow_once():
            pass
        with self._opened() as connection:
            return self._where(connection)[0]

    def check(self) -> str | None:
        """What is wrong with the index, or None."""
        try:
            with self._opened() as connection:
                connection.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 0)")
        except SearchFailed as error:
            return str(error)
        return None

    def lag(self) -> int:
        """Number of messages after the cursor."""
        with self._opened() as connection:
            cursor, newest = self._where(connection)
        return newest - cursor

    # --- searching ---------------------------------------------------------------------------------

    def search(
        self,
        terms: Sequence[Term],
        owners: Sequence[str],
        wanted: SearchFilter,
        limit: int,
        deadline: Deadline,
    ) -> tuple[list[int], bool]:
        """Numbers of matching messages of these owners, unindexed ones first, then the best; and whether
        there may be more. May include messages deleted a moment ago; of partly deleted ones only the rest is
        searched. Raises SearchTimeout at the deadline."""
        with self._searching(deadline) as connection, connection:  # one snapshot for everything
            cursor, newest = self._where(connection)
            tail: list[int] = []
            by_row = {
                "role": wanted.role,
                "source": wanted.source,
                "since": to_stamp_or_none(wanted.since),
            }
            scope = {"owner": owners[0] if len(owners) == 1 else None, "conversation": wanted.conversation_id}
            for tails in _TAILS:
                rows: Any = connection.execute(tails, {"cursor": cursor, "newest": newest, **scope, **by_row})
                for no, _, _, text in rows:
                    deadline.check()
                    if holds(text or "", terms):
                        tail.append(no)
            known: list[tuple[float, int]] = []
            for owner in owners:
                deadline.check()
                asked = {"match": to_match(terms, owner, wanted.conversation_id), "limit": limit}
                if wanted.is_by_row:
                    known += connection.execute(_FIND_WANTED, {**asked, **by_row})
                else:
                    known += connection.execute(_FIND, asked)
        known.sort()
        more = len(tail) > limit or len(known) >= limit
        return [*tail[:limit], *(no for _, no in known[:limit])], more

    def catch_up(self, until: float) -> None:
        """Index until few messages are left. SearchFailed: not done by `until` on the monotonic clock."""
        while (behind := self.lag()) > LONGEST_TAIL:
            if time.monotonic() > until:
                raise SearchFailed(
                    f"the search index {self.path} lacks {behind} messages; it catches up while a server "
                    "runs, `holdfast doctor --repair` does it at once. Try again later"
                )
            if not self.follow_once():
                return

    # --- the file ----------------------------------------------------------------------------------

    def _where(self, connection: apsw.Connection) -> tuple[int, int]:
        """The cursor, and the number of the newest message."""
        row: Any = connection.execute(
            "SELECT (SELECT no FROM main.cursor), coalesce((SELECT seq FROM store.sqlite_sequence "
            "WHERE name = 'messages'), 0)"
        ).fetchone()
        return row[0], row[1]

    @contextmanager
    def _opened(self) -> Iterator[apsw.Connection]:
        """The indexer's connection, for one thread at a time."""
        with self._lock, self._translated():
            yield self._mine.connection(self.path, self._open_own)

    @contextmanager
    def _searching(self, deadline: Deadline) -> Iterator[apsw.Connection]:
        """This thread's own connection, on which every query ends at the deadline."""
        handle: _Handle | None = getattr(self._local, "handle", None)
        if handle is None:
            handle = self._local.handle = _Handle()
            with self._lock:
                self._handles.append(handle)
        with self._translated():
            connection = handle.connection(self.path, self._open_file)
            connection.set_progress_handler(lambda: deadline.passed, STEPS)
            try:
                yield connection
            except apsw.InterruptError as error:
                raise SearchTimeout(deadline.seconds) from error
            finally:
                connection.set_progress_handler(None)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors, so that index failures never become store failures."""
        try:
            yield
        except apsw.FullError as error:
            raise SearchFailed(f"the disk is full: the search index {self.path} cannot grow") from error
        except apsw.BusyError as error:
            raise SearchFailed(f"another process keeps the search index {self.path} locked") from error
        except apsw.Error as error:
            raise SearchFailed(
                f"the search index {self.path} cannot be used ({type(error).__name__}: {error}); "
                "`holdfast doctor --repair` rebuilds it"
            ) from error

    def _close(self) -> None:
        self._mine.close()

    def _open_file(self) -> apsw.Connection:
        with private_umask():
            connection = apsw.Connection(str(self.path))
            connection.set_busy_handler(Patience(PATIENCE_SECONDS))
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA user_version").fetchall()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("ATTACH ? AS store", (str(self._database),))
        with connection:
            connection.execute("CREATE TABLE IF NOT EXISTS cursor (store TEXT NOT NULL, no INTEGER NOT NULL)")
            (known,) = connection.execute(
                "SELECT count(*) FROM main.cursor, pragma_user_version AS version "
                "WHERE store = (SELECT id FROM store.store) AND version.user_version = ? AND no <= "
                "coalesce((SELECT seq FROM store.sqlite_sequence WHERE name = 'messages'), 0)",
                (VERSION,),
            ).fetchall()[0]
            if not _has(connection, "leftovers"):
                connection.execute("CREATE TABLE leftovers (id INTEGER PRIMARY KEY AUTOINCREMENT)")
                if _has(connection, "words"):  # written by a version that did not merge
                    connection.execute("INSERT INTO leftovers DEFAULT VALUES")
            if not known:  # new, another store's, or of a database restored from an older copy
                _start_over(connection)
        return connection

    def _open_own(self) -> apsw.Connection:
        """The indexer's connection: only it merges and recreates the file."""
        connection = self._open_file()
        self._merging = self._merged = None
        if connection.execute("SELECT count(*) FROM leftovers").get:
            self._merge_later()
        return connection


def search(
    tx: Transaction,
    index: SearchIndex,
    owner: str | None,
    words: str,
    wanted: SearchFilter,
    hits: HitRange,
    deadline: Deadline,
) -> FoundPage:
    """Messages that match: the index gives numbers, the rows decide whether they match and whose they are."""
    terms = terms_of(words)
    if wanted.conversation_id is not None:
        owner = conversation_of(tx, owner, wanted.conversation_id).owner
    owners = [owner] if owner is not None else [name for (name,) in tx.all(Q.owners)]
    asked = hits.needed
    while True:
        numbers, more = index.search(terms, owners, wanted, asked, deadline)
        existing = (
            row for no in numbers[hits.skip :] if (row := tx.one(Q.found_message, no=no, owner=owner))
        )
        rows = list(islice(existing, hits.limit))
        if len(rows) >= hits.limit or not more:
            break
        asked *= 4  # deleted messages still in the index must not push out existing ones
    found = []
    for *columns, key, title in rows:
        deadline.check()
        message = to_message(columns)
        found.append(Found(message, snippet(message, words), key, title))
    return FoundPage(found, min(len(numbers), hits.count), len(numbers) > hits.count)
