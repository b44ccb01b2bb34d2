"""Pauses the writing transaction of a PostgreSQL store before a chosen statement, so that another can run.

Installed by tests only. The writer sends statements in batches. Under a gate they go one by one, in the same
order, so every point between two of them can be reached.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg

from holdfast.store.postgres import writer
from holdfast.store.postgres.connections import ANSWER_SECONDS, connect
from holdfast.store.postgres.engine import PostgresStore
from holdfast.store.postgres.pipeline import Asked, Connection, Pipeline, StatementResult

T = TypeVar("T")

Chosen = Callable[[list[str]], bool]
"""Given the names of a transaction's statements up to the next one: is it stopped before that?"""

LOOK_SECONDS = 0.001
LONGEST_SECONDS = 120.0
"""A transaction that gets nowhere for so long is a failure of the test, on any machine."""


def before(name: str) -> Chosen:
    return lambda names: names[-1] == name


def after(name: str) -> Chosen:
    return lambda names: names[-2:-1] == [name]


def number(wanted: int) -> Chosen:
    """From 0, with BEGIN and COMMIT."""
    return lambda names: len(names) == wanted + 1


class Gate:
    """Lets the statements of one writer pass, and stops it once before the one that was chosen."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """The statements of the newest transaction so far."""
        self.trace: list[tuple[str, int]] = []
        """Every statement since it was cleared, with the number of rows it returned or changed."""
        self.stopped_at = ""
        self.backend = 0
        self._chosen: Chosen = lambda names: False
        self._reached = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def stop(self, where: Chosen) -> None:
        """Stop there, once."""
        self._reached.clear()
        self._open.clear()
        self._chosen = where

    def release(self) -> None:
        self._chosen = lambda names: False
        self._open.set()

    @property
    def reached(self) -> bool:
        return self._reached.is_set()

    def passing(self, name: str, backend: int) -> None:
        """On the writer's thread, before each statement."""
        if name == "begin":
            self.names.clear()
        self.names.append(name)
        self.backend = backend
        if not self._reached.is_set() and self._chosen(self.names):
            self.stopped_at = name
            self._reached.set()
            if not self._open.wait(LONGEST_SECONDS):
                raise AssertionError(f"nobody has opened the gate before {name}")


class GatedWire(Pipeline):
    def __init__(self, connection: Connection, gate: Gate) -> None:
        super().__init__(connection, ANSWER_SECONDS)
        self._gate = gate

    def exchange(self, asked: Sequence[Asked]) -> list[StatementResult]:
        answers: list[StatementResult] = []
        for each in asked:
            name = each[0].name.decode()
            self._gate.passing(name, self.backend)
            self._gate.trace.append((name, -1))
            answers += super().exchange([each])
            self._gate.trace[-1] = (name, answers[-1].count)
        return answers


def gated(store: PostgresStore, *, deadlock_ms: int = 50) -> Gate:
    """Put a gate before the writer of a store. It waits for locks as long as it takes, and deadlocks are
    found soon."""
    gate = Gate()

    def dial() -> Pipeline:
        connection = connect(store._address)
        connection.execute(f"SET deadlock_timeout = '{deadlock_ms}ms'")
        return GatedWire(connection, gate)

    old = store._writer._wire
    store._writer._connect = dial
    if old is not None:
        store._writer._wire = None
        old.close()
    return gate


def patient_locks(monkeypatch: Any) -> None:
    """Nobody gives a lock up: whoever waits for one goes on in the same transaction."""
    monkeypatch.setattr(writer, "LOCK_SECONDS", LONGEST_SECONDS)
    monkeypatch.setattr(writer, "GROUP_LOCK_SECONDS", LONGEST_SECONDS)


class Interleaving:
    """Runs one write up to a statement, another as far as it gets, and then both to their ends."""

    def __init__(self, url: str) -> None:
        self._watching = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self._watching.close()

    def is_waiting(self, backend: int) -> bool:
        """Does this connection wait for a lock?"""
        row = self._watching.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (backend,)).fetchone()
        return row is not None and bool(row[0])

    async def run(
        self,
        first: Callable[[], Awaitable[Any]],
        stops: Gate,
        where: Chosen,
        second: Callable[[], Awaitable[Any]],
        passes: Gate,
    ) -> tuple[Any, Any, bool]:
        """What each gave or raised, and whether the first was stopped at all. The second runs while the first
        stands before that statement; if it has to wait for it, both go on."""
        stops.stop(where)
        one = asyncio.ensure_future(_outcome(first()))
        until = time.monotonic() + LONGEST_SECONDS
        while not one.done() and not stops.reached:
            assert time.monotonic() < until, "the first got nowhere"
            await asyncio.sleep(LOOK_SECONDS)
        stopped = stops.reached
        passes.backend = 0
        other = asyncio.ensure_future(_outcome(second()))
        while stopped and not other.done():
            assert time.monotonic() < until, "the second got nowhere"
            await asyncio.sleep(LOOK_SECONDS)
            if passes.backend and self.is_waiting(passes.backend):
                break
        stops.release()
        return await one, await other, stopped


async def _outcome(running: Awaitable[T]) -> T | BaseException:
    try:
        return await running
    except Exception as error:  # which errors are right is for the caller to say
        return error
