"""The SQLite engine's statements: their cost, and how they are committed in groups."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.flushes import FlushRules, FlushState
from holdfast.domain.nodes import Node
from holdfast.errors import HoldfastError, NotFound
from holdfast.store.annotations import notes
from holdfast.store.sqlite import connections, engine
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.sqlite.transaction import STATEMENTS, bindings_of
from holdfast.store.values import SessionFilter
from tests.contract.steps import (
    OWNER,
    POLICIES,
    Clock,
    begin,
    contents,
    ended,
    new_node,
    request,
    say,
    to_message,
)


@dataclass
class Meter:
    """Counts what all connections of a store run: statements, and the steps of SQLite's machine."""

    statements: list[str] = field(default_factory=list)
    steps: int = 0

    def note(self, event: dict[str, Any]) -> None:
        self.statements.append(event["sql"])
        self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def clear(self) -> None:
        self.statements.clear()
        self.steps = 0

    def count(self, statement: str) -> int:
        return len([sql for sql in self.statements if sql.startswith(statement)])


@pytest.fixture
async def metered(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[SQLiteStore, Meter]]:
    meter = Meter()
    connect = connections.connect

    def connect_metered(*arguments: Any, **options: Any) -> apsw.Connection:
        connection = connect(*arguments, **options)
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, meter.note)
        return connection

    monkeypatch.setattr(engine, "connect", connect_metered)
    store = await open_store(tmp_path / "store.db", clock=clock)
    yield store, meter
    assert await store.check() == []
    await store.close()


@pytest.fixture
def store(metered: tuple[SQLiteStore, Meter]) -> SQLiteStore:
    return metered[0]


@pytest.fixture
def meter(metered: tuple[SQLiteStore, Meter]) -> Meter:
    return metered[1]


@pytest.fixture
async def node(store: SQLiteStore) -> Node:
    return await new_node(store)


# --- plans -----------------------------------------------------------------------------------------

NOTES = notes("holdfast.store.sqlite")
# Tables with few rows, whatever is stored: SQLite's own, and what operators make by hand.
SMALL_TABLES = {
    "api_keys",
    "connectors",
    "nodes",
    "policies",
    "pragma_foreign_key_list",
    "pragma_table_info",
    "q",  # queued_turns, in a join: what waits in queues now
    "queued_turns",
    "sqlite_schema",
    "sqlite_sequence",
    "store",
}
# Indexes that hold only what is going on right now: walking one costs what there is to be done.
SMALL_INDEXES = {
    "conversations_held",
    "flush_attempts_by_age",
    "flushes_dead",
    "flushes_running",
    "nodes_unsettled",
    "processes_unended",
    "sessions_attached",
    "sessions_due",
    "turns_running",
}


def plan_of(connection: apsw.Connection, statement: str) -> list[str]:
    names = set(re.findall(r":(\w+)", statement))
    values: Any = dict.fromkeys(names) if names else (None,) * statement.count("?")
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


def walks_a_table(step: str, statement: str) -> bool:
    if not step.startswith("SCAN ") or step.startswith(("SCAN (", "SCAN CONSTANT")):  # a subquery's own rows
        return False
    if re.search(rf"\) (AS )?{step.split()[1]}\b", statement):  # the same, with a name
        return False
    index = re.search(r"USING (?:COVERING )?INDEX (\w+)", step)
    return index is None or index[1] not in SMALL_INDEXES


@pytest.fixture
async def plans(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[apsw.Connection]:
    path = tmp_path_factory.getbasetemp() / "plans.db"
    if not path.exists():
        await (await open_store(path)).close()
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    yield connection
    connection.close()


def walks_of(connection: apsw.Connection, name: str) -> list[str]:
    statement = STATEMENTS[name]
    return [step for step in plan_of(connection, statement) if walks_a_table(step, statement)]


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - {name for name in NOTES if NOTES[name].scans}))
async def test_no_statement_of_daily_life_walks_a_table(plans: apsw.Connection, name: str) -> None:
    assert walks_of(plans, name) == []


@pytest.mark.parametrize(
    "name", sorted(name for name in NOTES if NOTES[name].scans and "{" not in STATEMENTS[name])
)
async def test_a_statement_walks_what_its_annotation_says(plans: apsw.Connection, name: str) -> None:
    walks = walks_of(plans, name)
    assert walks or NOTES[name].scans == "whole tables"  # some of these by a condition that most rows meet
    if NOTES[name].scans == "one end":
        assert "LIMIT" in STATEMENTS[name]
    elif NOTES[name].scans != "whole tables":
        large = [step for step in walks if step.split()[1] not in SMALL_TABLES]
        assert all(NOTES[name].scans == "small indexes" and " INDEX " in step for step in large)


@pytest.mark.parametrize(
    "name",
    [
        "sessions_of_owner",
        "sessions_of_all",
        "conversations_of_owner",
        "conversations_of_all",
        "shown_forward",
        "shown_backward",
        "events_after",
        "events_of_conversation",
    ],
)
async def test_a_page_is_read_in_its_order_without_sorting(tmp_path: Path, name: str) -> None:
    await (await open_store(tmp_path / "store.db")).close()
    connection = apsw.Connection(str(tmp_path / "store.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert not [step for step in plan_of(connection, STATEMENTS[name]) if "TEMP B-TREE" in step]
    connection.close()


@pytest.mark.parametrize(
    ("name", "searches"),
    [
        ("due_sessions", ["sessions_due (dated_by=? AND <expr><?)"]),
        (
            "dated_by_others",
            ["sessions_dated (dated_by=?)", "sessions_dated (dated_by<?)", "sessions_dated (dated_by>?)"],
        ),
        ("notices_to_send", ["notices_to_send (send_at<?)"]),
        ("claim_notices", ["notices_to_send (send_at<?)"]),
    ],
)
async def test_what_is_due_is_searched_for_by_its_date(
    tmp_path: Path, name: str, searches: list[str]
) -> None:
    await (await open_store(tmp_path / "store.db")).close()
    connection = apsw.Connection(str(tmp_path / "store.db"), flags=apsw.SQLITE_OPEN_READONLY)
    steps = plan_of(connection, STATEMENTS[name])
    connection.close()
    for wanted in searches:
        assert [step for step in steps if re.search(rf"SEARCH .*INDEX {re.escape(wanted)}", step)], steps
    assert not [step for step in steps if "TEMP B-TREE" in step and name == "due_sessions"]


# --- costs -----------------------------------------------------------------------------------------


async def test_resolving_a_stale_id_costs_the_same_for_a_line_of_2_and_of_200(
    store: SQLiteStore, meter: Meter, node: Node
) -> None:
    first: dict[int, str] = {}
    for length in (2, 200):
        first[length] = (await ended(store, node, "new", key=f"line of {length}")).id
        for _ in range(length - 2):
            tip = await store.open_session(OWNER, Address(key=f"line of {length}"), node.id)
            await store.end_session(OWNER, tip.id, "new")
        await store.open_session(OWNER, Address(key=f"line of {length}"), node.id)
    costs = {}
    for length, stale in first.items():
        place = await store.resolve(OWNER, Address(id=stale))
        assert place.tip.ordinal == length
        meter.clear()
        await store.resolve(OWNER, Address(id=stale))
        resolving = (len(meter.statements), meter.steps)
        meter.clear()
        await say(store, node, id=stale)
        costs[length] = (resolving, len(meter.statements), meter.steps)
    assert costs[2] == costs[200]


async def test_a_page_of_sessions_and_a_sweep_cost_what_they_tell_not_what_is_stored(
    store: SQLiteStore, meter: Meter, node: Node
) -> None:
    costs = []
    for number in (30, 300):
        await asyncio.gather(*(store.open_session(OWNER, Address(), node.id) for _ in range(number)))
        meter.clear()
        await store.sessions(SessionFilter(OWNER), limit=10)
        await store.sessions(SessionFilter(None), limit=10)
        await store.leftovers()
        await store.nodes()
        last = (await store.events(owner=OWNER, limit=3))[-1].id
        await store.events(owner=OWNER, after=last, limit=3)
        costs.append((len(meter.statements), meter.steps))
    assert costs[0] == costs[1]


async def test_resetting_costs_what_is_due_not_what_is_stored(
    store: SQLiteStore, meter: Meter, node: Node, clock: Clock
) -> None:
    store._policies = POLICIES
    costs = []
    for number in (30, 300):
        await asyncio.gather(
            *(store.open_session(OWNER, Address(), node.id, source="daily") for _ in range(number))
        )
        due = [await store.open_session(OWNER, Address(), node.id, source="idle") for _ in range(5)]
        clock.move(hours=2)
        meter.clear()
        assert sorted(await store.due_sessions()) == sorted(session.id for session in due)
        assert await store.date_sessions() == 0
        for session in due:
            await store.reset_session(session.id)
        costs.append((len(meter.statements), meter.steps))
    (few, few_steps), (many, many_steps) = costs
    assert few == many
    assert abs(many_steps - few_steps) < 0.01 * few_steps, "ten times as many are open"


async def test_flushing_costs_what_waits_not_what_is_done(
    store: SQLiteStore, meter: Meter, node: Node, clock: Clock
) -> None:
    """A server that starts over long-finished sessions finds nothing to do, and looks at none of them."""
    store._flushing = FlushRules(2)
    costs = []
    for number in (10, 1000):
        await finish(store, node, number)
        while claimed := await store.claim_flushes(node.id, together=100, per_minute=10_000):
            await asyncio.gather(*(store.finish_flush(each, "kept") for each in claimed))
        clock.move(hours=24)
        await store.claim_flushes(node.id, together=1, per_minute=1)  # forgets the attempts of yesterday
        meter.clear()
        assert not await store.flushes_due()
        assert (await store.flush_figures()).pending == 0
        assert await store.claim_flushes(node.id, together=100, per_minute=100) == []
        for state in (FlushState.PENDING, FlushState.RUNNING, FlushState.DEAD):
            assert (await store.flushes(None, state=state)).items == []
        assert await store.retry_flushes(None) == 0
        costs.append((len(meter.statements), meter.steps))
    assert costs[0] == costs[1], "a hundred times as many are done"


async def finish(store: SQLiteStore, node: Node, number: int) -> None:
    """So many conversations whose only session has ended and is to be flushed."""
    for _ in range(0, number, 50):
        spoken = await asyncio.gather(*(say(store, node) for _ in range(min(50, number))))
        await asyncio.gather(*(store.end_session(None, one.session.id, "idle") for one in spoken))


# --- commits ---------------------------------------------------------------------------------------


async def all_in_one_group(store: SQLiteStore, *writes: Any) -> list[Any]:
    """Let these writes wait together behind one that takes its time, so that they share a transaction."""
    begun, gate = threading.Event(), threading.Event()

    def take_time(connection: apsw.Connection) -> None:
        begun.set()
        gate.wait(10)

    slow = asyncio.create_task(store._writer.submit(take_time))
    await asyncio.to_thread(begun.wait, 10)
    tasks = [asyncio.create_task(write) for write in writes]
    await asyncio.sleep(0)
    gate.set()
    await slow
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_writes_that_wait_together_share_one_commit(
    store: SQLiteStore, meter: Meter, node: Node
) -> None:
    begun = [await begin(store, node, str(number)) for number in range(20)]
    meter.clear()
    told = await all_in_one_group(
        store, *(store.append(one.lease, [to_message("more", "assistant")]) for one in begun)
    )
    assert told == [2] * 20
    assert meter.count("COMMIT") == 2  # the one they waited behind, and theirs


async def test_one_that_is_refused_leaves_its_group_alone(
    store: SQLiteStore, meter: Meter, node: Node
) -> None:
    running = await begin(store, node)
    meter.clear()
    told = await all_in_one_group(
        store,
        store.append(running.lease, [to_message("one", "assistant")]),
        store.begin_turn(request(node, id="sess_unknown")),
        store.append(running.lease, [to_message("two", "assistant")]),
    )
    assert (told[0], type(told[1]), told[2]) == (2, NotFound, 3)
    assert meter.count("COMMIT") == 2
    assert meter.count("ROLLBACK") == 0
    assert await contents(store, running.session.conversation_id) == ["hello", "one", "two"]


async def test_one_that_fails_after_it_has_written_harms_nobody(
    store: SQLiteStore, meter: Meter, node: Node
) -> None:
    running = await begin(store, node)

    def write_and_break(connection: apsw.Connection) -> None:
        connection.execute("UPDATE conversations SET title = 'half-written'")
        raise ZeroDivisionError

    def write_and_refuse(connection: apsw.Connection) -> None:
        connection.execute("UPDATE conversations SET title = 'half-written'")
        raise HoldfastError("changed its mind too late")

    def write_and_violate(connection: apsw.Connection) -> None:
        connection.execute("UPDATE conversations SET title = 'half-written'")
        connection.execute("INSERT INTO store (id, created_at) SELECT id, created_at FROM store")

    def write_and_roll_back(connection: apsw.Connection) -> None:
        connection.execute("UPDATE conversations SET title = 'half-written'")
        connection.execute("INSERT OR ROLLBACK INTO store (id, created_at) SELECT id, created_at FROM store")

    bad = [write_and_break, write_and_refuse, write_and_violate, write_and_roll_back]
    writes: list[Awaitable[Any]] = []
    for number, work in enumerate(bad):
        writes.append(store.append(running.lease, [to_message(str(number), "assistant")]))
        writes.append(store._writer.submit(work))
    told = await all_in_one_group(store, *writes)
    assert told[::2] == [2, 3, 4, 5]
    assert all(isinstance(outcome, Exception) for outcome in told[1::2])
    assert await contents(store, running.session.conversation_id) == ["hello", "0", "1", "2", "3"]
    assert (await store.session(OWNER, running.session.id)).title is None
    await store.commit_reply(running.lease)


async def test_a_caller_that_goes_away_does_not_undo_its_write(store: SQLiteStore, node: Node) -> None:
    running = await begin(store, node)
    write = asyncio.create_task(store.append(running.lease, [to_message("said", "assistant")]))
    await asyncio.sleep(0)
    write.cancel()
    assert await store.append(running.lease, [to_message("after", "assistant")]) == 3
    assert await contents(store, running.session.conversation_id) == ["hello", "said", "after"]


async def test_writes_are_on_disk_in_full_before_they_are_acknowledged(store: SQLiteStore) -> None:
    synchronous = await store._writer.submit(lambda c: c.execute("PRAGMA synchronous").get)
    foreign_keys = await store._writer.submit(lambda c: c.execute("PRAGMA foreign_keys").get)
    assert (synchronous, foreign_keys) == (2, 1)


async def test_values_are_bound_in_the_order_in_which_sqlite_numbers_the_parameters(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await (await open_store(path)).close()
    connection = connections.connect(path)
    several = list[str]()
    for name, text in STATEMENTS.items():
        if "{" in text:  # filled in by its caller
            continue
        info = apsw.ext.query_info(connection, text)
        if info.query_remaining is not None:
            several.append(name)
            assert bindings_of(text)({"a": 1}) == {"a": 1}, name
        elif None not in info.bindings_names:  # else it is always bound by position
            values = {each: f"value of {each}" for each in reversed(info.bindings_names) if each is not None}
            in_order = tuple(f"value of {each}" for each in info.bindings_names)
            assert tuple(bindings_of(text)(values)) == in_order, name
    connection.close()
    assert several, "no statement shows that several in one text are bound by name"
