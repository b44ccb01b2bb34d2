"""Guarantees of the PostgreSQL engine only: groups among locks, lost connections, uncertain commits, gates,
schemas. The methods themselves are tested by the other files.
"""

import asyncio
import itertools
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.turns import TurnBegun
from holdfast.errors import (
    BadInput,
    BadSetting,
    Conflict,
    SearchFailed,
    SearchTimeout,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreUncertain,
    StoreUnreachable,
    StoreUnusable,
    StoreUpgraded,
)
from holdfast.store import search_terms
from holdfast.store.postgres import connections, migrations, search, transaction, writer
from holdfast.store.postgres.db_errors import cannot_open, translate
from holdfast.store.postgres.engine import PostgresStore, open_store
from holdfast.store.postgres.pipeline import Asked, ConnectionLost, Pipeline, StatementResult
from holdfast.store.postgres.statements import COMMIT, Statement, statement
from holdfast.store.postgres.writer import GROUP_LOCK_SECONDS
from holdfast.store.queries import load
from tests import postgres_server
from tests.contract.steps import (
    OWNER,
    all_events,
    all_sessions,
    begin,
    contents,
    new_node,
    request,
    say,
    to_message,
)
from tests.postgres_gate import gated

pytestmark = pytest.mark.postgres

Opening = Callable[..., Awaitable[PostgresStore]]


@pytest.fixture
def url(new_database: Callable[..., str]) -> str:
    return new_database()


@pytest.fixture
async def opening(url: str) -> AsyncIterator[Opening]:
    """Opens the test's database, as often as it is called."""
    opened: list[PostgresStore] = []

    async def open_it(**more: Any) -> PostgresStore:
        opened.append(await open_store(url, **more))
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


@pytest.fixture
def by_hand(url: str) -> Iterator[psycopg.Connection]:
    """A connection of somebody else's to the same tables."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = holdfast")
        yield connection


def writing(store: PostgresStore) -> Pipeline:
    wire = store._writer._wire
    assert wire is not None
    return wire


# --- commits whose outcome is not known --------------------------------------------------------------------


@contextmanager
def lost_in_the_commit(
    monkeypatch: pytest.MonkeyPatch,
    *,
    after: bool,
    times: int = 1,
    then: Callable[[], None] = lambda: None,
) -> Iterator[list[int]]:
    """The connection breaks when a COMMIT is sent: before the server has it, or `after` it was carried
    out. `then` is called before the writer notices."""
    broken: list[int] = []
    real = Pipeline.exchange

    def exchange(self: Pipeline, asked: list[Asked]) -> list[StatementResult]:
        commits = len(asked) > 1 and asked[-1][0] is COMMIT
        if not commits or len(broken) >= times:
            return real(self, asked)
        broken.append(self.backend)
        if after:
            real(self, asked)
        then()
        self.close()
        raise ConnectionLost("the test has cut it")

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "exchange", exchange)
        yield broken


@pytest.mark.parametrize("after", [True, False])
async def test_a_connection_that_is_lost_in_a_commit_writes_once_and_is_acknowledged_rightly(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    store = await opening()
    node = await new_node(store)
    begun = await begin(store, node, "kelp")
    with lost_in_the_commit(monkeypatch, after=after) as broken:
        assert await store.append(begun.lease, [to_message("tide", "assistant")]) == 2
    with lost_in_the_commit(monkeypatch, after=after) as broken_again:
        assert await store.commit_reply(begun.lease, [to_message("ebb", "assistant")]) == 3
    assert len(broken) == len(broken_again) == 1
    assert await contents(store, begun.session.conversation_id) == ["kelp", "tide", "ebb"]
    told = [event.type for event in await all_events(store)]
    assert told.count("turn.completed") == 1


@pytest.mark.parametrize("after", [True, False])
async def test_a_whole_group_that_is_lost_in_its_commit_is_there_once(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    store = await opening()
    node = await new_node(store)
    with lost_in_the_commit(monkeypatch, after=after):
        begun = await asyncio.gather(*(begin(store, node, f"kelp {n}", key=f"cli:{n}") for n in range(20)))
    assert len(await all_sessions(store)) == 20
    for number, each in enumerate(begun):
        assert await contents(store, each.session.conversation_id) == [f"kelp {number}"]
        await store.commit_reply(each.lease, [to_message("hi", "assistant")])


async def test_an_outcome_that_cannot_be_found_out_is_neither_acknowledged_nor_tried_again(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening(patience=0.4)
    node = await new_node(store)
    begun = await begin(store, node, "kelp")
    with lost_in_the_commit(monkeypatch, after=True), monkeypatch.context() as unreachable:

        def refuse() -> Pipeline:
            raise psycopg.OperationalError("connection refused")

        unreachable.setattr(store._writer, "_connect", refuse)
        with pytest.raises(StoreUncertain, match="everything was written or nothing"):
            await store.append(begun.lease, [to_message("tide", "assistant")])
        with pytest.raises(StoreUnreachable, match="Nothing was written"):
            await store.append(begun.lease, [to_message("ebb", "assistant")])
    assert await contents(store, begun.session.conversation_id) == ["kelp", "tide"]
    assert await store.append(begun.lease, [to_message("flow", "assistant")]) == 3


@pytest.mark.parametrize("after", [True, False])
async def test_a_server_of_another_history_is_not_asked_what_became_of_a_commit(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """A standby that was promoted knows other transactions by the same numbers."""
    store = await opening(patience=5.0)
    node = await new_node(store)
    begun = await begin(store, node, "kelp")
    writing(store).history = "7310 00000001"
    with (
        lost_in_the_commit(monkeypatch, after=after),
        pytest.raises(StoreUncertain, match="everything was written or nothing"),
    ):
        await store.append(begun.lease, [to_message("tide", "assistant")])
    assert await store.append(begun.lease, [to_message("ebb", "assistant")]) == (3 if after else 2)


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("after", [True, False])
async def test_after_a_crash_a_reused_transaction_number_proves_no_commit(
    monkeypatch: pytest.MonkeyPatch, after: bool, ending: str
) -> None:
    """The number of a transaction that left nothing in the log is assigned again after a crash of the server.
    That one's commit is not ours; but a number that was rolled back, or is not assigned yet, was not
    committed by us either."""
    with postgres_server.private(tcp=False) as server:
        server.create("holdfast")
        store = await open_store(server.url("holdfast"), patience=20.0)
        try:
            begun = await begin(store, await new_node(store), "kelp")

            def crash(number: int) -> None:
                server.restart(signal.SIGQUIT)
                with psycopg.connect(server.url("holdfast"), autocommit=True) as stranger:
                    for _ in range(number):
                        stranger.execute("BEGIN; SELECT pg_current_xact_id()")
                        stranger.execute(ending)

            with lost_in_the_commit(monkeypatch, after=after, then=lambda: crash(30)):
                writes = store.append(begun.lease, [to_message("tide", "assistant")])
                if after or ending == "COMMIT":
                    with pytest.raises(StoreUncertain, match="everything was written or nothing"):
                        await writes
                else:
                    assert await writes == 2
            stored = ["kelp", "tide"] if after or ending == "ROLLBACK" else ["kelp"]
            assert await contents(store, begun.session.conversation_id) == stored
            with lost_in_the_commit(monkeypatch, after=False, then=lambda: crash(0)):
                assert await store.append(begun.lease, [to_message("ebb", "assistant")]) == len(stored) + 1
            assert await contents(store, begun.session.conversation_id) == [*stored, "ebb"]
        finally:
            await store.close()


@pytest.mark.parametrize("after", [True, False])
async def test_an_orderly_restart_of_the_server_leaves_no_doubt_about_a_commit(
    monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    with postgres_server.private(tcp=False) as server:
        server.create("holdfast")
        store = await open_store(server.url("holdfast"), patience=20.0)
        try:
            begun = await begin(store, await new_node(store), "kelp")
            with lost_in_the_commit(monkeypatch, after=after, then=lambda: server.restart(signal.SIGINT)):
                assert await store.append(begun.lease, [to_message("tide", "assistant")]) == 2
            assert await contents(store, begun.session.conversation_id) == ["kelp", "tide"]
        finally:
            await store.close()


async def test_a_server_that_does_not_tell_its_history_is_not_asked_either(
    opening: Opening, by_hand: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes all the same."""
    unknown = Statement("server_history", "SELECT no_such_function()")
    monkeypatch.setattr(
        writer, "statement", lambda name: unknown if name == "server_history" else statement(name)
    )
    store = await opening(patience=5.0)
    begun = await begin(store, await new_node(store), "kelp")
    with lost_in_the_commit(monkeypatch, after=True), pytest.raises(StoreUncertain):
        await store.append(begun.lease, [to_message("tide", "assistant")])
    assert await contents(store, begun.session.conversation_id) == ["kelp", "tide"]


async def test_a_user_without_special_rights_may_ask_for_the_history(
    url: str, by_hand: psycopg.Connection
) -> None:
    by_hand.execute("CREATE ROLE plain")
    try:
        by_hand.execute("SET ROLE plain")
        assert by_hand.execute(load("holdfast.store.postgres")["server_history"]).fetchone() is not None
    finally:
        by_hand.execute("RESET ROLE; DROP ROLE plain")


async def test_a_server_tells_its_history(opening: Opening) -> None:
    store = await opening()
    await new_node(store)
    system, _, timeline = str(writing(store).history).partition(" ")
    assert system.isdigit() and re.fullmatch("[0-9A-F]{8}", timeline)


async def test_a_group_that_waits_for_its_turn_to_number_events_stays_together(
    opening: Opening, by_hand: psycopg.Connection
) -> None:
    store = await opening()
    node = await new_node(store)
    gate = gated(store)
    begins: list[str] = []
    passing = gate.passing
    gate.passing = lambda name, backend: (begins.append(name), passing(name, backend))[1]  # type: ignore[method-assign,func-returns-value]
    by_hand.execute("SELECT pg_advisory_lock(1751478372, 'events'::regclass::oid::integer)")
    writes = asyncio.gather(*(begin(store, node, key=f"cli:{number}") for number in range(5)))
    while not (gate.backend and is_waiting(by_hand, gate.backend)):  # noqa: ASYNC110 - the server's to say
        await asyncio.sleep(0.01)
    await asyncio.sleep(2 * GROUP_LOCK_SECONDS)
    by_hand.execute("SELECT pg_advisory_unlock(1751478372, 'events'::regclass::oid::integer)")
    assert len(await writes) == 5
    assert begins.count("begin") <= 2  # the first may have gone ahead of the others


def is_waiting(by_hand: psycopg.Connection, backend: int) -> bool:
    row = by_hand.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (backend,)).fetchone()
    return row is not None and bool(row[0])


# --- connections that are lost or stand still
# ------------------------------------------------------------------


async def test_backends_that_are_killed_are_replaced_and_nothing_is_lost_or_doubled(
    opening: Opening, by_hand: psycopg.Connection
) -> None:
    store = await opening()
    node = await new_node(store)

    async def kill() -> None:
        for _ in range(8):
            await asyncio.sleep(0.05)
            by_hand.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    async def speak(name: int) -> int:
        said = 0
        while not killing.done():
            begun = await begin(store, node, f"kelp {said}", key=f"cli:{name}")
            await store.append(begun.lease, [to_message("step", "assistant")])
            await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
            said += 1
        return said

    killing = asyncio.create_task(kill())
    counts = await asyncio.gather(*(speak(name) for name in range(4)))
    await killing
    for name, count in enumerate(counts):
        place = await store.resolve(OWNER, Address(key=f"cli:{name}"))
        said = await contents(store, place.conversation.id)
        assert said == [text for number in range(count) for text in (f"kelp {number}", "step", "hi")]
    assert await store.check() == []


async def test_a_server_that_stands_still_is_left_for_a_new_connection(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.engine.ANSWER_SECONDS", 0.5)
    store = await opening()
    node = await new_node(store)
    begun = await begin(store, node, "kelp")
    stopped = writing(store).backend
    os.kill(stopped, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            assert await store.append(begun.lease, [to_message("tide", "assistant")]) == 2
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert await contents(store, begun.session.conversation_id) == ["kelp", "tide"]


async def test_who_stands_still_in_a_transaction_is_ended_by_the_server(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is stopped while it holds locks must not hold up the others for longer than a few
    seconds."""
    store = await opening()
    node = await new_node(store)
    begun = await begin(store, node, "kelp")
    monkeypatch.setattr(connections, "IDLE_SECONDS", 1)
    stopped = connections.connect(store._address)
    stopped.execute("BEGIN")
    stopped.execute("SELECT 1 FROM conversations FOR UPDATE")
    async with asyncio.timeout(60):
        assert await store.append(begun.lease, [to_message("tide", "assistant")]) == 2
    stopped.close()


async def test_an_unreachable_server_is_waited_for_then_named_and_comes_back(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening(patience=0.3)
    node = await new_node(store)
    session = (await say(store, node)).session

    def refuse() -> Pipeline:
        raise psycopg.OperationalError("connection refused")

    with monkeypatch.context() as away:
        away.setattr(store._writer, "_connect", refuse)
        away.setattr(store._readers, "_connect", refuse)
        writing(store).close()
        for wire in store._readers._opened:
            wire.close()
        with pytest.raises(StoreUnreachable, match="cannot be reached"):
            await store.set_title(OWNER, session.conversation_id, "Sea")
        with pytest.raises(StoreUnreachable, match="cannot be reached"):
            await store.session(OWNER, session.id)
        assert store.failure is None
    await store.set_title(OWNER, session.conversation_id, "Sea")
    assert (await store.session(OWNER, session.id)).title == "Sea"


# --- groups among locks ------------------------------------------------------------------------------------


async def test_one_that_waits_for_a_lock_does_not_hold_up_its_group(
    opening: Opening, by_hand: psycopg.Connection
) -> None:
    store = await opening()
    node = await new_node(store)
    held = (await say(store, node, key="cli:held")).session
    with by_hand.transaction():
        by_hand.execute("SELECT 1 FROM conversations WHERE id = %s FOR UPDATE", (held.conversation_id,))
        waiting = asyncio.create_task(store.begin_turn(request(node, "kelp", key="cli:held")))
        others = [asyncio.create_task(begin(store, node, key=f"cli:{number}")) for number in range(5)]
        async with asyncio.timeout(60):
            await asyncio.gather(*others)
            await begin(store, node, key="cli:later")
        assert not waiting.done()
    assert isinstance(await waiting, TurnBegun)


async def test_work_that_refuses_or_fails_leaves_its_group_alone(opening: Opening) -> None:
    store = await opening()
    node = await new_node(store)
    outcomes = await asyncio.gather(
        begin(store, node, "kelp", key="cli:a"),
        store.set_title(OWNER, "conv_unknown", "x"),
        store.set_title(OWNER, "conv_unknown", "nul \x00 byte"),
        store._write(lambda tx: tx.run("no such statement")),
        store._write(lambda tx: tx.one("insert_node", id=node.id, **_NODE)),
        begin(store, node, "tide", key="cli:b"),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "TurnBegun",
        "NotFound",
        "BadInput",
        "KeyError",
        "Conflict",
        "TurnBegun",
    ]
    assert len(await all_sessions(store)) == 2
    assert store.failure is None


_IDENTITY = {"host": "h", "boot_id": "b", "pid_ns": "p", "pid": 1, "pid_start": "1", "machine": None,
             "stale_ms": None, "version": None}  # fmt: skip
_NODE = {"kind": "library", "now": 1, **_IDENTITY}


async def test_one_that_stood_in_line_again_is_done_once(
    opening: Opening, by_hand: psycopg.Connection
) -> None:
    store = await opening()
    node = await new_node(store)
    begun = [await begin(store, node, "kelp", key=f"cli:{number}") for number in range(3)]
    with by_hand.transaction():
        by_hand.execute("SELECT 1 FROM conversations WHERE key = 'cli:0' FOR UPDATE")
        waiting = [
            asyncio.create_task(store.append(begun[0].lease, [to_message(f"tide {n}", "assistant")]))
            for n in range(3)
        ]
        await asyncio.sleep(0.5)
    busy = [
        store.append(begun[number % 2 + 1].lease, [to_message("ebb", "assistant")]) for number in range(20)
    ]
    await asyncio.gather(*busy)
    assert sorted(await asyncio.gather(*waiting)) == [2, 3, 4]
    said = await contents(store, begun[0].session.conversation_id)
    assert sorted(said) == ["kelp", "tide 0", "tide 1", "tide 2"]


async def test_only_the_node_that_holds_a_lease_appends_under_it(opening: Opening) -> None:
    store = await opening()
    node, other = await new_node(store), await new_node(store)
    begun = await begin(store, node, "kelp")
    outcomes = await asyncio.gather(
        store.append(replace(begun.lease, node_id=other.id), [to_message("not mine", "assistant")]),
        store.append(begun.lease, [to_message("tide", "assistant"), to_message("ebb", "assistant")]),
        store.append(replace(begun.lease, token=7), [to_message("too late", "assistant")]),
        store.append(begun.lease, [to_message("flow", "assistant")]),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes] == ["LeaseLost", "int", "LeaseLost", "int"]
    assert list(outcomes[1::2]) == [3, 4]
    assert await contents(store, begun.session.conversation_id) == ["kelp", "tide", "ebb", "flow"]


async def test_a_lock_that_is_kept_for_too_long_is_named(
    opening: Opening, by_hand: psycopg.Connection
) -> None:
    store = await opening(patience=0.5)
    begun = await begin(store, await new_node(store), "kelp")
    with by_hand.transaction():
        by_hand.execute("SELECT 1 FROM conversations FOR UPDATE")
        with pytest.raises(StoreBusy, match="Nothing was written"):
            await store.append(begun.lease, [to_message("tide", "assistant")])
    assert await store.append(begun.lease, [to_message("ebb", "assistant")]) == 2


async def test_events_are_numbered_in_the_order_in_which_they_can_be_seen(
    opening: Opening, by_hand: psycopg.Connection
) -> None:
    store = await opening()
    node = await new_node(store)
    known = (await all_events(store))[-1].id
    slow = load("holdfast.store.postgres")
    with by_hand.transaction():  # another node, slow to commit
        by_hand.execute(slow["event_lock"])
        by_hand.execute("INSERT INTO events (at, type, data) VALUES (1, 'node.joined', '{}')")
        speaking = asyncio.create_task(say(store, node))
        await asyncio.sleep(0.2)
        assert await store.events(owner=None, after=known) == []
    await speaking
    told = await store.events(owner=None, after=known)
    assert told[0].type == "node.joined"
    assert len(told) == 5


# --- gates -------------------------------------------------------------------------------------------------


async def refusal(url: str) -> str:
    with pytest.raises(StoreUnusable) as refused:
        await open_store(url)
    assert "s3cret" not in str(refused.value)
    return str(refused.value)


async def test_what_cannot_be_opened_says_why_and_what_to_do(
    url: str, new_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Is PostgreSQL running there" in await refusal("postgresql://ada:s3cret@127.0.0.1:1/sea")
    assert "createdb" in await refusal(re.sub(r"/test_\w+", "/no_such_database", url))
    assert "refused this user" in await refusal(url.replace("holdfast@", "nobody_known:s3cret@"))
    with monkeypatch.context() as newer:
        newer.setattr(connections, "OLDEST_SERVER", 99)
        assert "holdfast needs 99 or newer" in await refusal(url)
    empty = new_database(empty=True)
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS weak")
        connection.execute("CREATE ROLE weak LOGIN CONNECTION LIMIT 2")
    try:
        assert "permission denied" in await refusal(empty.replace("holdfast@", "weak@"))
        with psycopg.connect(empty, autocommit=True) as connection:
            connection.execute("ALTER ROLE weak CONNECTION LIMIT 0")
        assert "too many connections" in await refusal(empty.replace("holdfast@", "weak@"))
    finally:
        with psycopg.connect(empty, autocommit=True) as connection:
            connection.execute("DROP ROLE weak")
            assert connection.execute("SELECT to_regnamespace('holdfast')").fetchone() == (None,)


def test_a_wrong_password_is_named_without_it() -> None:
    error = psycopg.OperationalError('FATAL:  password authentication failed for user "ada"')
    assert "the password is wrong or missing" in str(cannot_open(error, "postgresql://ada@sea/holdfast"))


async def test_a_schema_of_another_program_is_left_alone(new_database: Callable[..., str]) -> None:
    empty = new_database(empty=True)
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA holdfast; CREATE TABLE holdfast.sessions (id int)")
    assert "tables of another program" in await refusal(empty)
    store = await open_store(f"{empty}&schema=agents")
    assert store.location.endswith("?schema=agents")
    await say(store, await new_node(store))
    await store.close()


@pytest.mark.parametrize("moved", ["the other's", "its own"])
async def test_a_transaction_pooler_is_refused(url: str, monkeypatch: pytest.MonkeyPatch, moved: str) -> None:
    """As pgbouncer shows itself: our backend is not the one we connected to, and others share it."""
    mine = [100] * (1 + connections.TURNS)
    answers = iter([*mine, 100] if moved == "the other's" else [*mine, 101, 102])
    monkeypatch.setattr(connections, "_backend", lambda connection: next(answers))
    assert "is a transaction pooler" in await refusal(url)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("tells_backends", [True, False])
async def test_a_transaction_pooler_that_takes_turns_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, size: int, tells_backends: bool
) -> None:
    """Each transaction gets the next of its connections that is free. Some poolers pass on the number of the
    backend that the first one had, as PostgreSQL itself does."""
    turn, busy = itertools.count(), set[int]()

    def next_backend(connection: psycopg.Connection) -> int:
        mine = connection.info.backend_pid if tells_backends else 100_000
        while (found := mine + next(turn) % size) in busy:
            pass
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            busy.add(found)
        return found

    monkeypatch.setattr(connections, "_backend", next_backend)
    assert "is a transaction pooler" in await refusal(url)


async def test_a_pooler_that_works_by_session_is_as_good_as_none(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([100] * (1 + connections.TURNS) + [101] + [100] * connections.TURNS)
    with monkeypatch.context() as pooled:
        pooled.setattr(connections, "_backend", lambda connection: next(answers))
        store = await open_store(url)
    await store.close()


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("postgresql://ada:s3cret@sea:5433/db", "postgresql://ada@sea:5433/db"),
        ("postgresql://sea/db?user=ada&password=s3cret", "postgresql://ada@sea/db"),
        ("postgresql://ada@[::1]:5433/db", "postgresql://ada@[::1]:5433/db"),
        ("postgres://ada@/db?host=/run/pg&schema=agents", "postgresql://ada@%2Frun%2Fpg/db?schema=agents"),
    ],
)
def test_a_location_never_shows_a_password(url: str, location: str) -> None:
    address = connections.DatabaseAddress.parse(url)
    assert address.location == location
    assert connections.DatabaseAddress.parse(location).location == location


@pytest.mark.parametrize(
    "url", ["postgresql://ada:s3cret@sea/db?schema=A-B", "postgresql://ada:s3cret@sea/db?x=1"]
)
def test_a_url_that_cannot_be_understood_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BadSetting) as refused:
        connections.DatabaseAddress.parse(url)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.DiskFull("no space left"), "StoreFull"),
        (psycopg.errors.LockNotAvailable("lock timeout"), "StoreBusy"),
        (psycopg.errors.QueryCanceled("statement timeout"), "StoreBusy"),
        (psycopg.errors.DeadlockDetected("deadlock"), "StoreBusy"),
        (psycopg.errors.UniqueViolation("there already"), "Conflict"),
        (psycopg.errors.RaiseException("never reopened"), "Conflict"),
        (psycopg.errors.ReadOnlySqlTransaction("standby"), "StoreUnreachable"),
        (psycopg.errors.TooManyConnections("full"), "StoreUnreachable"),
        (psycopg.errors.InsufficientPrivilege("denied"), "StoreFailed"),
        (psycopg.errors.UndefinedTable("gone"), "StoreFailed"),
        (ConnectionLost("cut"), "StoreUnreachable"),
    ],
)
def test_every_trouble_has_its_error(error: psycopg.Error, kind: str) -> None:
    assert type(translate(error, "postgresql://sea/db")).__name__ == kind


# --- schemas -----------------------------------------------------------------------------------------------


async def test_nodes_that_start_together_make_one_store(new_database: Callable[..., str]) -> None:
    empty = new_database(empty=True)
    stores = await asyncio.gather(*(open_store(empty) for _ in range(5)))
    with psycopg.connect(empty) as connection:
        rows = connection.execute("SELECT schema, oldest FROM holdfast.store").fetchall()
    assert rows == [(migrations.newest(), 14)]
    for store in stores:
        await store.close()


@contextmanager
def a_newer_holdfast(text: str) -> Iterator[None]:
    """A version that knows one migration more."""
    with pytest.MonkeyPatch.context() as newer:
        known = [*migrations.migrations(), (migrations.newest() + 1, text)]
        newer.setattr(migrations, "migrations", lambda: known)
        yield


async def test_the_version_before_runs_on_a_schema_that_only_added_something(opening: Opening) -> None:
    older = await opening()
    node = await new_node(older)
    with a_newer_holdfast("CREATE TABLE later (id TEXT);"):
        newer = await opening()
        await new_node(newer)
    session = (await say(older, node)).session
    assert (await newer.session(OWNER, session.id)).id == session.id
    await (await opening()).close()  # and it can be started


async def test_a_schema_that_breaks_with_the_past_stops_older_programs(opening: Opening) -> None:
    older = await opening()
    node = await new_node(older)
    number = migrations.newest()
    with a_newer_holdfast(f"-- oldest: {number + 1}\nALTER TABLE store ADD COLUMN later TEXT;"):
        await opening()
    with pytest.raises(StoreUpgraded, match="must be restarted"):
        await say(older, node)
    with pytest.raises(StoreUpgraded):
        await older.session(OWNER, "sess_any")
    with pytest.raises(StoreUnusable, match="Upgrade holdfast"):
        await opening()


async def test_a_migration_that_fails_changes_nothing(opening: Opening) -> None:
    with a_newer_holdfast("CREATE TABLE later (id TEXT); ALTER TABLE nowhere RENAME TO somewhere;"):
        with pytest.raises(StoreUnusable):
            await opening()
    store = await opening()
    await say(store, await new_node(store))


def test_no_statement_uses_the_clock_that_stands_still_in_a_transaction() -> None:
    for name, text in load("holdfast.store.postgres").items():
        assert not re.search(r"\b(now\(|current_timestamp|transaction_timestamp)", text, re.IGNORECASE), name


# --- the rest ----------------------------------------------------------------------------------------------


async def test_the_time_is_the_database_s_for_all_nodes(
    opening: Opening, by_hand: psycopg.Connection
) -> None:
    store = await opening()
    before = by_hand.execute("SELECT clock_timestamp()").fetchone()
    session = (await say(store, await new_node(store))).session
    now = store.now()
    after = by_hand.execute("SELECT clock_timestamp()").fetchone()
    assert before is not None and after is not None
    assert before[0] <= session.opened_at <= after[0]
    assert before[0] <= now <= after[0]


async def test_a_backup_is_left_to_postgresql_and_says_how(opening: Opening, tmp_path: Path) -> None:
    store = await opening()
    with pytest.raises(BadInput, match="pg_dump"):
        await store.backup(tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


async def test_a_forked_child_is_told_to_open_its_own(opening: Opening) -> None:
    store = await opening()
    node = await new_node(store)
    child = os.fork()
    if child == 0:
        try:
            asyncio.new_event_loop().run_until_complete(store.nodes())
        except StoreClosed:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    await say(store, node)


async def test_closing_does_not_wait_for_a_server_that_stands_still(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.writer.STOP_SECONDS", 0.3)
    monkeypatch.setattr("holdfast.store.postgres.readers.STOP_SECONDS", 0.3)
    store = await opening()
    node = await new_node(store)
    begun = await begin(store, node, "kelp")
    await store.nodes()
    stopped = [writing(store).backend, *(wire.backend for wire in store._readers._opened)]
    for backend in stopped:
        os.kill(backend, signal.SIGSTOP)
    try:
        asked = [
            asyncio.create_task(store.append(begun.lease, [to_message("tide", "assistant")])),
            *(asyncio.create_task(store.nodes()) for _ in range(4)),
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(60):
            await asyncio.to_thread(asyncio.run, store.close())
    finally:
        for backend in stopped:
            os.kill(backend, signal.SIGCONT)
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_message_with_more_words_than_the_index_can_hold_is_found_all_the_same(
    opening: Opening,
) -> None:
    store = await opening()
    node = await new_node(store)
    await begin(store, node, " ".join(f"word{number}" for number in range(60_000)), "kelp")
    for repaired in (False, True):
        for words, found in (("word59999", [1]), ('"word1 word2"', [1]), ("kelp", [2]), ("kelp word1", [])):
            hits = await store.search(OWNER, words)
            assert [hit.message.seq for hit in hits] == found, (words, repaired)
        await store.repair()
    assert await store.search("bob", "word1") == []


async def test_rows_that_must_not_change_do_not(opening: Opening, by_hand: psycopg.Connection) -> None:
    store = await opening()
    node = await new_node(store)
    session = (await say(store, node)).session
    await store.end_session(OWNER, session.id, "closed")
    for change in (
        "UPDATE sessions SET ended_at = NULL, end_reason = NULL, last_seq = NULL",
        "UPDATE messages SET role = 'system'",
        "UPDATE messages SET body = body || body",
    ):
        with pytest.raises(psycopg.errors.RaiseException):
            by_hand.execute(change)


async def test_a_clash_is_a_conflict_and_nothing_is_written(opening: Opening) -> None:
    store = await opening()
    node = await new_node(store)
    with pytest.raises(Conflict):
        await store._write(lambda tx: tx.run("insert_node", id=node.id, **_NODE))
    assert [each.id for each in await store.nodes()] == [node.id]


@pytest.mark.parametrize(
    ("code", "kind", "goes_on"),
    [
        ("22001", BadInput, True),
        ("54000", BadInput, True),
        ("0A000", StoreError, True),
        ("42804", StoreError, True),
        ("53400", StoreBusy, True),
        ("XX001", StoreFailed, False),
        ("58030", StoreFailed, False),
        ("26000", StoreFailed, False),
    ],
)
async def test_an_error_of_one_statement_is_its_callers_unless_the_server_cannot_be_trusted(
    opening: Opening, by_hand: psycopg.Connection, code: str, kind: type[Exception], goes_on: bool
) -> None:
    store = await opening()
    node = await new_node(store)
    ids = [(await say(store, node)).session.conversation_id for _ in range(3)]
    by_hand.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$;"
        "CREATE TRIGGER refuse BEFORE UPDATE OF title ON conversations "
        "FOR EACH ROW WHEN (NEW.title = 'bad') EXECUTE FUNCTION refuse()"
    )
    outcomes = await asyncio.gather(
        *(
            store.set_title(OWNER, id_, title)
            for id_, title in zip(ids, ["kelp", "bad", "tide"], strict=True)
        ),
        return_exceptions=True,
    )
    assert type(outcomes[1]) is kind
    if not goes_on:
        assert isinstance(store.failure, StoreFailed)
        return
    assert outcomes[::2] == [None, None] and store.failure is None
    await say(store, node)


# --- search ------------------------------------------------------------------------------------------------


async def test_no_word_of_the_index_is_shared_by_two_owners(
    opening: Opening, by_hand: psycopg.Connection
) -> None:
    """So a search, which asks for words of its owner only, costs what its owner has stored."""
    store = await opening()
    node = await new_node(store)
    for owner in (OWNER, "another"):
        await say(store, node, "kelp kelps and tide", "kelp noted", owner=owner)
    await store.repair()
    rows = by_hand.execute(
        "SELECT DISTINCT c.owner, w.lexeme FROM search s JOIN conversations c ON c.id = s.conversation, "
        "unnest(s.words) AS w"
    ).fetchall()
    mine, others = ({word for owner, word in rows if (owner == OWNER) is own} for own in (True, False))
    assert len(mine) >= 7
    assert not mine & others


async def test_a_statement_of_a_search_ends_at_its_deadline(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening()
    await say(store, await new_node(store), "kelp")
    await store.repair()
    endless = Statement(
        "endless", "SELECT pg_sleep(60) WHERE concat(:query, :scope, :owner, :below, :limit) <> ''"
    )
    real = transaction.named  # type: ignore[attr-defined]
    monkeypatch.setattr(
        transaction, "named", lambda name: endless if name == "indexed_messages" else real(name)
    )
    monkeypatch.setattr(search_terms, "SEARCH_SECONDS", 0.3)
    with pytest.raises(SearchTimeout):
        await store.search(OWNER, "kelp")
    monkeypatch.undo()
    assert len(await store.search(OWNER, "kelp")) == 1


async def test_a_search_of_an_index_far_behind_is_refused_and_found_later(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening()
    await begin(store, await new_node(store), *["kelp"] * 30)
    monkeypatch.setattr(search, "LONGEST_TAIL", 10)
    monkeypatch.setattr(search.Indexer, "index_once", lambda self: 0)
    with pytest.raises(SearchFailed, match="lacks at least 11 messages"):
        await store.search(OWNER, "kelp")
    monkeypatch.undo()
    assert len(await store.search(OWNER, "kelp", limit=50)) == 30


async def test_a_long_unindexed_tail_of_another_owner_refuses_no_search(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant adds thousands of messages with one request, faster than they are indexed."""
    store = await opening()
    node = await new_node(store)
    await say(store, node, "kelp")
    await store.repair()
    await say(store, node, "more kelp")
    await begin(store, node, *["kelp"] * 30, owner="mallory")
    monkeypatch.setattr(search, "LONGEST_TAIL", 10)
    monkeypatch.setattr(search, "PAGE", 5)
    monkeypatch.setattr(search.Indexer, "index_once", lambda self: 0)
    assert len(await store.search(OWNER, "kelp")) == 2, "what is indexed and what is not yet"
    assert await store.search("stranger", "kelp") == []
    for owner in ("mallory", None):
        with pytest.raises(SearchFailed, match="lacks at least 11 messages"):
            await store.search(owner, "kelp")


async def test_a_page_of_sessions_reads_only_its_own_rows_whatever_the_planner_believes(
    opening: Opening, url: str, by_hand: psycopg.Connection
) -> None:
    """Optional filters look selective to the planner: it once read all conversations for a page of 20."""
    store = await opening()
    by_hand.execute(
        "INSERT INTO conversations (id, owner, key, source, tip, created_at) "
        "SELECT 'conv_' || i, 'o', 'k' || i, 's', 'sess_' || i, i FROM generate_series(1, 5000) AS n (i)"
    )
    by_hand.execute(
        "INSERT INTO sessions (id, conversation, owner, ordinal, source, attached, opened_at, "
        "last_activity_at, first_seq, view) "
        "SELECT 'sess_' || i, 'conv_' || i, 'o', 1, 's', FALSE, i, i, 1, '[]' "
        "FROM generate_series(1, 5000) AS n (i)"
    )
    page = statement("sessions_of_owner").text.decode()
    given = {"owner": "'o'", "at": str(2**60), "id": "'z'", "limit": "21"}
    for analysed, newest in product((False, True), repeat=2):
        if analysed:
            by_hand.execute("VACUUM ANALYZE conversations, sessions")
        known = {**given, "newest": str(newest)}
        values = ", ".join(known.get(name, "NULL") for name in statement("sessions_of_owner").names)
        with connections.open_connection(connections.DatabaseAddress.parse(url)) as connection:
            connection.execute(f"PREPARE page AS {page}")
            plan = connection.execute(f"EXPLAIN (ANALYZE) EXECUTE page ({values})").fetchall()
        read = [float(found[1]) for line in plan if (found := re.search(r"actual .*rows=([\d.]+)", line[0]))]
        assert read and max(read) <= 21, "\n".join(line[0] for line in plan)
    await store.close()
