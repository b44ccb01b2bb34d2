"""The writer thread: group commit.

Jobs that wait together share one `BEGIN IMMEDIATE … COMMIT` and one fsync. No caller gets a result before the
COMMIT has returned and the file is still the one we opened. A job that refuses (raises one of our errors
before changing a row) does not affect the group. On any other error the whole group is rolled back and its
jobs are retried one by one, so an error of one job affects only that job.

Limits: full and busy are reported to the callers and are transient; an I/O error, corruption or a replaced
file stops this writer, and every later call says so. The same holds if the thread itself ends by a
bug: waiting and later callers get StoreFailed.

Between groups the thread maintains the write-ahead log. Usually a passive checkpoint is enough: the log
starts over at the next commit that finds no reader in it. Where reads overlap all the time no commit does, so
a log past `RESTART_PAGES` is restarted under the write lock, with a bounded wait for running reads. After a
deletion the log is truncated the same way, because its old pages hold the deleted text.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from ...errors import HoldfastError, StoreBusy, StoreClosed, StoreFailed, StoreUpgraded
from ..writer import GroupWriter, ThreadResult, WriteJob
from .connections import PATIENCE_SECONDS, BusyDeadline, Patience
from .db_errors import translate
from .files import Inodes

log = logging.getLogger(__name__)

CHECKPOINT_PAGES = 2_000
RESTART_PAGES = 8_000
ALARM_BYTES = 256 * 1024 * 1024

RESTART_SECONDS = 0.25
"""How long writers may wait for the log to start over. Readers do not wait: they only finish their read."""

ERASE_SECONDS = 1.0
"""Delay between a deletion and the truncation of the log, so that several deletions share it."""
LONGEST_ERASE_SECONDS = 30.0

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]


class SQLiteJob(WriteJob[Work[Any]]):
    """One caller's write, and the future for its result."""

    __slots__ = ()


class SQLiteWriter(GroupWriter[SQLiteJob]):
    """Owns the writing connection. Call `submit` from any event loop, in any thread."""

    def __init__(
        self,
        connection: apsw.Connection,
        database: Path,
        schema: int,
        inodes: Inodes | None,
        on_commit: Callable[[], None],
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._database = database
        self._schema = schema
        self._inodes = inodes
        self._on_commit = on_commit
        self._patience = patience
        self._group: list[SQLiteJob] = []
        """The jobs that the thread is working on."""
        self._wal_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._restart_at = RESTART_PAGES
        self._wal_alarm = False
        self.erased = False
        """True: this writer has deleted something."""
        self._erase_pause = ERASE_SECONDS
        self._erase_at: float | None = None
        connection.set_wal_hook(self._note_wal)
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    # --- the callers' side -------------------------------------------------------------------------

    async def submit(self, work: Work[T]) -> T:
        """Run `work` inside the next group; returns when it is on disk."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._accept(SQLiteJob(work, loop, future))
        # A cancelled caller does not undo its write: it may already be on disk.
        return await future

    def submit_blocking(self, work: Work[T]) -> T:
        """The same for a thread without an event loop."""
        future: ThreadResult[T] = ThreadResult()
        self._accept(SQLiteJob(work, None, future))
        return future.result()

    def submit_later(self, work: Work[Any]) -> None:
        """The same without waiting, for bookkeeping that is simply repeated if it fails."""
        self._accept(SQLiteJob(work))

    def stop(self) -> None:
        """Finish accepted jobs, then close the connection."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def failure(self) -> HoldfastError | None:
        if self._failure is None and not self._stopping and not self._serves():
            self.fail(StoreFailed(f"{self._database}: the writing thread has ended; restart"))
        return self._failure

    def _serves(self) -> bool:
        """True: the thread still takes jobs."""
        return self._thread.is_alive()

    def erase(self) -> None:
        """After a deletion: truncate the log soon, at the latest when the store closes."""
        self.erased = True
        self.truncate_soon()

    def truncate_soon(self) -> None:
        """Truncate the log, as soon as no reader uses it."""
        with self._wake:
            if self._erase_at is None:
                self._erase_at = time.monotonic() + ERASE_SECONDS
                self._wake.notify()

    # --- the thread's side -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._serve_once():
                pass
        except BaseException as error:
            self._break(error)
        finally:
            self._end()

    def _serve_once(self) -> bool:
        """Wait for jobs or log maintenance, and do them. False: the thread is to end."""
        group = self._group = self._next_group()
        if group:
            try:
                with self._writing:
                    self._commit(group)
            except BaseException as error:  # a bug must not leave callers waiting forever
                self._break(error)
                for job in group:
                    job.error = self._failure
            self._tell(group)
            self._group = []
        elif self._stopping:
            return False
        with self._writing:
            self._checkpoint()
        return True

    def _next_group(self) -> list[SQLiteJob]:
        with self._wake:
            while not self._queue and not self._stopping:
                left = None if self._erase_at is None else self._erase_at - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._wake.wait(left)
            return self._take_group()

    def _break(self, error: BaseException) -> None:
        self.fail(
            StoreFailed(f"{self._database}: the writer broke ({type(error).__name__}: {error}); restart")
        )

    def _end(self) -> None:
        """The thread ends: answer every remaining job, then close the connection."""
        with self._wake:
            left = [*self._group, *self._queue]
            self._group = []
            self._queue.clear()
            if self._failure is None and not self._stopping:
                self.fail(StoreFailed(f"{self._database}: the writing thread has ended; restart"))
        for job in left:
            job.error = self._failure or StoreClosed("the store is closed")
        self._answer(left)
        if self.erased and self._erase_at is not None and self._failure is None:
            self._erase()
        self._connection.close()

    def _commit(self, group: list[SQLiteJob]) -> None:
        """Run a group in one transaction; afterwards every job has its result or its error."""
        if self._failure is None and self._try(group):
            return
        for job in group:
            job.result, job.error = None, None
            if self._failure is not None:
                job.error = self._failure
            elif len(group) > 1:
                self._try([job])
            if job.error is None and self._failure is not None:
                job.error = self._failure

    def _try(self, group: list[SQLiteJob]) -> bool:
        """One transaction over `group`. False: nothing was kept, run its jobs alone.

        A group of one always gets its result here.
        """
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute("PRAGMA user_version").get
            if found != self._schema:
                raise StoreUpgraded(int(str(found)), self._schema)
            for job in group:
                before = connection.total_changes()
                try:
                    job.result = job.work(connection)
                except HoldfastError as refusal:
                    if connection.total_changes() != before or not connection.in_transaction:
                        raise
                    job.error = refusal
            connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back()
            return self._judge(group, error)
        try:
            if self._inodes is not None:
                self._inodes.verify()
        except StoreFailed as failure:
            self.fail(failure)
            for job in group:
                job.error = failure
        return True

    def _judge(self, group: list[SQLiteJob], error: BaseException) -> bool:
        """Decide what to do after a rollback. True: every job has its error."""
        if isinstance(error, apsw.Error):
            error = translate(error, str(self._database), self._connection.system_errno)
        if isinstance(error, StoreFailed | StoreUpgraded):
            self.fail(error)
        elif len(group) > 1 and not isinstance(error, StoreBusy):
            return False
        for job in group:
            job.result, job.error = None, error
        return True

    def _roll_back(self) -> None:
        """Roll back, unless SQLite has already ended the transaction by itself."""
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except apsw.Error as error:
                # Whatever the cause: a transaction that can be neither committed nor rolled back is fatal.
                self.fail(StoreFailed(f"{self._database} cannot roll back ({error}); restart"))

    def _tell(self, group: list[SQLiteJob]) -> None:
        """Answer the callers, then notify commit subscribers. Subscribers' errors must not stop the writer,
        because the commit is already done."""
        self._answer(group)
        try:
            self._on_commit()
        except Exception:
            log.exception("%s: a commit listener failed; writing continues", self._database)

    # --- the write-ahead log -----------------------------------------------------------------------

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:  # the log has started over
            self._checkpoint_at = CHECKPOINT_PAGES
            self._restart_at = RESTART_PAGES
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Checkpoint the log into the file between two groups, so that it can start over."""
        if self._failure is not None:
            self._erase_at = None
            return
        if self._erase_at is not None and time.monotonic() >= self._erase_at:
            self._erase()
        elif self._wal_pages >= self._restart_at:
            self._restart()
        elif self._wal_pages >= self._checkpoint_at:
            moved = self._move(apsw.SQLITE_CHECKPOINT_PASSIVE)
            if moved is not None:
                self._checkpoint_at = self._wal_pages + CHECKPOINT_PAGES
                self._alarm(*moved)

    def _restart(self) -> None:
        """Make the log start over although reads overlap without a gap."""
        large = self._wal_pages * 4096 > ALARM_BYTES
        mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if large else apsw.SQLITE_CHECKPOINT_RESTART
        if self._move(mode, RESTART_SECONDS) is None:
            # A long read blocks it. Each try makes writers wait, so the next one is at twice the size.
            self._restart_at = max(self._restart_at, self._wal_pages) * 2
            moved = self._move(apsw.SQLITE_CHECKPOINT_PASSIVE)
            if moved is not None:
                self._alarm(*moved)
            return
        self._started_over()

    def _erase(self) -> None:
        """Truncate the log: its old pages hold deleted text. Retried later if a reader uses them."""
        if self._move(apsw.SQLITE_CHECKPOINT_TRUNCATE, RESTART_SECONDS) is None:
            self._erase_at = time.monotonic() + self._erase_pause
            self._erase_pause = min(self._erase_pause * 2, LONGEST_ERASE_SECONDS)
            return
        self._erase_at = None
        self._erase_pause = ERASE_SECONDS
        self._started_over()

    def _started_over(self) -> None:
        self._wal_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._restart_at = RESTART_PAGES
        self._wal_alarm = False

    def _move(self, mode: int, wait: float | None = None) -> tuple[int, int] | None:
        """Run a checkpoint; returns the log's number of pages and how many were moved. None: busy for longer
        than `wait`."""
        try:
            if wait is not None:
                self._connection.set_busy_handler(BusyDeadline(wait))
            return self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            return None
        except apsw.Error as error:
            trouble = translate(error, str(self._database), self._connection.system_errno)
            if isinstance(trouble, StoreFailed):
                self.fail(trouble)
            return None
        finally:
            if wait is not None:
                self._connection.set_busy_handler(Patience(self._patience))

    def _alarm(self, size: int, done: int) -> None:
        too_long = size * 4096 > ALARM_BYTES and done < size
        if too_long and not self._wal_alarm:
            log.warning(
                "the write-ahead log of %s has grown to %d MB because a reader holds it back; "
                "find the long-running read (a backup, a shell) of this file",
                self._database,
                size * 4096 // 1_000_000,
            )
        self._wal_alarm = too_long
