"""Turns that share a transaction on PostgreSQL: their statements are sent together, with the results of turns
that came one after the other.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.domain.checkpoints import CheckpointWrite, NewCheckpoint, ValuePart
from holdfast.domain.conversations import Address
from holdfast.domain.items import Item, PutItem
from holdfast.domain.quotas import Quotas
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.session_messages import Named
from holdfast.domain.turns import TurnBegun, TurnRepeated, TurnStatus, TurnWaits
from holdfast.errors import BadInput, LeaseLost, QuotaExceeded
from holdfast.store.postgres.connections import ANSWER_SECONDS, DatabaseAddress, connect
from holdfast.store.postgres.engine import PostgresStore, open_store
from holdfast.store.postgres.many import many, merge
from holdfast.store.postgres.pipeline import Asked, Pipeline, StatementResult
from holdfast.store.postgres.statements import Statement, statement
from holdfast.store.postgres.transaction import PostgresTransaction
from holdfast.store.postgres.writer import PostgresWriter
from holdfast.store.queries import load
from holdfast.store.transaction import Transaction
from tests.contract.steps import (
    OWNER,
    all_events,
    begin,
    contents,
    limit,
    messages,
    new_node,
    request,
    say,
    to_message,
)

pytestmark = pytest.mark.postgres


@pytest.fixture
async def store(new_database: Callable[..., str]) -> AsyncIterator[PostgresStore]:
    store = await open_store(new_database())
    yield store
    await store.close()


@asynccontextmanager
async def one_group(store: PostgresStore) -> AsyncIterator[Callable[..., asyncio.Task[Any]]]:
    """What is started in this block, by the function it gives, is one group of the writer."""
    entered, leave = threading.Event(), threading.Event()

    def hold(tx: Transaction) -> None:
        entered.set()
        leave.wait(60)

    holding = asyncio.create_task(store._write(hold))
    await asyncio.to_thread(entered.wait, 60)
    started: list[asyncio.Task[Any]] = []

    def start(work: Awaitable[Any]) -> asyncio.Task[Any]:
        async def run() -> Any:
            return await work

        started.append(asyncio.create_task(run()))
        return started[-1]

    try:
        yield start
        while len(store._writer._queue) < len(started):
            await asyncio.to_thread(lambda: None)
    finally:
        leave.set()
    await holding
    await asyncio.gather(*started, return_exceptions=True)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The batches that writers send, as names of statements."""
    batches: list[list[str]] = []
    real = Pipeline.exchange

    def exchange(self: Pipeline, asked: list[Asked]) -> list[StatementResult]:
        if threading.current_thread().name == "holdfast-writer":
            batches.append([each.name.decode() for each, _ in asked])
        return real(self, asked)

    monkeypatch.setattr(Pipeline, "exchange", exchange)
    return batches


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that writers have tried."""
    sizes: list[int] = []
    real = PostgresWriter._try

    def attempt(
        self: PostgresWriter, group: list[Any], *arguments: Any, **named: Any
    ) -> BaseException | None:
        sizes.append(len(group))
        return real(self, group, *arguments, **named)

    monkeypatch.setattr(PostgresWriter, "_try", attempt)
    return sizes


async def test_many_turns_in_one_group_take_as_many_round_trips_as_a_few(
    store: PostgresStore, sent: list[list[str]]
) -> None:
    node = await new_node(store)
    taken: dict[int, tuple[int, int]] = {}
    for count in (3, 30):
        keys = [f"cli:{count}:{number}" for number in range(count)]
        for key in keys:
            await say(store, node, "before", "reply", key=key)
        sent.clear()
        async with one_group(store) as start:
            begun = [start(begin(store, node, "hello", "and more", key=key)) for key in keys]
        first = len(sent)
        turns = [task.result() for task in begun]
        async with one_group(store) as start:
            for turn in turns:
                start(store.commit_reply(turn.lease, [to_message("reply", "assistant")], answer=b"{}"))
        taken[count] = first, len(sent) - first
        for key, turn in zip(keys, turns, strict=True):
            conversation_id = turn.session.conversation_id
            assert await contents(store, conversation_id) == ["before", "reply", "hello", "and more", "reply"]
            assert [each.seq for each in await messages(store, conversation_id)] == [1, 2, 3, 4, 5]
            found = await store.turn(OWNER, turn.turn.id)
            assert found.status == "completed"
            assert (await store.resolve(OWNER, request(node, key=key).address)).conversation.holder is None
    assert taken[3] == taken[30]


async def test_a_group_of_turns_leaves_what_the_same_turns_leave_one_by_one(store: PostgresStore) -> None:
    node = await new_node(store)

    async def turns(name: str, *, together: bool) -> list[Any]:
        keys = [f"{name}:{number}" for number in range(5)]
        for key in keys[1:]:  # the first conversation is new
            await say(store, node, "before", "reply", key=key)
        asked = [
            store.begin_turn(
                request(
                    node,
                    f"hello {number}",
                    key=key,
                    model="m" if number % 2 else None,
                    request_key=RequestKey("chat", key, b"0" * 32) if number else None,
                )
            )
            for number, key in enumerate(keys)
        ]
        if together:
            async with one_group(store) as start:
                tasks = [start(each) for each in asked]
            begun = [task.result() for task in tasks]
        else:
            begun = [await each for each in asked]
        replies = [
            store.commit_reply(turn.lease, [to_message("fine", "assistant")], usage={"input_tokens": 3})
            for turn in begun
        ]
        if together:
            async with one_group(store) as start:
                for each in replies:
                    start(each)
        else:
            for each in replies:
                await each
        left = []
        for turn in begun:
            assert isinstance(turn, TurnBegun)
            session = await store.session(OWNER, turn.session.id)
            found = await store.turn(OWNER, turn.turn.id)
            left.append(
                (
                    await contents(store, session.conversation_id),
                    (session.model, session.input_tokens, session.last_seq),
                    (found.status, found.first_seq, found.model, found.usage, found.attempt),
                    turn.lease.token,
                    [
                        event.type
                        for event in await all_events(store)
                        if event.conversation_id == session.conversation_id
                    ],
                )
            )
        return left

    assert await turns("together", together=True) == await turns("apart", together=False)


async def test_two_turns_of_one_conversation_in_a_group_are_one_turn_and_one_that_waits(
    store: PostgresStore,
) -> None:
    node = await new_node(store)
    for key in ("cli:a", "cli:b"):
        await say(store, node, "before", "reply", key=key)
    session = (await store.resolve(OWNER, request(node, key="cli:a").address)).tip
    async with one_group(store) as start:
        tasks = [
            start(store.begin_turn(request(node, "one", key="cli:a"))),
            start(store.begin_turn(request(node, "two", id=session.id))),
            start(store.begin_turn(request(node, "three", key="cli:b"))),
        ]
    outcomes = [task.result() for task in tasks]
    assert [type(outcome) for outcome in outcomes] == [TurnBegun, TurnWaits, TurnBegun]
    assert await contents(store, session.conversation_id) == ["before", "reply", "one"]


async def test_a_request_sent_twice_in_a_group_is_one_turn(store: PostgresStore) -> None:
    node = await new_node(store)
    await say(store, node, "before", "reply", key="cli:a")
    key = RequestKey("chat", "the same", b"0" * 32)
    async with one_group(store) as start:
        tasks = [
            start(store.begin_turn(request(node, "hello", key="cli:a", request_key=key))) for _ in range(2)
        ]
    first, second = (task.result() for task in tasks)
    assert isinstance(first, TurnBegun)
    assert isinstance(second, TurnRepeated)
    assert second.turn.id == first.turn.id


async def test_an_owner_s_limit_is_checked_in_a_group_of_new_conversations(store: PostgresStore) -> None:
    node = await new_node(store)
    limit(store, Quotas(owner_conversations=1))
    async with one_group(store) as start:
        tasks = [start(store.begin_turn(request(node, "hello"))) for _ in range(3)]
    assert [type(task.exception()) for task in tasks] == [type(None), QuotaExceeded, QuotaExceeded]


async def test_a_lost_lease_in_a_group_affects_no_other_commit(store: PostgresStore) -> None:
    node = await new_node(store)
    begun = [await begin(store, node, "hello", key=f"cli:{number}") for number in range(3)]
    await store.cancel_turn(OWNER, begun[1].turn.id, TurnStatus.CANCELLED, "asked to")
    async with one_group(store) as start:
        tasks = [start(store.commit_reply(each.lease, [to_message("reply", "assistant")])) for each in begun]
    assert [type(task.exception()) for task in tasks] == [type(None), LeaseLost, type(None)]
    assert await contents(store, begun[0].session.conversation_id) == ["hello", "reply"]
    assert "reply" not in await contents(store, begun[1].session.conversation_id)


async def test_a_notice_is_given_to_its_turn_though_the_group_assumed_that_there_is_none(
    store: PostgresStore, tries: list[int]
) -> None:
    node = await new_node(store)
    begun = [await say(store, node, "before", "reply", key=f"cli:{number}") for number in range(4)]
    told = begun[2].session
    await store.add_notice(OWNER, told.conversation_id, "reset", "something happened")
    tries.clear()
    async with one_group(store) as start:
        tasks = [start(begin(store, node, "hello", key=f"cli:{number}")) for number in range(4)]
    texts = [[notice.text for notice in task.result().notices] for task in tasks]
    assert texts == [[], [], ["something happened"], []]
    assert tries.count(4) == 2, "once as assumed, once more without the assumption, and not one by one"
    assert tries.count(1) <= 1
    async with one_group(store) as start:
        for task in tasks:
            start(store.commit_reply(task.result().lease, [to_message("reply", "assistant")]))
    assert (await begin(store, node, "again", key="cli:2")).notices == ()


async def test_what_is_stored_already_is_not_refused_because_the_group_assumed_that_it_is_new(
    store: PostgresStore,
) -> None:
    node = await new_node(store)
    for key in ("a", "b"):
        await say(store, node, "before", "reply", key=key)
    conversations = [(await store.resolve(OWNER, Address(key=key))).conversation.id for key in ("a", "b")]
    known = [Named(to_message("step"), "1")]
    for each in conversations:
        assert await store.append_named(OWNER, each, node.id, known) == 1
    limit(store, Quotas(conversation_bytes=1))
    async with one_group(store) as start:
        again = [start(store.append_named(OWNER, each, node.id, known)) for each in conversations]
    assert [task.result() for task in again] == [0, 0]
    async with one_group(store) as start:
        new = [
            start(store.append_named(OWNER, each, node.id, [Named(known[0].message, "2")]))
            for each in conversations
        ]
    assert [type(task.exception()) for task in new] == [QuotaExceeded, QuotaExceeded]


def test_the_form_for_many_of_each_statement_has_an_array_for_each_parameter() -> None:
    package = "holdfast.store.postgres"
    annotated = [name for name in load(package) if statement(name).keys]
    assert len(annotated) > 8
    for name in annotated:
        single, form = statement(name), many(statement(name))
        assert set(form.names) <= set(single.names), name
        assert all(oid in (1009, 1016, 1000, 1001) for oid in form.oids), name


async def test_a_value_that_cannot_be_stored_affects_no_other_turn_of_its_group(store: PostgresStore) -> None:
    node = await new_node(store)
    for number in range(4):
        await say(store, node, "before", "reply", key=f"cli:{number}")
    models = ["m", "a\0b", "lone \ud800", "größer"]
    async with one_group(store) as start:
        tasks = [
            start(store.begin_turn(request(node, "hello", key=f"cli:{number}", model=model)))
            for number, model in enumerate(models)
        ]
    assert [type(task.exception()) for task in tasks] == [type(None), BadInput, BadInput, type(None)]
    begun = [tasks[each].result().turn.id for each in (0, 3)]
    assert [(await store.turn(OWNER, each)).model for each in begun] == ["m", "größer"]
    place = await store.resolve(OWNER, request(node, key="cli:1").address)
    assert place.conversation.holder is None
    assert await contents(store, place.conversation.id) == ["before", "reply"]


@pytest.mark.parametrize(
    "columns",
    [
        ([], [], [], []),
        ([""], [0], [False], [b""]),
        (["one", "two"], [1, -(2**63)], [True, False], [b"\0\1", b"12"]),
        (["größer", "", "日本"], [2**63 - 1, 7, 7], [True, True, True], [b"", b"\xff" * 3000, b"x"]),
        ([None, "a", None], [None, 1, None], [None, True, None], [None, b"a", None]),
        ([None, None], [None, None], [None, None], [None, None]),
    ],
)
def test_arrays_arrive_as_they_were_sent(
    new_database: Callable[..., str], columns: tuple[list[Any], ...]
) -> None:
    text = "SELECT :texts::text[], :numbers::bigint[], :flags::boolean[], :bodies::bytea[]"
    wire = Pipeline(connect(DatabaseAddress.parse(new_database())), ANSWER_SECONDS)
    try:
        given = dict(zip(("texts", "numbers", "flags", "bodies"), columns, strict=True))
        assert wire.ask(Statement("arrays", text), **given) == [columns]
    finally:
        wire.close()


async def test_the_server_accepts_the_form_for_many_of_each_statement(store: PostgresStore) -> None:
    """A form that it refused would only be slow: the group is rolled back and its jobs are run alone."""
    package = "holdfast.store.postgres"
    annotated = [statement(name) for name in load(package) if statement(name).keys]

    def prepare_all(tx: Transaction) -> None:
        assert isinstance(tx, PostgresTransaction)
        for single in annotated:
            form = many(single)
            tx._changes.wire.exchange([(form, dict.fromkeys(form.names))])

    await store._read(prepare_all)


async def test_many_steps_of_graphs_in_one_group_take_as_many_round_trips_as_a_few(
    store: PostgresStore, sent: list[list[str]], tries: list[int]
) -> None:
    node = await new_node(store)

    async def put(key: str, step: int) -> bool:
        segments = '{"channel":["json",[["p0",0,1]]]}'
        base = (f"{step - 1}", segments) if step else None
        new = NewCheckpoint(
            "", f"{step}", None, None, "json", "{}", b"state", segments, (ValuePart(f"p{step}", b"x"),), base
        )
        named = Named(to_message(f"step {step}"), f"{step}")
        return await store.put_checkpoint(OWNER, key, "langgraph", node.id, new, [named])

    async def write(key: str) -> None:
        done = CheckpointWrite("task", 0, "done", "", "json", b"1")
        await store.put_checkpoint_writes(OWNER, key, "langgraph", "", "1", [done])

    taken: dict[int, tuple[int, int]] = {}
    for count in (3, 30):
        keys = [f"langgraph:{count}:{number}" for number in range(count)]
        for key in keys:
            await put(key, 0)
        sent.clear()
        tries.clear()
        async with one_group(store) as start:
            stored = [start(put(key, 1)) for key in keys]
        assert all(task.result() for task in stored)
        first = len(sent)
        async with one_group(store) as start:
            for key in keys:
                start(write(key))
        assert tries == [1, count, 1, count]
        taken[count] = first, len(sent) - first
        for key in keys:
            found = await store.checkpoint(OWNER, key, "", None)
            assert found is not None
            checkpoint, writes = found
            assert (checkpoint.id, [each.body for each in writes]) == ("1", [b"1"])
            assert await contents(store, checkpoint.conversation_id) == ["step 0", "step 1"]
    assert taken[3] == taken[30]
    assert await store.check() == []


async def test_many_events_with_state_in_one_group_take_as_many_round_trips_as_a_few(
    store: PostgresStore, sent: list[list[str]], tries: list[int]
) -> None:
    """The state grows with each event, and the size of a conversation is limited."""
    node = await new_node(store)
    limit(store, Quotas(conversation_bytes=1_000_000))

    async def append(conversation_id: str, name: str) -> int:
        def count(found: Sequence[Item | None]) -> list[PutItem]:
            before = found[0].value if found[0] else ""
            return [PutItem("adk", "app", name, f"{before}1", conversation_id=conversation_id)]

        named = [Named(to_message("event"), f"{len(sent)}")]
        place = ("adk", "app", name)
        return await store.append_with_items(OWNER, conversation_id, node.id, named, [place], count)

    taken: dict[int, int] = {}
    for number in (3, 30):
        opened = [
            await store.open_session(OWNER, Address(key=f"k{number}:{n}"), node.id) for n in range(number)
        ]
        for session in opened:
            await append(session.conversation_id, session.id)
        sent.clear()
        tries.clear()
        async with one_group(store) as start:
            stored = [start(append(session.conversation_id, session.id)) for session in opened]
        assert all(task.result() == 1 for task in stored)
        assert tries == [1, number]
        taken[number] = len(sent)
        for session in opened:
            found = await store.item(OWNER, "adk", "app", session.id)
            assert found is not None and found.value == "11"
    assert taken[3] == taken[30]
    # Conversations that share an item read it one after the other.
    async with one_group(store) as start:
        for session in opened:
            start(append(session.conversation_id, "shared"))
    found = await store.item(OWNER, "adk", "app", "shared")
    assert found is not None and found.value == "1" * 30
    assert await store.check() == []


async def test_a_group_that_fails_by_a_mistake_is_logged_and_its_writes_are_kept(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = await new_node(store)
    work = PostgresWriter._work

    def mistaken(self: PostgresWriter, group: list[Any], *arguments: Any) -> None:
        if len(group) > 1:
            raise KeyError("a mistake")
        work(self, group, *arguments)

    monkeypatch.setattr(PostgresWriter, "_work", mistaken)
    async with one_group(store) as start:
        turns = [start(begin(store, node, f"turn {number}")) for number in range(2)]
    for turn in turns:
        assert isinstance(turn.result(), TurnBegun)
    (line,) = [each for each in caplog.messages if "one by one" in each]
    assert "2 writes failed (KeyError" in line
    assert "a mistake" in caplog.text


def test_nothing_queued_is_nothing_merged() -> None:
    assert merge([]) == []
