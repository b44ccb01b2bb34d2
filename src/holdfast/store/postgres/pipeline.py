"""One connection used in batches: several statements and their results take one round trip (PostgreSQL's
pipeline mode). Statements are prepared when a connection first needs them.

Every wait has a timeout. A frozen server gives no error by itself; after `answer_seconds` without an answer
the connection is closed, and the waiting thread gets `ConnectionLost`. Each batch ends with a Sync, so that
between batches the server counts us as idle and, if we freeze ourselves, ends our transaction in time.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import Transformer as Loader
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from .deadlines import cut, handle_of
from .statements import COMMIT, ROLLBACK, Statement, Values

Asked = tuple[Statement, Values]
"""A statement and its parameters."""
Connection = psycopg.Connection[Any]

_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY)


class ConnectionLost(psycopg.OperationalError):
    """The connection is lost. Whether the last batch was executed is unknown."""


class StatementResult:
    """Result of a statement: its rows, or how many it changed."""

    __slots__ = ("_loader", "_result", "_rows", "count")

    def __init__(self, result: pq.abc.PGresult, loader: Loader) -> None:
        self._result = result
        self._loader = loader
        self._rows: list[tuple[Any, ...]] | None = None
        self.count = result.command_tuples or 0

    def rows(self) -> list[tuple[Any, ...]]:
        if self._rows is None:
            result, self._rows = self._result, []
            if result.ntuples:
                self._loader.set_pgresult(result, set_loaders=True, format=pq.Format.BINARY)
                self._rows = self._loader.load_rows(0, result.ntuples, tuple)
        return self._rows


class RowsResult(StatementResult):
    """Rows that are known without a result of their own."""

    __slots__ = ()

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.count = len(rows)
        self._rows = rows


NOTHING = RowsResult([])


class Pipeline:
    def __init__(self, connection: Connection, answer_seconds: float) -> None:
        self.connection = connection
        self._pg = connection.pgconn
        self._answer_seconds = answer_seconds
        self._loader: Loader = Transformer(connection)
        self._prepared: set[bytes] = set()
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._handle = handle_of(connection)
        self._pg.enter_pipeline_mode()
        self.backend = self._pg.backend_pid
        self.history: str | None = None
        """Id of the server's write history; None: not asked, or not reported."""
        self.last_crash: str | None = None
        """Changes when the server recovers from a crash; None: not asked, or not reported."""

    @property
    def lost(self) -> bool:
        return self._pg.status == pq.ConnStatus.BAD

    @property
    def in_transaction(self) -> bool:
        return self._pg.transaction_status not in (pq.TransactionStatus.IDLE, pq.TransactionStatus.UNKNOWN)

    @contextmanager
    def answering_within(self, seconds: float) -> Iterator[None]:
        """Use another timeout inside the block."""
        usual, self._answer_seconds = self._answer_seconds, seconds
        try:
            yield
        finally:
            self._answer_seconds = usual

    def ask(self, statement: Statement, **values: Any) -> list[tuple[Any, ...]]:
        return self.exchange([(statement, values)])[-1].rows()

    def exchange(self, asked: Sequence[Asked]) -> list[StatementResult]:
        """Execute a batch; returns one result for each. The first error stops it and is raised."""
        pg = self._pg
        encoded = [statement.encode(values) for statement, values in asked]  # all, before any is sent
        sent: list[Statement | None] = []
        """Statements being prepared and, as None, executions; each has its result."""
        try:
            for (statement, _), values in zip(asked, encoded, strict=True):
                if statement.name not in self._prepared and statement not in sent:
                    pg.send_prepare(statement.name, statement.text, statement.oids)
                    sent.append(statement)
                pg.send_query_prepared(
                    statement.name, values, statement.formats, result_format=pq.Format.BINARY
                )
                sent.append(None)
            pg.pipeline_sync()
            results = self._results()
        except psycopg.OperationalError as error:
            self.close()
            raise error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)) from error
        answers: list[StatementResult] = []
        failed: pq.abc.PGresult | None = None
        for prepared, result in zip(sent, results, strict=False):
            if result.status not in _GOOD:
                failed = result
                break
            if prepared is None:
                answers.append(StatementResult(result, self._loader))
            else:
                self._prepared.add(prepared.name)
        if failed is None:
            return answers
        trouble = error_from_result(failed)
        if self.lost or not trouble.sqlstate or _ends_the_connection(trouble):
            self.close()
            raise ConnectionLost(str(trouble)) from trouble
        raise trouble

    def roll_back(self) -> None:
        """Roll back the transaction, if there is one."""
        if not self.lost and self.in_transaction:
            self.exchange([(ROLLBACK, {})])

    def commit(self) -> None:
        self.exchange([(COMMIT, {})])

    def _results(self) -> list[pq.abc.PGresult]:
        """Send what is queued and collect the results up to the Sync."""
        pg = self._pg
        until = time.monotonic() + self._answer_seconds
        while pg.flush():
            self._wait(until, select.POLLIN | select.POLLOUT)
        found: list[pq.abc.PGresult] = []
        while True:
            while pg.is_busy():
                self._wait(until, select.POLLIN)
            result = pg.get_result()
            if result is None:
                if self.lost:
                    raise ConnectionLost("the connection was closed by the server or on the way")
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                return found
            found.append(result)

    def _wait(self, until: float, for_: int) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise ConnectionLost(f"it has not answered for {self._answer_seconds:.0f} seconds")
        if for_ != select.POLLIN:
            self._poll.modify(self.connection.fileno(), for_)
        ready = self._poll.poll(left * 1000)
        if for_ != select.POLLIN:
            self._poll.modify(self.connection.fileno(), select.POLLIN)
        if not ready:
            raise ConnectionLost(f"it has not answered for {self._answer_seconds:.0f} seconds")
        if any(event != select.POLLOUT for _, event in ready):
            self._pg.consume_input()

    def cut(self) -> None:
        """From any thread: the thread waiting for an answer gets `ConnectionLost` instead."""
        cut(self._handle)

    def close(self) -> None:
        self._pg.finish()
        self._handle.close()


def _ends_the_connection(error: psycopg.Error) -> bool:
    """True: a shutdown, crash or ended session, reported before the connection closes."""
    return (error.sqlstate or "") in ("57P01", "57P02", "57P03", "57P05", "25P03", "25P04") or (
        (error.sqlstate or "").startswith("08")
    )
