"""An error of one statement is its caller's; only a file that cannot be trusted stops the store."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_messages
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.turns import TurnBegun, TurnRequest
from holdfast.errors import (
    Conflict,
    HoldfastError,
    NotFound,
    StatementFailed,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    TooLarge,
)
from holdfast.os_support import identity
from holdfast.server.http_errors import failure_of
from holdfast.store.sqlite.db_errors import translate
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.sqlite.transaction import STATEMENTS
from holdfast.store.transaction import Transaction

KINDS: dict[type[apsw.Error], type[HoldfastError]] = {
    apsw.FullError: StoreFull,
    apsw.BusyError: StoreBusy,
    apsw.LockedError: StoreBusy,
    apsw.ProtocolError: StoreBusy,
    apsw.IOError: StoreFailed,
    apsw.CorruptError: StoreFailed,
    apsw.NotADBError: StoreFailed,
    apsw.CantOpenError: StoreFailed,
    apsw.ReadOnlyError: StoreFailed,
    apsw.PermissionsError: StoreFailed,
    apsw.ConstraintError: Conflict,
    apsw.TooBigError: TooLarge,
}


def every_error() -> list[type[apsw.Error]]:
    return [
        value for value in vars(apsw).values() if isinstance(value, type) and issubclass(value, apsw.Error)
    ]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_of_sqlite_is_classified(kind: type[apsw.Error]) -> None:
    expected = next((ours for theirs, ours in KINDS.items() if issubclass(kind, theirs)), StatementFailed)
    assert type(translate(kind("said"), "/a/store.db")) is expected


def test_a_lack_of_memory_or_handles_does_not_stop_the_store() -> None:
    no_memory = apsw.IOError("out of memory")
    no_memory.extendedresult = apsw.SQLITE_IOERR_NOMEM  # type: ignore[attr-defined]
    assert isinstance(translate(no_memory, "x"), StatementFailed)
    assert isinstance(translate(apsw.CantOpenError("x"), "x", errno.EMFILE), StatementFailed)
    assert isinstance(translate(apsw.CantOpenError("x"), "x", errno.EIO), StoreFailed)


def test_a_client_is_told_what_kind_of_error_it_is() -> None:
    assert failure_of(TooLarge("x")).status == 413
    assert failure_of(StatementFailed("x")).status == 500
    assert failure_of(StoreError("x")).status == 503


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    opened = await open_store(tmp_path / "store.db")
    yield opened
    await opened.close()


async def begin(store: SQLiteStore, key: str = "k") -> TurnBegun:
    node = Node(new_id("node"), NodeKind.LIBRARY, identity())
    await store.join(node)
    request = TurnRequest(new_id("turn"), "default", node.id, Address(key=key), new_messages("hello"))
    begun = await store.begin_turn(request)
    assert isinstance(begun, TurnBegun)
    return begun


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT zeroblob(2000000000) WHERE :id IS NOT :owner",
        "SELECT * FROM no_such_table WHERE :id = :owner",
        "SELECT abs(-9223372036854775808) WHERE :id IS NOT :owner",
    ],
    ids=["too big", "no such table", "overflow"],
)
async def test_a_read_that_fails_is_its_callers_error(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    begun = await begin(store)
    with monkeypatch.context() as broken:
        broken.setitem(STATEMENTS, "turn_by_id", statement)
        with pytest.raises(HoldfastError) as refused:
            await store.turn("default", begun.turn.id)
    assert not isinstance(refused.value, StoreFailed)
    assert store.failure is None
    assert (await store.turn("default", begun.turn.id)).id == begun.turn.id
    await store.commit_reply(begun.lease, new_messages({"role": "assistant", "content": "hi"}))


async def test_one_job_that_fails_leaves_the_others_of_its_group(store: SQLiteStore) -> None:
    """They wait together while the writer is held, so they share one transaction."""
    begun = await begin(store)
    held, go_on = threading.Event(), threading.Event()

    def hold(_: apsw.Connection) -> None:
        held.set()
        go_on.wait()

    def too_big(connection: apsw.Connection) -> None:
        connection.execute("UPDATE conversations SET title = 'changed by the one that fails'")
        connection.execute("UPDATE conversations SET title = CAST(zeroblob(2000000000) AS TEXT)")

    holding = asyncio.create_task(store._writer.submit(hold))
    await asyncio.to_thread(held.wait)
    reply = new_messages({"role": "assistant", "content": "hi"})
    jobs = [
        asyncio.create_task(store.append(begun.lease, reply)),
        asyncio.create_task(store._writer.submit(too_big)),
        asyncio.create_task(store._writer.submit(lambda c: c.execute("SELECT * FROM nothing"))),
        asyncio.create_task(store.append(begun.lease, reply)),
    ]
    await asyncio.sleep(0)
    go_on.set()
    await holding
    first, large, wrong, last = await asyncio.gather(*jobs, return_exceptions=True)
    assert (first, last) == (2, 3)
    assert isinstance(large, TooLarge) and isinstance(wrong, StatementFailed)
    assert store.failure is None
    place = await store.resolve("default", Address(key="k"))
    assert place.conversation.title is None


async def test_a_corrupt_page_still_stops_the_store(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corrupt(_: Transaction) -> None:
        raise apsw.CorruptError("database disk image is malformed")

    with pytest.raises(StoreFailed):
        await store._readers.run(corrupt)
    assert isinstance(store.failure, StoreFailed)
    with pytest.raises(StoreFailed):
        await store.turn("default", "turn_x")


# --- the threads -------------------------------------------------------------------------------------------


async def test_the_waiters_for_commits_are_only_touched_under_their_guard(store: SQLiteStore) -> None:
    """Event loops add and remove them while the writer goes over them."""
    watch = store._watch
    touched = []

    class Guarded(dict[asyncio.AbstractEventLoop, Any]):
        def __iter__(self) -> Iterator[asyncio.AbstractEventLoop]:
            touched.append(("go over", watch._guard.locked()))
            return super().__iter__()

        def setdefault(self, loop: asyncio.AbstractEventLoop, new: Any = None) -> Any:
            touched.append(("add", watch._guard.locked()))
            return super().setdefault(loop, new)

        def __delitem__(self, loop: asyncio.AbstractEventLoop) -> None:
            touched.append(("remove", watch._guard.locked()))
            super().__delitem__(loop)

    watch._waiters = Guarded()
    waiting = asyncio.create_task(store.changed(store.version(), 30))
    await asyncio.sleep(0)
    await begin(store)
    assert await waiting
    assert {name for name, _ in touched} == {"go over", "add", "remove"}
    assert all(guarded for _, guarded in touched), touched


async def test_a_listener_to_commits_that_fails_does_not_stop_the_writer(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    with monkeypatch.context() as broken:
        broken.setattr(store._watch, "notice", fail)
        begun = await begin(store)
        async with asyncio.timeout(60):
            await store.append(begun.lease, new_messages({"role": "assistant", "content": "hi"}))
    assert store.failure is None
    assert "a commit listener failed" in caplog.text


@pytest.mark.parametrize("step", ["_commit", "_tell", "_checkpoint", "_next_group"])
async def test_a_writing_thread_that_ends_leaves_nobody_waiting(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    begun = await begin(store)
    held, go_on = threading.Event(), threading.Event()
    reply = new_messages({"role": "assistant", "content": "hi"})

    def die(*_: object) -> None:
        held.set()
        go_on.wait()
        raise SystemExit("the thread ends")

    monkeypatch.setattr(store._writer, step, die)
    doing = asyncio.create_task(store.append(begun.lease, reply))
    await asyncio.to_thread(held.wait)
    pending = [asyncio.create_task(store.append(begun.lease, reply)) for _ in range(3)]
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(60):
        answers = await asyncio.gather(doing, *pending, return_exceptions=True)
    assert all(isinstance(answer, StoreFailed) for answer in answers[1:])
    assert isinstance(store.failure, StoreFailed)
    assert "the store has stopped" in caplog.text
    async with asyncio.timeout(60):
        with pytest.raises(StoreFailed):
            await store.append(begun.lease, reply)
        with pytest.raises(StoreFailed):
            await store.turn("default", begun.turn.id)


async def test_a_writing_thread_that_vanished_is_noticed(store: SQLiteStore) -> None:
    """Not even its last words were heard: the next caller looks whether it is there."""
    await begin(store)
    vanished = threading.Thread(target=lambda: None)
    vanished.start()
    vanished.join()
    thread, store._writer._thread = store._writer._thread, vanished
    try:
        with pytest.raises(StoreFailed):
            await begin(store, "other")
        assert isinstance(store.failure, StoreFailed)
    finally:
        store._writer._thread = thread


async def test_the_store_goes_on_after_a_reader_met_an_unknown_error(store: SQLiteStore) -> None:
    def fail(_: Transaction) -> None:
        raise SystemExit("a reader's work ends its thread, if it may")

    for _ in range(8):
        with pytest.raises(SystemExit):
            await store._readers.run(fail)
    with pytest.raises(NotFound):
        await store.turn("default", "turn_x")
