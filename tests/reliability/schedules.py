"""Runs every pair of writing methods of a PostgreSQL store, one paused at each of its statements.

A combination is a scene (the initial state) and an ordered pair of methods. Its schedules: the first method,
on one node, is paused before each of its statements in turn; the second, on another node, runs as far as it
gets; then both run to their ends. Afterwards the doctor's invariants must hold. What both returned and what
is stored must equal the result of one of the two serial orders.

A method that skips what another node has locked (SKIP LOCKED) may also have done nothing.

Left out, and counted: a combination whose second method sends no statement, and one equal to the same pair in
another scene, that is, both methods send the same statements with the same numbers of rows and return the
same, in both serial orders.

    python -m tests.reliability.schedules URL PART PARTS    one part of all combinations, on this database
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from holdfast.domain.compaction import Claim, CompactionStats, Trigger
from holdfast.domain.conversations import Address
from holdfast.domain.flushes import Flush
from holdfast.domain.ids import new_id
from holdfast.domain.memories import MemoryOrigin
from holdfast.domain.nodes import Node, NodeKind
from holdfast.domain.processes import Process, ProcessState
from holdfast.domain.turns import RequestKey, TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import HoldfastError
from holdfast.os_support import identity
from holdfast.store import nodes as node_writes
from holdfast.store.postgres.engine import PostgresStore, open_store
from holdfast.store.transaction import Transaction
from holdfast.store.values import Retention
from tests.contract.steps import FLUSHING, POLICIES, Clock, begin, draft, request, say, to_message
from tests.postgres_gate import Interleaving, gated, number, patient_locks

OWNER = "ada"
SCENES = ("resting", "running", "interrupted", "ended", "due")
FIRST_STOP = 2
"""After BEGIN and the statement that tells the time: nothing has been read before."""
ID = re.compile(r"\b([a-z]+)_[0-9a-f]{32}")
NOT_OF_A_SCENE = ("store", "moves", "flush_turnstile")
MOST_VIOLATIONS = 20
VACUUM_AFTER = 300
"""Scenes: what they leave behind makes the next ones slow."""


@dataclass
class Scene:
    """What there is before two methods meet. Node A has begun everything; node B is another machine's."""

    kind: str
    nodes: tuple[Node, Node]
    session: str = ""
    conversation: str = ""
    begun: TurnBegun | None = None
    notice: str = ""
    process: str = ""
    memory: str = ""
    claimed: Flush | None = None
    claim: Claim | None = None
    revision: int = 0

    @property
    def turn(self) -> TurnBegun:
        assert self.begun is not None
        return self.begun


Act = Callable[[Scene, PostgresStore, Node], Awaitable[Any]]
KEY = RequestKey("/r", "request", b"h" * 32)
DAY = timedelta(days=1)


def _process(scene: Scene, store: PostgresStore, node: Node) -> Process:
    return Process(
        id=new_id("proc"),
        owner=OWNER,
        conversation_id="",
        session_id=scene.session,
        identity=replace(node.identity, pid=0, pid_start=""),
        command="make",
        cwd="/",
        state=ProcessState.STARTING,
        started_at=store.now(),
        supervisor=node.id,
    )


async def _compact(scene: Scene, store: PostgresStore, node: Node) -> Any:
    claimed = await store.claim_compaction(
        scene.session, node.id, timedelta(minutes=1), why=Trigger.BY_HAND, tokens=10, window=5
    )
    return claimed if not isinstance(claimed, Claim) else "claimed"


async def _finish(scene: Scene, store: PostgresStore, node: Node) -> Any:
    return scene.claimed and await store.finish_flush(scene.claimed, "likes kelp")


async def _release(scene: Scene, store: PostgresStore, node: Node) -> Any:
    return scene.claimed and await store.release_flush(scene.claimed)


async def _fail(scene: Scene, store: PostgresStore, node: Node) -> Any:
    return scene.claimed and await store.fail_flush(scene.claimed, "no", None)


ACTS: dict[str, Act] = {
    "begin": lambda c, s, n: s.begin_turn(request(n, "tide", key="cli:1", owner=OWNER)),
    "begin attached": lambda c, s, n: s.begin_turn(
        request(n, "tide", key="cli:1", owner=OWNER, attached=True)
    ),
    "begin by session": lambda c, s, n: s.begin_turn(request(n, "tide", id=c.session, owner=OWNER)),
    "begin with a request key": lambda c, s, n: s.begin_turn(
        request(n, "kelp", key="cli:1", owner=OWNER, request_key=KEY)
    ),
    "begin a new key": lambda c, s, n: s.begin_turn(request(n, "tide", key="cli:new", owner=OWNER)),
    "begin a new alias": lambda c, s, n: s.begin_turn(request(n, "tide", id="alias", owner=OWNER)),
    "retry": lambda c, s, n: s.begin_turn(
        replace(request(n, key="cli:1", owner=OWNER, answer_existing=True), resumes_turn=c.turn.turn.id)
    ),
    "append": lambda c, s, n: s.append(c.turn.lease, [to_message("step", "assistant")]),
    "draft": lambda c, s, n: s.append_draft(c.turn.lease, draft(7, "half")),
    "commit": lambda c, s, n: s.commit_reply(c.turn.lease, [to_message("done", "assistant")]),
    "settle": lambda c, s, n: s.settle_turn(c.turn.lease, TurnFailure(TurnStatus.FAILED, error="no")),
    "cancel": lambda c, s, n: s.cancel_turn(OWNER, c.turn.turn.id, TurnStatus.CANCELLED, "stop"),
    "interrupt": lambda c, s, n: s.cancel_turn(OWNER, c.turn.turn.id, TurnStatus.INTERRUPTED, "stop"),
    "open": lambda c, s, n: s.open_session(OWNER, Address(key="cli:1"), n.id, attached=True),
    "end": lambda c, s, n: s.end_session(OWNER, c.session, "new"),
    "resume": lambda c, s, n: s.resume_session(OWNER, c.session, n.id),
    "fork": lambda c, s, n: s.fork(OWNER, c.session, n.id, key="cli:fork"),
    "create": lambda c, s, n: s.create_conversation(OWNER, n.id, messages=[to_message("kelp")]),
    "add messages": lambda c, s, n: s.add_messages(OWNER, c.conversation, n.id, [to_message("more")]),
    "set metadata": lambda c, s, n: s.set_metadata(OWNER, c.conversation, {"a": n.kind.value}),
    "set title": lambda c, s, n: s.set_title(OWNER, c.conversation, n.kind.value),
    "add alias": lambda c, s, n: s.add_alias(OWNER, "alias", c.conversation),
    "exclude": lambda c, s, n: s.exclude(OWNER, c.conversation, [1, 2], "wrong"),
    "delete message": lambda c, s, n: s.delete_message(OWNER, c.conversation, 1),
    "delete": lambda c, s, n: s.delete_conversation(OWNER, c.conversation),
    "add notice": lambda c, s, n: s.add_notice(OWNER, c.conversation, "reset", "more"),
    "deliver": lambda c, s, n: s.deliver_notice(OWNER, c.notice),
    "claim notices": lambda c, s, n: s.claim_notices(10, timedelta(minutes=1), DAY),
    "beat": lambda c, s, n: s.beat(c.nodes[0].id),
    "leave": lambda c, s, n: s.leave(c.nodes[0].id, "closed"),
    "reap": lambda c, s, n: s.reap(c.nodes[0].id, 0, "silent"),
    "settle conversation": lambda c, s, n: s.settle_conversation(c.conversation),
    "reap session": lambda c, s, n: s.reap_session(c.session),
    "settle node": lambda c, s, n: s.settle_node(c.nodes[0].id),
    "reset": lambda c, s, n: s.reset_session(c.session),
    "date": lambda c, s, n: s.date_sessions(),
    "claim compaction": _compact,
    "compact": lambda c, s, n: _swap(c, s),
    "add process": lambda c, s, n: s.add_process(_process(c, s, n)),
    "end process": lambda c, s, n: s.end_process(c.process, ProcessState.EXITED, exit_code=0),
    "stop process": lambda c, s, n: s.request_stop(OWNER, c.process, "enough"),
    "claim process": lambda c, s, n: s.claim_process(c.process, n.id, c.nodes[0].id),
    "claim flushes": lambda c, s, n: s.claim_flushes(n.id, together=4, per_minute=100),
    "finish flush": _finish,
    "fail flush": _fail,
    "release flush": _release,
    "release flushes": lambda c, s, n: s.release_flushes(c.nodes[0].id, keep=()),
    "retry flush": lambda c, s, n: s.retry_flush(OWNER, c.session),
    "retry flushes": lambda c, s, n: s.retry_flushes(OWNER),
    "skip flush": lambda c, s, n: s.skip_flush(OWNER, c.session, "no"),
    "skip flushes": lambda c, s, n: s.skip_flushes(OWNER, s.now() + DAY, "no"),
    "remember": lambda c, s, n: s.remember(OWNER, c.conversation, "more", origin=MemoryOrigin.PERSON),
    "edit memory": lambda c, s, n: s.edit_memory(OWNER, c.memory, f"edited by {n.kind.value}"),
    "forget memory": lambda c, s, n: s.forget_memory(OWNER, c.memory),
    "prune": lambda c, s, n: s.prune(Retention(DAY, DAY, DAY, timedelta(microseconds=1))),
    "set key": lambda c, s, n: s.set_key(OWNER, c.conversation, "cli:new"),
}
MAY_SKIP = frozenset({"claim flushes", "retry flushes", "skip flushes", "prune", "date", "claim notices"})
"""What another node is at right now is left to it: their next pass finds it."""


async def _swap(scene: Scene, store: PostgresStore) -> Any:
    assert scene.claim is not None
    session = await store.session(None, scene.session)
    facts = CompactionStats(Trigger.BY_HAND, 10, 5, 1)
    return await store.compact(scene.claim, session.view, scene.revision, facts)


@dataclass
class Tally:
    pairs: int = 0
    left_out: int = 0
    """Combinations that are equal to one that was run."""
    schedules: int = 0
    violations: list[str] = field(default_factory=list)


class Stage:
    """Two nodes, each with a store under a gate, and a third store that sets scenes and looks."""

    def __init__(self, url: str, stores: list[PostgresStore], clock: Clock) -> None:
        self._setter, *self._stores = stores
        for store in stores:  # it would still be at the rows of a scene that has been put back
            store._indexer.start = lambda: None  # type: ignore[method-assign]
        self._gates = [gated(store) for store in self._stores]
        self._clock = clock
        self._interleaving = Interleaving(url)
        self._looking = psycopg.connect(url, autocommit=True)
        self._looking.execute("SET search_path = holdfast")
        # What a scene is made of is put back as it was: foreign keys have nothing to say to that.
        self._looking.execute("SET session_replication_role = replica")
        tables = self._rows("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")
        self._tables = sorted(name for (name,) in tables if name not in NOT_OF_A_SCENE)
        self._scenes: dict[str, tuple[Scene, datetime]] = {}
        self._run_already: set[Any] = set()
        self._since_vacuum = 0
        self.tally = Tally()

    def close(self) -> None:
        self._interleaving.close()
        self._looking.close()

    # --- scenes ------------------------------------------------------------------------------------------

    async def set(self, kind: str) -> Scene:
        """The same each time, down to its ids: made once, and put back whenever it is asked for again."""
        if kind not in self._scenes:
            self._run("DELETE FROM {0}")
            scene = await self._make(kind)
            self._run(f"CREATE TABLE scene_{kind}_{{0}} AS TABLE {{0}}")
            self._looking.execute(self._putting_back(kind).encode())
            self._scenes[kind] = scene, self._clock.now
        self._looking.execute(f"CALL put_back_{kind}()".encode())
        self._since_vacuum += 1
        if self._since_vacuum >= VACUUM_AFTER:
            self._since_vacuum = 0
            self._looking.execute("VACUUM")
        scene, self._clock.now = self._scenes[kind]
        return scene

    def _run(self, statement: str) -> None:
        """For each table of a scene, all at once."""
        self._looking.execute(";".join(statement.format(table) for table in self._tables).encode())

    def _putting_back(self, kind: str) -> str:
        """A procedure, because the plans of its statements are kept."""
        statements = "".join(
            f"DELETE FROM {table}; INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE scene_{kind}_{table};"
            for table in self._tables
        )
        return f"CREATE PROCEDURE put_back_{kind}() LANGUAGE plpgsql AS $$ BEGIN {statements} END $$"

    async def _make(self, kind: str) -> Scene:
        self._clock.now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        store = self._setter
        here = identity()
        nodes = (
            Node(new_id("node"), NodeKind.CLI, here),
            Node(new_id("node"), NodeKind.SERVER, replace(here, boot_id="b", machine="b")),
        )
        for node in nodes:
            await store._write(_joining(node))
        scene = Scene(kind, nodes)
        node = nodes[0]
        source = "idle" if kind == "due" else "cli"
        said = await say(store, node, "hello", key="cli:1", owner=OWNER, attached=True, source=source)
        await say(store, node, "again", key="cli:1", owner=OWNER, attached=True)
        scene.session, scene.conversation = said.session.id, said.session.conversation_id
        scene.memory = (
            await store.remember(OWNER, scene.conversation, "likes tea", origin=MemoryOrigin.PERSON)
        ).id
        process = await store.add_process(_process(scene, store, node))
        await store.process_started(process.id, replace(here, pid=42, pid_start="1"))
        scene.process = process.id
        scene.begun = said
        if kind in ("running", "interrupted"):
            scene.begun = await begin(store, node, "kelp", key="cli:1", owner=OWNER, request_key=KEY)
            await store.append_draft(scene.begun.lease, draft(0, "so far"))
        if kind == "interrupted":
            await store.cancel_turn(OWNER, scene.turn.turn.id, TurnStatus.INTERRUPTED, "stop")
        if kind == "ended":
            await store.end_process(process.id, ProcessState.EXITED, exit_code=0)
            await store.end_session(OWNER, scene.session, "new")
            (scene.claimed,) = await store.claim_flushes(node.id, together=4, per_minute=100)
        scene.notice = (await store.add_notice(OWNER, scene.conversation, "reset", "told")).id
        if kind == "resting":
            claimed = await store.claim_compaction(
                scene.session, node.id, timedelta(minutes=1), why=Trigger.BY_HAND, tokens=9, window=5
            )
            assert isinstance(claimed, Claim)
            scene.claim = claimed
            scene.revision = (await store.outline(None, scene.session)).revision
        if kind in ("due", "ended"):
            self._clock.move(hours=30)
        return scene

    def possible(self, kind: str, act: str) -> bool:
        return act != "compact" or kind == "resting"

    # --- running -----------------------------------------------------------------------------------------

    async def both(self, kind: str, first: str, second: str) -> None:
        """Every schedule of this pair in this scene, as long as the first can be stopped."""
        if not (self.possible(kind, first) and self.possible(kind, second)):
            return
        allowed, traces = await self._allowed(kind, first, second)
        key = first, second, traces
        if key in self._run_already or not any(trace[1] for trace in traces):
            self.tally.left_out += 1
            return
        self._run_already.add(key)
        self.tally.pairs += 1
        for stop in range(FIRST_STOP, 1000):
            scene = await self.set(kind)
            one, other, stopped = await self._interleaving.run(
                partial(ACTS[first], scene, self._stores[0], scene.nodes[0]),
                self._gates[0],
                number(stop),
                partial(ACTS[second], scene, self._stores[1], scene.nodes[1]),
                self._gates[1],
            )
            if not stopped:
                return
            self.tally.schedules += 1
            where = f"{kind}: {first!r} before statement {stop} ({self._gates[0].stopped_at}), {second!r}"
            await self._judge(where, scene, first, second, one, other, allowed)

    async def _judge(
        self, where: str, scene: Scene, first: str, second: str, one: Any, other: Any, allowed: list[Any]
    ) -> None:
        wrong = self.tally.violations
        for name, gave in ((first, one), (second, other)):
            if isinstance(gave, BaseException) and not isinstance(gave, HoldfastError):
                wrong.append(f"{where}: {name!r} raised {gave!r}")
                return
        findings = await self._setter.check()
        if findings:
            wrong.append(f"{where}: {[finding.invariant for finding in findings]}")
            return
        found = self._state(scene)
        gave = {first: _shown(one), f"{second} ": _shown(other)}
        if any(self._agrees(gave, found, each) for each in allowed):
            return
        wrong.append(f"{where}: gave {gave}; {_differences(found, gave, allowed)}")

    @staticmethod
    def _agrees(gave: dict[str, str], found: Any, allowed: tuple[dict[str, str], Any]) -> bool:
        outcomes, state = allowed
        told = all(gave[name] == outcomes[name] for name in gave if name.strip() not in MAY_SKIP)
        return told and found == state

    async def _allowed(self, kind: str, first: str, second: str) -> tuple[list[Any], tuple[Any, ...]]:
        """What both give, and what is stored then, one after the other; and without those that may skip.
        Also the statements that each sent, with what it gave."""
        allowed, traces = [], []
        orders: list[tuple[int, ...]] = [(0, 1), (1, 0)]
        orders += [(1,)] if first in MAY_SKIP else []
        orders += [(0,)] if second in MAY_SKIP else []
        orders += [()] if first in MAY_SKIP and second in MAY_SKIP else []
        for order in orders:
            scene = await self.set(kind)
            gave = {first: "", f"{second} ": ""}
            for gate in self._gates:
                gate.trace.clear()
            for which in order:
                name = (first, second)[which]
                gave[name if which == 0 else f"{name} "] = _shown(
                    await _outcome(ACTS[name](scene, self._stores[which], scene.nodes[which]))
                )
            allowed.append((gave, self._state(scene)))
            traces.append((*(tuple(gate.trace) for gate in self._gates), *gave.values()))
        return allowed, tuple(traces)

    # --- looking -----------------------------------------------------------------------------------------

    def _state(self, scene: Scene) -> Any:
        """All that is stored, without ids, which differ from run to run, and times, which stand still."""
        labels = {scene.nodes[0].id: "A", scene.nodes[1].id: "B"}
        found = self._rows(STATE)
        sessions = (row.partition(" ") for name, row in found if name == "labels")
        labels |= {id_: f"session {ordinal}" for id_, _, ordinal in sessions}

        def labelled(row: str) -> str:
            return ID.sub(lambda found: labels.get(found[0], found[1]), row)

        rows: dict[str, list[str]] = {table: [] for table in STATES}
        for table, row in found:
            if table != "labels":
                rows[table].append(labelled(row))
        return {table: sorted(each) for table, each in rows.items()}

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._looking.execute(query.encode()).fetchall()


STATES = {
    "conversations": "SELECT key, title, last_seq, token, holder, tip, metadata, revision FROM conversations",
    "sessions": "SELECT ordinal, edge, parent, attached, node, end_reason, first_seq, last_seq, flushed_seq, "
    "next_due_at, deferral, last_activity_at, fresh_by FROM sessions",
    "turns": "SELECT session, status, node, attempt, first_seq, error FROM turns",
    "messages": "SELECT seq, session, role, status, convert_from(body, 'UTF8') FROM messages",
    "exclusions": "SELECT seq, reason FROM exclusions",
    "drafts": "SELECT first_event, adds FROM drafts",
    "requests": "SELECT route, key FROM requests",
    "aliases": "SELECT alias FROM aliases",
    "notices": "SELECT text, told_at IS NULL, delivered_at IS NULL, given_to IS NULL, send_attempts "
    "FROM notices",
    "processes": "SELECT session, state, supervisor, stop_reason FROM processes",
    "flushes": "SELECT session, state, attempts, interruptions, node, last_seq FROM flushes",
    "memories": "SELECT text, origin FROM memories",
    "compactions": "SELECT session, node, token, failures FROM compactions",
    "nodes": "SELECT id, beat, left_at IS NULL, reaped_at IS NULL, settled_at IS NULL FROM nodes",
    "events": "SELECT type, session FROM events",
}
STATE = "SELECT 'labels', id || ' ' || ordinal FROM sessions" + "".join(
    f" UNION ALL SELECT '{table}', each::text FROM ({query}) AS each" for table, query in STATES.items()
)
"""All of it in one query."""


def _joining(node: Node) -> Callable[[Transaction], None]:
    """Joins without taking the node's lock: nobody probes it."""
    return lambda tx: node_writes.join(tx, node)


async def _outcome(running: Awaitable[Any]) -> Any:
    try:
        return await running
    except HoldfastError as error:
        return error


def _shown(gave: Any) -> str:
    """What a method gave, as far as it must agree."""
    return repr(gave) if gave is None or isinstance(gave, bool | int | str) else type(gave).__name__


def _differences(found: Any, gave: dict[str, str], allowed: list[Any]) -> str:
    told = []
    for outcomes, state in allowed:
        other = {name: outcomes[name] for name in gave if outcomes[name] != gave[name]}
        tables = {
            table: [
                list((Counter(rows) - Counter(state[table])).elements()),
                list((Counter(state[table]) - Counter(rows)).elements()),
            ]
            for table, rows in found.items()
            if rows != state[table]
        }
        told.append(f"in order it would be {other} {tables}")
    return "; ".join(told)


@asynccontextmanager
async def stage(url: str) -> AsyncIterator[Stage]:
    clock = Clock(datetime(2026, 3, 1, 12, tzinfo=UTC))
    stores = [await open_store(url, clock=clock, policies=POLICIES, flushing=FLUSHING) for _ in range(3)]
    staged = Stage(url, stores, clock)
    try:
        yield staged
    finally:
        staged.close()
        for store in stores:
            await store.close()


def combinations(seed: int) -> Iterator[tuple[str, str, str]]:
    """All scenes and pairs, in an order of this seed's."""
    every = [(kind, first, second) for kind in SCENES for first in ACTS for second in ACTS]
    random.Random(seed).shuffle(every)
    return iter(every)


def part_of_all(part: int, parts: int) -> Iterator[tuple[str, str, str]]:
    """One part of all combinations: a pair's scenes are in one part, so that equal ones are noticed."""
    pairs = [(first, second) for first in ACTS for second in ACTS]
    return ((kind, first, second) for first, second in pairs[part::parts] for kind in SCENES)


async def run_part(url: str, part: int, parts: int) -> Tally:
    async with stage(url) as staged:
        for combination in part_of_all(part, parts):
            await staged.both(*combination)
            if len(staged.tally.violations) >= MOST_VIOLATIONS:
                break
    return staged.tally


if __name__ == "__main__":
    patient_locks(pytest.MonkeyPatch())
    print(json.dumps(asdict(asyncio.run(run_part(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))))
