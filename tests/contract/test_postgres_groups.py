"""Turns that share a transaction on PostgreSQL: their statements are sent together, with the results of turns
that came one after the other.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.domain.quotas import Quotas
from holdfast.domain.turns import RequestKey, TurnBegun, TurnRepeated, TurnStatus, TurnWaits
from holdfast.errors import LeaseLost, QuotaExceeded
from holdfast.store.postgres.engine import PostgresStore, open_store
from holdfast.store.postgres.many import many, merge
from holdfast.store.postgres.pipeline import Asked, Pipeline, StatementResult
from holdfast.store.postgres.statements import statement
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


def test_the_form_for_many_of_each_statement_has_an_array_for_each_parameter() -> None:
    package = "holdfast.store.postgres"
    annotated = [name for name in load(package) if statement(name).keys]
    assert len(annotated) > 8
    for name in annotated:
        single, form = statement(name), many(statement(name))
        assert set(form.names) <= set(single.names), name
        assert all(oid in (1009, 1016, 1000, 1001) for oid in form.oids), name


def test_nothing_queued_is_nothing_merged() -> None:
    assert merge([]) == ([], {}, set())
