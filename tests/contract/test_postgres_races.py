"""Races on PostgreSQL, each forced: one transaction is stopped before a statement while another runs through.

A decision that was made before a lock was taken must be made again under it.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import psycopg
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.turns import TurnBegun, TurnStatus, TurnWaits
from holdfast.errors import NotFound
from holdfast.store.postgres.engine import PostgresStore, open_store
from tests.contract.steps import OWNER, begin, contents, context_of, new_node, request, say, to_message
from tests.postgres_gate import Gate, Interleaving, after, before, gated, patient_locks

pytestmark = pytest.mark.postgres


class Two:
    """Two nodes with a store each, and a gate before each writer."""

    def __init__(self, stores: list[PostgresStore], nodes: list[Node], gates: list[Gate], url: str) -> None:
        (self.a, self.b), (self.node_a, self.node_b) = stores, nodes
        self.gate_a, self.gate_b = gates
        self.interleaving = Interleaving(url)


@pytest.fixture
async def two(new_database: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    patient_locks(monkeypatch)
    url = new_database()
    stores = [await open_store(url), await open_store(url)]
    nodes = [await new_node(store) for store in stores]
    two = Two(stores, nodes, [gated(store) for store in stores], url)
    yield two
    two.interleaving.close()
    findings = await two.a.check()
    for store in stores:
        await store.close()
    assert findings == []


@pytest.fixture
def by_hand(two: Two) -> Iterator[psycopg.Connection]:
    with psycopg.connect(two.a._address.conninfo, autocommit=True) as connection:
        connection.execute("SET search_path = holdfast")
        yield connection


async def test_a_node_that_leaves_does_not_end_a_session_in_which_another_turn_has_begun(two: Two) -> None:
    begun = await say(two.a, two.node_a, "hello from the terminal", key="telegram:1", attached=True)
    left, spoken, stopped = await two.interleaving.run(
        lambda: two.a.leave(two.node_a.id, "closed"),
        two.gate_a,
        after("attached_to"),
        lambda: two.b.begin_turn(request(two.node_b, "hello from the phone", key="telegram:1")),
        two.gate_b,
    )
    assert stopped and left is None and isinstance(spoken, TurnBegun)
    session = await two.b.session(OWNER, begun.session.id)
    assert not session.ended and not session.attached
    await two.b.append(spoken.lease, [to_message("looking", "assistant")])
    assert (await context_of(two.b, session.id))[-2:] == ["hello from the phone", "looking"]
    await two.b.commit_reply(spoken.lease, [to_message("it is 42", "assistant")])


async def test_a_node_that_leaves_does_not_interrupt_a_turn_that_another_has_taken_up(two: Two) -> None:
    begun = await begin(two.a, two.node_a, "kelp", key="cli:1")

    async def taken_over() -> object:
        await two.b.cancel_turn(OWNER, begun.turn.id, TurnStatus.INTERRUPTED, "the test said so")
        return await two.b.begin_turn(
            replace(request(two.node_b, key="cli:1", again=True), retries=begun.turn.id)
        )

    left, taken, stopped = await two.interleaving.run(
        lambda: two.a.leave(two.node_a.id, "closed"),
        two.gate_a,
        after("held_by"),
        taken_over,
        two.gate_b,
    )
    assert stopped and left is None and isinstance(taken, TurnBegun)
    assert (await two.b.turn(OWNER, begun.turn.id)).status is TurnStatus.RUNNING
    await two.b.commit_reply(taken.lease, [to_message("tide", "assistant")])
    assert await contents(two.b, begun.session.conversation_id) == ["kelp", "tide"]


async def test_a_node_leaves_though_what_it_held_is_deleted_meanwhile(two: Two) -> None:
    begun = await say(two.a, two.node_a, key="cli:1", attached=True)
    left, deleted, stopped = await two.interleaving.run(
        lambda: two.a.leave(two.node_a.id, "closed"),
        two.gate_a,
        after("attached_to"),
        lambda: two.b.delete_conversation(OWNER, begun.session.conversation_id),
        two.gate_b,
    )
    assert stopped and left is None and deleted == 2
    assert [node.id for node in await two.b.nodes()] == [two.node_b.id]


async def test_a_conversation_that_appears_between_the_lock_and_the_read_is_locked_before_it_is_used(
    two: Two,
) -> None:
    """The first finds no conversation of this key to lock, then reads the one that the second has made."""
    outcomes = await two.interleaving.run(
        lambda: two.a.begin_turn(request(two.node_a, "kelp", key="cli:new")),
        two.gate_a,
        before("place_by_key"),
        lambda: two.b.begin_turn(request(two.node_b, "tide", key="cli:new")),
        two.gate_b,
    )
    waits, begun, stopped = outcomes
    assert stopped and isinstance(waits, TurnWaits) and isinstance(begun, TurnBegun)
    assert two.gate_a.names.count("lock_by_key") == 2
    place = await two.a.resolve(OWNER, Address(key="cli:new"))
    assert place.conversation.id == begun.session.conversation_id


async def test_a_memory_is_forgotten_once(two: Two) -> None:
    begun = await say(two.a, two.node_a)
    memory = await two.a.remember(OWNER, begun.session.conversation_id, "likes kelp")
    second, first, stopped = await two.interleaving.run(
        lambda: two.a.forget_memory(OWNER, memory.id),
        two.gate_a,
        before("forget_memory"),
        lambda: two.b.forget_memory(OWNER, memory.id),
        two.gate_b,
    )
    assert stopped and first is None and isinstance(second, NotFound)
