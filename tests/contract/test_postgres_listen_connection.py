"""A node's LISTEN connection to PostgreSQL: lock and notifications, while it is cut, stalled and killed."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import psycopg
import pytest

from holdfast.domain.ids import new_id
from holdfast.domain.nodes import Identity, Liveness, Node, NodeKind
from holdfast.errors import Conflict, StoreBusy
from holdfast.os_support import identity
from holdfast.store.postgres.deadlines import LOOK_SECONDS, Deadlines, answering_within
from holdfast.store.postgres.listen_connection import ListenConnection
from holdfast.store.postgres.locks import AdvisoryNodeLocks, key_of
from holdfast.store.postgres.watch import NotifyChangeWatch
from tests import postgres_server
from tests.conftest import DatabaseMaker
from tests.postgres_server import PostgresServer
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.postgres

ELSEWHERE = Identity("shore", "boot-9", "ns-9", 4711, "1")
"""A process on another machine: only its lock says anything about it."""


class Party:
    """One node's line with what rides on it."""

    def __init__(self, url: str) -> None:
        self.line = ListenConnection(lambda: psycopg.connect(url, autocommit=True, connect_timeout=2), url)
        self.locks = AdvisoryNodeLocks(self.line)
        self.watch = NotifyChangeWatch(self.line)

    async def says(self, node: Node) -> Liveness:
        return (await self.locks.probe([node]))[node.id][0]

    def close(self) -> None:
        self.locks.close()
        self.line.close()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that may be restarted."""
    with postgres_server.private() as server:
        yield server


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[TcpProxy]:
    assert server.port is not None
    with TcpProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def parties() -> Iterator[Callable[[str], Party]]:
    opened: list[Party] = []

    def make(url: str) -> Party:
        opened.append(Party(url))
        return opened[-1]

    yield make
    for party in opened:
        party.close()


Parties = Callable[[str], Party]


@pytest.fixture
def quick_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second proves what takes three."""
    monkeypatch.setattr("holdfast.store.postgres.locks.PROOF_SECONDS", 1.0)


@pytest.fixture
def observer(server: PostgresServer, parties: Parties) -> Party:
    return parties(server.url("postgres", tcp=True))


def through(proxy: TcpProxy) -> str:
    return f"postgresql://{postgres_server.USER}@127.0.0.1:{proxy.port}/postgres"


def a_node(at: Identity = ELSEWHERE) -> Node:
    return Node(new_id("node"), NodeKind.SERVER, at)


async def until(condition: Callable[[], bool], seconds: float = 60) -> float:
    """Wait for it; returns how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def proven_dead(observer: Party, node: Node, seconds: float = 60) -> float:
    began = time.monotonic()
    while await observer.says(node) is not Liveness.DEAD:
        assert time.monotonic() - began < seconds
        await asyncio.sleep(0.05)
    return time.monotonic() - began


# --- locks ---------------------------------------------------------------------------------------------


async def test_a_node_that_holds_its_lock_lives(observer: Party, proxy: TcpProxy, parties: Parties) -> None:
    node = a_node()
    await parties(through(proxy)).locks.hold(node.id)
    assert await observer.locks.probe([node]) == {node.id: (Liveness.ALIVE, "it holds its lock")}
    assert not observer.locks.found_free(node.id)


async def test_a_free_lock_proves_a_death_elsewhere_after_three_seconds_and_not_before(
    observer: Party, parties: Parties, server: PostgresServer
) -> None:
    node, holder = a_node(), parties(server.url("postgres"))
    await holder.locks.hold(node.id)
    assert await observer.says(node) is Liveness.ALIVE
    holder.close()
    free_at, deadline = None, time.monotonic() + 60
    while (found := (await observer.locks.probe([node]))[node.id])[0] is not Liveness.DEAD:
        if found[0] is Liveness.UNKNOWN:
            assert found[1] == "its lock is free, but not yet for 3 seconds"
            free_at = free_at or time.monotonic()
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert free_at is not None
    assert time.monotonic() - free_at > 2.0
    assert observer.locks.found_free(node.id)


async def test_on_one_machine_the_kernel_is_asked_about_a_free_lock(observer: Party) -> None:
    gone = a_node(replace(identity(), pid=2**22 - 3, pid_start="1"))
    assert (await observer.locks.probe([gone]))[gone.id] == (
        Liveness.DEAD,
        f"no process {gone.identity.pid} is running",
    )
    assert not observer.locks.found_free(gone.id)
    assert await observer.says(a_node(identity())) is Liveness.UNKNOWN


async def test_a_node_id_is_held_once(observer: Party, parties: Parties, server: PostgresServer) -> None:
    node, other = a_node(), parties(server.url("postgres"))
    await observer.locks.hold(node.id)
    for locks in (observer.locks, other.locks):
        with pytest.raises(Conflict, match="has joined already"):
            await locks.hold(node.id)
    observer.locks.let_go(node.id)
    await other.locks.hold(a_node().id)  # the line works on


async def test_a_lock_that_was_let_go_can_be_taken(
    observer: Party, parties: Parties, server: PostgresServer
) -> None:
    node, other = a_node(), parties(server.url("postgres"))
    await observer.locks.hold(node.id)
    observer.locks.let_go(node.id)
    for _ in range(1000):
        try:
            await other.locks.hold(node.id)
            return
        except Conflict:
            await asyncio.sleep(0.02)
    raise AssertionError("it was never free")


@pytest.mark.parametrize("how", ["cut", "terminated", "restarted"])
async def test_a_living_node_whose_line_is_cut_takes_its_lock_again_in_time(
    observer: Party, proxy: TcpProxy, parties: Parties, server: PostgresServer, how: str
) -> None:
    node, holder = a_node(), parties(through(proxy))
    await holder.locks.hold(node.id)
    for _ in range(2):
        if how == "cut":
            proxy.cut()
        elif how == "restarted":
            server.restart()
        else:
            with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                )
        for _ in range(10):
            assert await observer.says(node) is not Liveness.DEAD
            await asyncio.sleep(0.05)
        await until(lambda: node.id in holder.locks._held)
        assert await observer.says(node) is Liveness.ALIVE


async def test_a_node_that_cannot_reach_the_server_is_proven_dead_and_its_lock_can_be_claimed(
    quick_proof: None, observer: Party, proxy: TcpProxy, parties: Parties, server: PostgresServer
) -> None:
    node, holder = a_node(), parties(through(proxy))
    await holder.locks.hold(node.id)
    assert await observer.says(node) is Liveness.ALIVE
    proxy.refuse()
    await proven_dead(observer, node)
    key = key_of(node.id)
    with psycopg.connect(server.url("postgres")) as connection:
        assert connection.execute("SELECT pg_try_advisory_xact_lock(%s)", [key]).fetchone() == (True,)
        proxy.accept()
        await until(lambda: holder.watch._listening)
        await asyncio.sleep(0.3)
        assert node.id not in holder.locks._held  # it waits for whoever reaps it
    await until(lambda: node.id in holder.locks._held)
    with psycopg.connect(server.url("postgres")) as connection:
        assert connection.execute("SELECT pg_try_advisory_xact_lock(%s)", [key]).fetchone() == (False,)


async def test_a_stalled_line_is_noticed_and_takes_nobody_for_dead(
    observer: Party, proxy: TcpProxy, parties: Parties
) -> None:
    """Bytes go nowhere: our own lock is still held over there, and of others nothing can be told."""
    node, stalled = a_node(), parties(through(proxy))
    others = a_node()
    await stalled.locks.hold(node.id)
    await observer.locks.hold(others.id)
    assert await stalled.says(others) is Liveness.ALIVE
    proxy.stall()
    await until(lambda: not stalled.watch._listening)
    assert await stalled.says(others) is Liveness.UNKNOWN
    assert await observer.says(node) is not Liveness.DEAD
    proxy.cut()
    proxy.flow()
    await until(lambda: node.id in stalled.locks._held)
    assert await stalled.says(others) is Liveness.ALIVE


async def test_an_observer_whose_own_line_broke_starts_counting_anew(
    server: PostgresServer, proxy: TcpProxy, parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.locks.PROOF_SECONDS", 2.0)
    node, watching = a_node(), parties(through(proxy))
    for _ in range(6):  # together longer than the proof takes, each of them much shorter
        began = time.monotonic()
        while time.monotonic() - began < 0.4:
            assert await watching.says(node) is Liveness.UNKNOWN
            await asyncio.sleep(0.05)
        proxy.cut()
    await proven_dead(watching, node)


async def test_nobody_waits_for_ever_for_a_server_that_does_not_answer(
    proxy: TcpProxy, parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.locks.PATIENCE_SECONDS", 0.5)
    proxy.refuse()
    party = parties(through(proxy))
    with pytest.raises(StoreBusy):
        await party.locks.hold(a_node().id)


async def test_a_forked_child_keeps_nobodys_lock_alive(
    observer: Party, parties: Parties, server: PostgresServer
) -> None:
    node, holder = a_node(), parties(server.url("postgres"))
    await holder.locks.hold(node.id)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        holder.line.close_in_child()
        os.close(tell)
        os.read(told, 1)
        os._exit(0)
    try:
        assert await observer.says(node) is Liveness.ALIVE  # the child's end is not its parent's
        holder.close()
        await until(lambda: key_of(node.id) not in held_in(server))
    finally:
        os.close(tell)
        os.waitpid(child, 0)


def held_in(server: PostgresServer) -> set[int]:
    with psycopg.connect(server.url("postgres")) as connection:
        rows = connection.execute(
            "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory'"
        ).fetchall()
    return {row[0] for row in rows}


# --- what is heard -------------------------------------------------------------------------------------


def tell(server: PostgresServer, tag: str = "another's") -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("SELECT pg_notify('holdfast', %s)", [tag])


async def listening(party: Party) -> int:
    party.watch.version()
    await until(lambda: party.watch._listening)
    return party.watch.version()


async def test_what_another_node_tells_wakes_waiters_at_once(observer: Party, server: PostgresServer) -> None:
    since = await listening(observer)
    waiter = asyncio.create_task(observer.watch.changed(since, 300))
    await asyncio.sleep(0.05)
    assert not waiter.done()  # no poll: it listens
    await asyncio.to_thread(tell, server)
    async with asyncio.timeout(60):
        assert await waiter


async def test_ones_own_notifications_are_not_heard_twice(observer: Party, server: PostgresServer) -> None:
    since = await listening(observer)
    await asyncio.to_thread(tell, server, observer.watch.tag)
    assert not await observer.watch.changed(since, 0.5)
    await asyncio.to_thread(tell, server)
    assert await observer.watch.changed(since, 60)


async def test_waiters_poll_while_nobody_can_tell_them(proxy: TcpProxy, parties: Parties) -> None:
    party = parties(through(proxy))
    await listening(party)
    proxy.refuse()
    await until(lambda: not party.watch._listening)
    since = party.watch.version()
    async with asyncio.timeout(60):
        assert await party.watch.changed(since, 300)


async def test_what_was_told_while_the_line_was_down_is_looked_for(
    proxy: TcpProxy, parties: Parties, server: PostgresServer
) -> None:
    party = parties(through(proxy))
    since = await listening(party)
    proxy.refuse()
    tell(server)
    proxy.accept()
    assert await party.watch.changed(since, 30)


async def test_the_line_is_up_after_the_system_had_no_thread_to_give(
    server: PostgresServer, parties: Parties, no_threads: AbstractContextManager[None]
) -> None:
    party, node = parties(server.url("postgres", tcp=True)), a_node()
    with no_threads:
        assert party.watch.version() == 0
    async with asyncio.timeout(60):
        await party.locks.hold(node.id)
        await listening(party)


def test_a_line_that_never_had_a_thread_can_be_closed(
    server: PostgresServer, parties: Parties, no_threads: AbstractContextManager[None]
) -> None:
    with no_threads:
        parties(server.url("postgres", tcp=True)).line.look_now()


# --- deadlines -----------------------------------------------------------------------------------------


def test_deadlines_hold_after_the_system_had_no_thread_to_give(
    server: PostgresServer, no_threads: AbstractContextManager[None]
) -> None:
    deadlines = Deadlines()
    with psycopg.connect(server.url("postgres", tcp=True)) as connection:
        with no_threads, deadlines.answering_within(connection, 60):
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            with deadlines.answering_within(connection, 0.3):
                connection.execute("SELECT pg_sleep(30)")


def test_a_connection_that_does_not_answer_in_time_is_cut(server: PostgresServer) -> None:
    with psycopg.connect(server.url("postgres", tcp=True)) as connection:
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError):
            with answering_within(connection, 0.3):
                connection.execute("SELECT pg_sleep(120)")
        assert time.monotonic() - began < 60


def test_one_that_answers_in_time_is_left_alone(server: PostgresServer) -> None:
    with psycopg.connect(server.url("postgres", tcp=True)) as connection:
        with answering_within(connection, 1.0):
            connection.execute("SELECT 1")
        time.sleep(1.3)
        assert connection.execute("SELECT 1").fetchone() == (1,)


# --- deadlines ---------------------------------------------------------------------------------------------


def test_a_connection_that_closes_within_its_deadline_ends_neither_the_watch_nor_anothers_socket(
    new_database: DatabaseMaker,
) -> None:
    """libpq closes its socket by itself; the next that is opened gets its number."""
    url = new_database()
    closing = psycopg.connect(url)
    with answering_within(closing, 0.05):
        number = closing.fileno()
        closing.close()
        pair = socket.socketpair()
        assert number in [each.fileno() for each in pair]
        time.sleep(4 * LOOK_SECONDS)
    pair[0].sendall(b"x")
    assert pair[1].recv(1) == b"x"  # nobody has cut it
    for each in pair:
        each.close()
    with psycopg.connect(url) as silent, pytest.raises(psycopg.OperationalError):
        with answering_within(silent, 0.2):
            silent.execute("SELECT pg_sleep(120)")
