"""Races on PostgreSQL, each forced: one transaction is paused before a statement while another runs through.

A decision that was made before a lock was taken must be made again under it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from holdfast.domain.connectors import Batch, ConnectorClaim, Incoming, Pairing, PairingState
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Identity, Liveness, Node, NodeKind
from holdfast.domain.processes import Process, ProcessState
from holdfast.domain.turns import TurnBegun, TurnStatus, TurnWaits
from holdfast.errors import NotFound
from holdfast.os_support import identity
from holdfast.store.postgres.connections import DatabaseAddress, open_connection
from holdfast.store.postgres.engine import PostgresStore, open_store
from holdfast.store.postgres.migrations import STATEMENTS, _version
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
            replace(request(two.node_b, key="cli:1", answer_existing=True), resumes_turn=begun.turn.id)
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


async def test_what_a_person_writes_while_they_are_revoked_is_not_answered(two: Two) -> None:
    wrote = Incoming("m1", "dm:43", "telegram:dm:43", "43", "let me in")
    await two.a.ask_pairing("phone", wrote, "AAAA-BBBB")
    pairing = await two.a.approve_pairing("AAAA-BBBB")
    _, revoked, _ = await two.interleaving.run(
        lambda: two.a.receive("phone", [wrote], []),
        two.gate_a,
        after("pairing_of_person"),
        lambda: two.b.revoke_pairing(pairing.id),
        two.gate_b,
    )
    assert isinstance(revoked, Pairing) and revoked.state is PairingState.REVOKED
    assert await two.a.waiting_places("phone") == []


async def test_a_message_that_is_taken_while_its_sender_is_revoked_does_not_bind_the_chat_again(
    two: Two,
) -> None:
    await say(two.a, two.node_a, key="cli:1")
    wrote = Incoming("m1", "dm:43", "telegram:dm:43", "43", "let me in")
    await two.a.ask_pairing("phone", wrote, "AAAA-BBBB")
    pairing = await two.a.approve_pairing("AAAA-BBBB", OWNER, "cli:1")
    claim = await two.a.claim_connector("phone", "telegram", two.node_a.id)
    assert isinstance(claim, ConnectorClaim)
    await two.a.receive("phone", [wrote], [], claimed=claim)
    ((place, _),) = await two.a.waiting_places("phone")
    batch, revoked, _ = await two.interleaving.run(
        lambda: two.a.take_messages(claim, place, new_id("turn"), "telegram", timedelta()),
        two.gate_a,
        after("place_by_key"),
        lambda: two.b.revoke_pairing(pairing.id),
        two.gate_b,
    )
    assert isinstance(batch, Batch) and isinstance(revoked, Pairing)
    (shut,) = await two.a.places_of(None)
    assert (shut.owner, shut.conversation_id) == ("phone/43", None)
    waiting = await two.a.waiting_places("phone")
    assert [each for each, _ in waiting] == [place], "the message has its turn, or is withdrawn: not both"


async def test_a_chat_that_is_linked_while_its_person_is_revoked_is_not_linked_after(two: Two) -> None:
    begun = await say(two.a, two.node_a, key="cli:1")
    wrote = Incoming("m1", "dm:43", "telegram:dm:43", "43", "let me in")
    await two.a.ask_pairing("phone", wrote, "AAAA-BBBB")
    pairing = await two.a.approve_pairing("AAAA-BBBB", OWNER, "cli:1")
    (place,) = await two.a.places_of(None)
    await two.a.new_link(OWNER, begun.session.conversation_id, "CCCC-DDDD")
    _, revoked, _ = await two.interleaving.run(
        lambda: two.a.link_place(place.id, "CCCC-DDDD", hears_all=True),
        two.gate_a,
        after("chat_place_by_id"),
        lambda: two.b.revoke_pairing(pairing.id),
        two.gate_b,
    )
    assert isinstance(revoked, Pairing)
    (shut,) = await two.a.places_of(None)
    assert (shut.owner, shut.conversation_id, shut.linked) == ("phone/43", None, False)


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


async def test_a_reader_of_notices_never_skips_one_that_is_committed_late(two: Two) -> None:
    chats = [(await say(two.a, two.node_a, key=key)).session.conversation_id for key in "xy"]

    async def read_between() -> list[str]:
        await two.b.add_notice(OWNER, chats[1], "reset", "second")
        return [notice.id for notice in (await two.b.notices(OWNER)).items]

    first, seen, stopped = await two.interleaving.run(
        lambda: two.a.add_notice(OWNER, chats[0], "reset", "first"),
        two.gate_a,
        after("insert_notice"),
        read_between,
        two.gate_b,
    )
    assert stopped and len(seen) == 1
    rest = (await two.b.notices(OWNER, after=seen[-1])).items
    assert [notice.id for notice in rest] == [first.id]
    assert [notice.text for notice in (await two.b.notices(None)).items] == ["second", "first"]


# --- machines that share a name, or even an id ------------------------------------------------------------


def elsewhere(**changes: str) -> Identity:
    """A process of a machine with the same hostname as this."""
    return replace(identity(), boot_id="another-boot", pid=4242, pid_start="77", **changes)


async def a_process(store: PostgresStore, node: Node) -> str:
    begun = await say(store, node)
    there = node.identity
    process = Process(
        id=new_id("proc"),
        owner=OWNER,
        conversation_id="",
        session_id=begun.session.id,
        identity=replace(there, pid=0, pid_start=""),
        command="make train",
        cwd="/",
        state=ProcessState.STARTING,
        started_at=store.now(),
        supervisor=node.id,
    )
    await store.add_process(process)
    assert await store.process_started(process.id, there)
    return process.id


@pytest.mark.parametrize("machine", ["another-machine", "", None])
async def test_a_machine_of_the_same_name_leaves_anothers_processes_alone(
    two: Two, machine: str | None
) -> None:
    """None: it shares even the machine id, as a clone does. Its node was seen while one of ours was there."""
    there = elsewhere() if machine is None else elsewhere(machine=machine)
    node = Node(new_id("node"), NodeKind.SERVER, there)
    await two.a.join(node)
    process = await a_process(two.a, node)
    await two.a.leave(node.id, "closed")
    assert await two.b.unended_processes(identity()) == []
    (mine,) = await two.b.unended_processes(there)
    assert mine.id == process and mine.identity == there


async def test_processes_of_an_earlier_boot_are_their_machines(two: Two) -> None:
    """Its nodes are gone before one of this boot joins."""
    node = Node(new_id("node"), NodeKind.SERVER, elsewhere(machine="reef"))
    await two.a.join(node)
    process = await a_process(two.a, node)
    await two.a.leave(node.id, "closed")
    here = replace(identity(), machine="reef", boot_id="next-boot")
    await two.b.join(Node(new_id("node"), NodeKind.SERVER, here))
    assert [each.id for each in await two.b.unended_processes(here)] == [process]


async def test_what_was_started_before_machines_had_ids_is_named_by_a_node_of_its_boot(two: Two) -> None:
    node = Node(new_id("node"), NodeKind.SERVER, elsewhere(machine=""))
    await two.a.join(node)
    process = await a_process(two.a, node)
    same_boot = elsewhere(machine="reef")
    await two.b.join(Node(new_id("node"), NodeKind.SERVER, same_boot))
    assert (await two.b.process(None, process)).identity.machine == "reef"


async def test_a_node_of_a_machine_of_the_same_name_is_not_dead_because_its_line_is_away(two: Two) -> None:
    node = Node(new_id("node"), NodeKind.SERVER, elsewhere())
    await two.a.join(node)
    two.a._locks.let_go(node.id)  # its line is lost: the lock is free, and not yet for three seconds
    for _ in range(3):
        (liveness, why) = (await two.b.probe([node]))[node.id]
        assert liveness is not Liveness.DEAD or "its lock is free" in why


async def test_a_node_that_waited_while_another_created_the_store_finds_it(
    new_database: Callable[..., str],
) -> None:
    """It has looked before the schema existed, and PostgreSQL may keep what it resolved then."""
    address = DatabaseAddress.parse(new_database(empty=True))
    blocked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s"

    def look() -> tuple[int, int] | None:
        with second.transaction():
            second.execute(STATEMENTS["migration_lock"])
            return _version(second)

    with open_connection(address) as first, open_connection(address) as second, ThreadPoolExecutor() as pool:
        assert _version(second) is None
        with first.transaction():
            first.execute(STATEMENTS["migration_lock"])
            first.execute(f"CREATE SCHEMA {address.schema}".encode())
            first.execute("CREATE TABLE store AS SELECT 3 AS schema, 2 AS oldest")
            found = pool.submit(look)
            while first.execute(blocked, [second.info.backend_pid]).fetchone() == (0,):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert found.result() == (3, 2)
