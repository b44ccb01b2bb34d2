"""The writer thread: group commit over one connection.

Jobs that wait together share one transaction and one COMMIT. No caller gets a result before the server has
confirmed the commit. A job that refuses (raises one of our errors before changing a row) does not affect the
group. On any other error the whole group is rolled back and its jobs are retried one by one. A job is a pure
function of the transaction, so after a conflict with another node (a clash, a deadlock, a lock timeout) it is
retried until its deadline.

If the connection is lost before the COMMIT was sent, nothing was written: the job is retried on a new
connection. If it is lost *in* the COMMIT, the next connection asks the server for the outcome of that
transaction, by its number, after ending any backend that may still run it. A server of another history (a
standby promoted since) has other transactions with the same numbers and is not asked. A server that crashed
since may have assigned the number again: that it was committed proves nothing then, that it was not does.
Only if the outcome cannot be found out in time, callers get `StoreUncertain`: the write is neither
acknowledged nor retried.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg

from ...domain.messages import NewMessage, size_of
from ...domain.turns import Lease
from ...errors import HoldfastError, LeaseLost, StoreFailed, StoreUncertain, StoreUpgraded
from ..transaction import Q
from ..writer import GroupWriter, ThreadResult, WriteJob
from .db_errors import LOCKED, RUN_AGAIN, cannot_connect, state_of, translate
from .foresight import keep_independent
from .many import are_different, asked_of_many
from .pipeline import Asked, ConnectionLost, Pipeline, RowsResult, StatementResult
from .statements import BEGIN, COMMIT, Statement, Values, statement
from .transaction import Batch, Changes, Foreseen, Unmet, message_row

log = logging.getLogger(__name__)

GROUP_LOCK_SECONDS = 0.3
"""Lock timeout of a group; after it, its jobs are run alone."""
LOCK_SECONDS = 0.1
"""Lock timeout of a job run alone; after it, the job is requeued."""
STOP_SECONDS = 5.0
"""How long closing waits for a server that does not answer."""
MOST_TRIES = 5
PAUSE_SECONDS = 0.05
NOT_ASSIGNED = "22023"
"""SQLSTATE of asking for a transaction number that the server has not assigned: nothing of it was logged."""
LONGEST_PAUSE_SECONDS = 1.0

T = TypeVar("T")
Work = Callable[[Changes, int], T]
Foresight = Callable[[int], list[Batch]]
"""Returns what a job will ask first, given the transaction's time."""
Appending = tuple[Lease, Sequence[NewMessage]]
Holding = tuple[str, int, str]
"""Key of a lease check: conversation, token and node."""

_BEGUN = statement(Q.begun)
_NUMBER_ALL = statement(Q.number_all)
_TELL = statement(Q.tell)


class PostgresJob(WriteJob[Work[Any] | None]):
    """One caller's write. Appends have no function: they are executed together."""

    __slots__ = ("append", "foresight", "later", "since")

    def __init__(
        self,
        work: Work[Any] | None,
        append: Appending | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        future: asyncio.Future[Any] | ThreadResult[Any] | None = None,
        foresight: Foresight | None = None,
    ) -> None:
        super().__init__(work, loop, future)
        self.append = append
        self.foresight = foresight
        self.since = time.monotonic()
        self.later = False
        """True: the job is to be requeued."""


class PostgresWriter(GroupWriter[PostgresJob]):
    """Owns the writing connection. Call `submit` from any event loop, in any thread."""

    def __init__(
        self,
        connect: Callable[[], Pipeline],
        location: str,
        schema: int,
        patience: float,
        tag: str,
        on_commit: Callable[[], None],
        on_time: Callable[[int], int],
    ) -> None:
        super().__init__()
        self._connect = connect
        self._location = location
        self._schema = schema
        self._patience = patience
        self._tag = tag
        self._on_commit = on_commit
        self._on_time = on_time
        self._wire: Pipeline | None = None
        self._stop_by = math.inf
        self._news = False
        """True: something was committed that subscribers may wait for."""
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    # --- the callers' side -------------------------------------------------------------------------

    async def submit(self, work: Work[T], foresight: Foresight | None = None) -> T:
        """Run `work` inside the next group; returns when it is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._accept(PostgresJob(work, None, loop, future, foresight))
        # A cancelled caller does not undo its write: it may already be committed.
        return await future

    def submit_blocking(self, work: Work[T], foresight: Foresight | None = None) -> T:
        """The same for a thread without an event loop."""
        future: ThreadResult[T] = ThreadResult()
        self._accept(PostgresJob(work, None, None, future, foresight))
        return future.result()

    async def append(self, lease: Lease, messages: Sequence[NewMessage]) -> int:
        """Number and store messages under a lease; returns the last seq. LeaseLost if the lease was lost."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        self._accept(PostgresJob(None, (lease, messages), loop, future))
        return await future

    def stop(self) -> None:
        """Finish accepted jobs, as far as the server answers, then close the connection."""
        with self._wake:
            self._stopping = True
            self._stop_by = time.monotonic() + STOP_SECONDS
            self._wake.notify()
        self._thread.join(STOP_SECONDS)
        while self._thread.is_alive():
            if self._wire is not None:
                self._wire.cut()
            self._thread.join(STOP_SECONDS)

    # --- the thread's side -------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._stopping:
                    self._wake.wait()
                group = self._take_group()
            if not group:
                break
            for job in group:
                job.later = False
            try:
                with self._writing:
                    self._commit(group)
            except BaseException as error:  # a bug here must not leave callers waiting forever
                self.fail(
                    StoreFailed(f"{self._location}: the writer broke ({type(error).__name__}: {error})")
                )
                for job in group:
                    job.error, job.later = self._failure, False
            self._tell([job for job in group if not job.later])
            with self._wake:
                self._queue.extend(job for job in group if job.later)
        if self._wire is not None:
            self._wire.close()

    def _commit(self, group: list[PostgresJob]) -> None:
        """Run a group in one transaction; afterwards every job has its result or its error."""
        error: BaseException | None = None
        if len(group) > 1 and self._failure is None:
            error = self._try(group, GROUP_LOCK_SECONDS, foresees=True)
            if isinstance(error, Unmet):
                error = self._try(group, GROUP_LOCK_SECONDS)
            if error is None:
                return
            if not isinstance(error, HoldfastError | Unmet | ConnectionLost) and not (
                state_of(error) in RUN_AGAIN or state_of(error) == LOCKED
            ):  # a mistake of ours: without this line it would only be slow. A server's text may quote values
                log.warning(
                    "a group of %d writes failed (%s %s) and is retried one by one",
                    len(group),
                    type(error).__name__,
                    state_of(error),
                    exc_info=None if isinstance(error, psycopg.Error) else error,
                )
        for job in group:
            error = self._alone(job, error if isinstance(error, ConnectionLost) else None)

    def _alone(self, job: PostgresJob, error: BaseException | None) -> BaseException | None:
        """Run one job alone; retry on lock conflicts and lost connections until its deadline. `error`: the
        last error so far, returned if the deadline has passed."""
        until = min(job.since + self._patience, self._stop_by)
        tries, pause, strict = 0, PAUSE_SECONDS, False
        while True:
            if self._failure is not None:
                job.error = self._failure
                return None
            if error is None or time.monotonic() < until:
                error = self._try([job], LOCK_SECONDS, strict=strict)
            if error is None:
                return None
            if state_of(error) == LOCKED and time.monotonic() < until:
                job.later = True
                return None
            tries += 1
            again = isinstance(error, ConnectionLost) or (
                tries < MOST_TRIES and (isinstance(error, Unmet) or state_of(error) in RUN_AGAIN)
            )
            strict = strict or isinstance(error, Unmet)
            if not again or time.monotonic() >= until:
                job.result, job.error = None, self._error_of(error)
                return error
            if isinstance(error, ConnectionLost):
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _error_of(self, error: BaseException) -> BaseException:
        """The error for the caller; permanent failures stop the store."""
        if isinstance(error, psycopg.Error):
            error = translate(error, self._location)
        if isinstance(error, StoreFailed | StoreUpgraded):
            self.fail(error)
        return error

    def _try(
        self, group: list[PostgresJob], patience: float, *, strict: bool = False, foresees: bool = False
    ) -> BaseException | None:
        """One transaction over `group`. None: every job has its result; an error: nothing was kept.
        `foresees`: turns that follow each other send their first statements together."""
        for job in group:
            job.result, job.error = None, None
        number: str | None = None
        wire: Pipeline | None = None
        committing = False
        try:
            wire = self._wire = self._connected()
            milliseconds = str(max(1, int(patience * 1000)))
            begun = wire.exchange([(BEGIN, {}), (_BEGUN, {"patience": milliseconds})])[-1].rows()
            stamp, number, oldest, _ = begun[0]
            if oldest > self._schema:
                raise StoreUpgraded(oldest, self._schema)
            changes = Changes(wire, strict=strict)
            self._work(group, changes, self._on_time(stamp), foresees)
            changes.verify()
            if changes.rows:
                ending = [*changes.ending(), (_TELL, {"tag": self._tag}), (COMMIT, {})]
            else:
                ending = [(COMMIT, {})]
            # The COMMIT is sent in the same batch as the statements before it; an error of those ends the
            # batch before it is reached.
            committing = True
            wire.exchange(ending)
            self._news = self._news or changes.rows > 0
            return None
        except ConnectionLost as error:
            if committing and wire is not None and number is not None:
                return self._find_out(group, number, wire, error)
            return error
        except BaseException as error:
            if wire is not None:
                try:
                    wire.roll_back()
                except psycopg.Error:
                    wire.close()
            return error

    def _connected(self) -> Pipeline:
        if self._wire is not None and not self._wire.lost:
            return self._wire
        try:
            wire = self._connect()
        except psycopg.OperationalError as error:
            if cannot_connect(error):
                raise ConnectionLost(str(error)) from error
            raise
        try:
            wire.history = _asked_once(wire, Q.server_history)
            wire.last_crash = _asked_once(wire, Q.last_crash)
        except BaseException:
            wire.close()
            raise
        return wire

    def _work(self, group: list[PostgresJob], changes: Changes, now: int, foresees: bool) -> None:
        appends = [job for job in group if job.append is not None]
        if appends:
            self._append(appends, changes, now)
        together: list[PostgresJob] = []
        for job in group:
            if job.work is None:
                continue
            if foresees and job.foresight is not None:
                together.append(job)
                continue
            self._run_together(together, changes, now)  # what was accepted earlier is run earlier
            together = []
            self._run_one(job, changes, now)
        self._run_together(together, changes, now)

    def _run_one(self, job: PostgresJob, changes: Changes, now: int) -> None:
        assert job.work is not None
        before = changes.rows
        try:
            job.result = job.work(changes, now)
        except HoldfastError as refusal:
            if changes.rows != before:
                raise
            job.error = refusal
        changes.drop_foreseen()

    def _run_together(self, jobs: list[PostgresJob], changes: Changes, now: int) -> None:
        """Run begins and commits of turns. Commits first: their statements are sent in one batch, and what
        they release can be taken by the begins."""
        if len(jobs) < 2:
            for job in jobs:
                self._run_one(job, changes, now)
            return
        begins: list[tuple[PostgresJob, list[Batch]]] = []
        commits: list[tuple[PostgresJob, list[Batch]]] = []
        plain: list[PostgresJob] = []
        for job in jobs:
            assert job.foresight is not None
            batches = job.foresight(now)
            if not batches:
                plain.append(job)
            elif batches[0][-1][0].changes:
                commits.append((job, batches))
            else:
                begins.append((job, batches))
        self._run_foreseen([job for job, _ in commits], _answered(commits, changes), changes, now)
        answered = _answered(begins, changes)
        kept = keep_independent(answered)
        plain += [job for (job, _), is_kept in zip(begins, kept, strict=True) if not is_kept]
        self._run_foreseen(
            [job for (job, _), is_kept in zip(begins, kept, strict=True) if is_kept],
            [each for each, is_kept in zip(answered, kept, strict=True) if is_kept],
            changes,
            now,
        )
        for job in plain:
            self._run_one(job, changes, now)

    def _run_foreseen(
        self, jobs: list[PostgresJob], answered: list[Foreseen], changes: Changes, now: int
    ) -> None:
        """Run turns of different conversations, whose first answers are known. What they queue is merged."""
        changes.assumes = True
        changes.begin_holding()
        for job, foreseen in zip(jobs, answered, strict=True):
            changes.foreseen = foreseen
            self._run_one(job, changes, now)
            changes.hold()
        changes.end_holding()
        changes.assumes = False

    def _append(self, jobs: list[PostgresJob], changes: Changes, now: int) -> None:
        """Execute all appends of a group: one statement numbers them, guarded by each lease, and one stores
        them."""
        counts: dict[Holding, int] = {}
        sizes: dict[Holding, int] = {}
        for job in jobs:
            assert job.append is not None
            lease, messages = job.append
            held = (lease.conversation_id, lease.token, lease.node_id)
            counts[held] = counts.get(held, 0) + len(messages)
            sizes[held] = sizes.get(held, 0) + size_of(messages)
        # The same order on every node, to avoid deadlocks.
        ids, tokens, nodes = zip(*sorted(counts), strict=True)
        wanted = {
            "ids": ids,
            "tokens": tokens,
            "nodes": nodes,
            "counts": [counts[each] for each in sorted(counts)],
            "sizes": [sizes[each] for each in sorted(counts)],
        }
        numbered = changes.carry_out((_NUMBER_ALL, wanted))[-1].rows()
        last: dict[Holding, int] = {}
        for id_, token, node, last_seq in numbered:
            held = (id_, token, node)
            last[held] = last_seq - counts[held]
        rows: list[tuple[Any, ...]] = []
        for job in jobs:
            assert job.append is not None
            lease, messages = job.append
            held = (lease.conversation_id, lease.token, lease.node_id)
            if held not in last:
                job.error = LeaseLost(lease.conversation_id, lease.token)
                continue
            for message in messages:
                last[held] += 1
                rows.append(message_row(message, held[0], last[held], lease.session_id, lease.turn_id))
            job.result = last[held]
        if rows:
            changes.store_messages(rows, now)

    # --- outcome of an uncertain commit ------------------------------------------------------------

    def _find_out(
        self, group: list[PostgresJob], number: str, before: Pipeline, lost: ConnectionLost
    ) -> BaseException | None:
        """The connection was lost in a COMMIT. None: it was committed; an error: it was not."""
        until = time.monotonic() + self._patience
        pause = PAUSE_SECONDS
        while time.monotonic() < min(until, self._stop_by):
            try:
                wire = self._wire = self._connected()
                if wire.history is None or wire.history != before.history:
                    log.warning("%s may be another server than before; its answer is ignored", self._location)
                    break
                wire.ask(statement(Q.end_backend), pid=before.backend)
                ((status,),) = wire.ask(statement(Q.outcome), number=number)
            except psycopg.Error as error:
                log.debug("the outcome of transaction %s is still unknown: %s", number, error)
                status = "aborted" if state_of(error) == NOT_ASSIGNED else "in progress"
            if status == "committed" and wire.last_crash is not None and wire.last_crash == before.last_crash:
                self._news = True
                return None
            if status == "aborted":
                return lost
            if status is None or status == "committed":
                break
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        uncertain = StoreUncertain(
            f"{self._location} was lost during a commit and has not been reachable since: either everything "
            "was written or nothing. Check before you repeat it"
        )
        for job in group:
            job.result, job.error = None, uncertain
        return None

    def _tell(self, group: list[PostgresJob]) -> None:
        """Answer the callers. The store's version has changed before a caller wakes."""
        if self._news:
            self._news = False
            self._on_commit()
        self._answer(group)


def _asked_once(wire: Pipeline, name: str) -> str | None:
    """A fact about the server, read when a connection is opened; None if it is not reported: some services
    do not."""
    try:
        ((fact,),) = wire.ask(statement(name))
    except psycopg.Error as error:
        if isinstance(error, ConnectionLost):
            raise
        log.debug("the server does not report its %s: %s", name, error)
        return None
    return str(fact)


def _answered(jobs: Sequence[tuple[PostgresJob, list[Batch]]], changes: Changes) -> list[Foreseen]:
    """Send what these jobs will ask first, in one batch; returns each job's answers. Statements of jobs that
    ask the same, for different values, are executed once for all."""
    if not jobs:
        return []
    alike: dict[tuple[Statement, ...], list[int]] = {}
    values: list[list[Values]] = []
    for place, (_, batches) in enumerate(jobs):
        wanted = [each for batch in batches for each in batch]
        alike.setdefault(tuple(each for each, _ in wanted), []).append(place)
        values.append([row for _, row in wanted])
    merged = [
        _Merged(statements, [values[place] for place in places]) for statements, places in alike.items()
    ]
    results = iter(changes.carry_out(*(each for group in merged for each in group.asks())))
    answers: list[list[StatementResult]] = [[] for _ in jobs]
    for group, places in zip(merged, alike.values(), strict=True):
        for place, found in zip(places, group.answers(results), strict=True):
            answers[place] = found
    return [
        deque((batch, [found.pop(0) for _ in batch]) for batch in batches)
        for (_, batches), found in zip(jobs, answers, strict=True)
    ]


class _Merged:
    """The same statements, asked by several jobs."""

    def __init__(self, statements: Sequence[Statement], rows: list[list[Values]]) -> None:
        self._statements = statements
        self._rows = rows
        columns = list(zip(*rows, strict=True))
        self._at_once = len(rows) > 1 and all(map(_may_merge, statements, columns))
        # The same order on every node, to avoid deadlocks: that of the last statement that locks.
        last = max((place for place, each in enumerate(statements) if each.locks), default=-1)
        keys = statements[last].keys
        self._order = sorted(range(len(rows)), key=lambda job: [rows[job][last][key] or "" for key in keys])

    def asks(self) -> list[Asked]:
        if not self._at_once:
            return [each for row in self._rows for each in zip(self._statements, row, strict=True)]
        return [
            asked_of_many(single, [self._rows[job][place] for job in self._order])
            for place, single in enumerate(self._statements)
        ]

    def answers(self, results: Iterator[StatementResult]) -> list[list[StatementResult]]:
        """The answers of each job, from the results of `asks`."""
        if not self._at_once:
            return [[next(results) for _ in self._statements] for _ in self._rows]
        answers: list[list[StatementResult]] = [[] for _ in self._rows]
        for _ in self._statements:
            found: list[list[tuple[Any, ...]]] = [[] for _ in self._rows]
            for row in next(results).rows():
                found[self._order[row[-1] - 1]].append(row[:-1])
            for each, rows in zip(answers, found, strict=True):
                each.append(RowsResult(rows))
        return answers


def _may_merge(single: Statement, rows: Sequence[Values]) -> bool:
    """True if one execution may serve all of these values. Those of reads need not differ."""
    return are_different(single, rows) if single.changes else bool(single.keys)
