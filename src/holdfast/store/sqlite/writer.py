"""The one thread that writes: group commit.

Jobs that wait together share one `BEGIN IMMEDIATE … COMMIT` and one fsync. Nobody is told anything
before the COMMIT has returned and the file is still the one we opened. A job that refuses (raises
one of our errors before changing a row) leaves the group alone. On any other error the whole group
is rolled back and its members are run again one by one, so one bad job harms nobody.

Limits: full and busy are reported to the callers and pass; an I/O error, corruption or a replaced
file stops this writer for good, and every later call says so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from ...errors import Conflict, HoldfastError, StoreBusy, StoreClosed, StoreFailed, StoreUpgraded
from .faults import passes, translate
from .files import Inodes

log = logging.getLogger(__name__)

LARGEST_GROUP = 256
CHECKPOINT_PAGES = 2_000
ALARM_BYTES = 256 * 1024 * 1024

# One statement was wrong; the file is not to blame.
STATEMENT_ERRORS = (
    apsw.ConstraintError,
    apsw.SQLError,
    apsw.MismatchError,
    apsw.TooBigError,
    apsw.RangeError,
    apsw.BindingsError,
)

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]


class Job:
    """One caller's write, and where to tell how it went."""

    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(
        self,
        work: Work[Any],
        loop: asyncio.AbstractEventLoop | None = None,
        future: asyncio.Future[Any] | None = None,
    ) -> None:
        self.work = work
        self.loop = loop
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None


class Writer:
    """Owns the writing connection. `submit` from any event loop, in any thread."""

    def __init__(
        self,
        connection: apsw.Connection,
        database: Path,
        schema: int,
        inodes: Inodes | None,
        on_commit: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._database = database
        self._schema = schema
        self._inodes = inodes
        self._on_commit = on_commit
        self._queue: deque[Job] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._failure: HoldfastError | None = None
        self._wal_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        self._wal_alarm = False
        connection.set_wal_hook(self._note_wal)
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    # --- the callers' side -------------------------------------------------------------------------

    async def submit(self, work: Work[T]) -> T:
        """Run `work` inside the next group; returns when it is on disk."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._accept(Job(work, loop, future))
        # A caller that goes away (is cancelled) does not undo its write: it may be on disk already.
        return await future

    def submit_later(self, work: Work[Any]) -> None:
        """The same without waiting, for bookkeeping that is simply done again if it fails."""
        self._accept(Job(work))

    def _accept(self, job: Job) -> None:
        with self._wake:
            if self._failure is not None:
                raise self._failure
            if self._stopping:
                raise StoreClosed("the store is closed")
            self._queue.append(job)
            if len(self._queue) == 1:
                self._wake.notify()

    def stop(self) -> None:
        """Finish what was accepted, then close the connection."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def failure(self) -> HoldfastError | None:
        return self._failure

    # --- the thread's side -------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                group = [self._queue.popleft() for _ in range(min(len(self._queue), LARGEST_GROUP))]
            if not group:
                break
            try:
                self._commit(group)
            except BaseException as error:  # a defect of ours must not leave callers waiting for ever
                self.fail(
                    StoreFailed(f"{self._database}: the writer broke ({type(error).__name__}: {error})")
                )
                for job in group:
                    job.error = self._failure
            self._tell(group)
            self._checkpoint()
        self._connection.close()

    def _commit(self, group: list[Job]) -> None:
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

    def _try(self, group: list[Job]) -> bool:
        """One transaction over `group`. False: nothing of it was kept, run its members alone.

        A group of one always gets its answer here.
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

    def _judge(self, group: list[Job], error: BaseException) -> bool:
        """Decide what a rolled back group means. True: everybody has an answer."""
        if isinstance(error, apsw.Error) and not isinstance(error, STATEMENT_ERRORS):
            error = translate(error, str(self._database), self._connection.system_errno)
        if isinstance(error, apsw.ConstraintError):
            error = Conflict(f"it clashes with what is stored already ({error}); nothing was written")
        if isinstance(error, StoreFailed | StoreUpgraded):
            self.fail(error)
        elif len(group) > 1 and not isinstance(error, StoreBusy):
            return False
        for job in group:
            job.result, job.error = None, error
        return True

    def _roll_back(self) -> None:
        """SQLite may have ended the transaction by itself: ask before rolling back."""
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except apsw.Error as error:
                self.fail(translate(error, str(self._database), self._connection.system_errno))

    def fail(self, failure: HoldfastError) -> None:
        """Stop for good: whatever is asked from now on gets this answer."""
        if self._failure is None:
            log.critical("the store has stopped: %s", failure)
            self._failure = failure

    def _tell(self, group: list[Job]) -> None:
        """One wake-up per event loop, not per job. Callers first: they wait, the search index can."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for job in group:
            if job.loop is not None:
                by_loop.setdefault(job.loop, []).append(job)
            elif job.error is not None:
                log.warning("bookkeeping failed and will be done again: %s", job.error)
        for loop, jobs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_settle, jobs)
            except RuntimeError:
                log.debug("%d callers' event loop has closed before they could be told", len(jobs))
        self._on_commit()

    # --- the write-ahead log -----------------------------------------------------------------------

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._wal_pages:  # it has started over
            self._checkpoint_at = CHECKPOINT_PAGES
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Move the log into the file between two groups, so that the log can start over."""
        if self._wal_pages < self._checkpoint_at or self._failure is not None:
            return
        try:
            size, done = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            return  # another process is at it
        except apsw.Error as error:
            trouble = translate(error, str(self._database), self._connection.system_errno)
            if not passes(trouble):
                self.fail(trouble)
            return
        self._checkpoint_at = self._wal_pages + CHECKPOINT_PAGES
        too_long = size * 4096 > ALARM_BYTES and done < size
        if too_long and not self._wal_alarm:
            log.warning(
                "the write-ahead log of %s has grown to %d MB because a reader holds it back; "
                "look for a long-running read (a backup, a shell) of this file",
                self._database,
                size * 4096 // 1_000_000,
            )
        self._wal_alarm = too_long


def _settle(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future is None or job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
