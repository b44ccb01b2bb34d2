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
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
import pytest

from holdfast.errors import HoldfastError
from holdfast.store.postgres.engine import PostgresStore, open_store
from tests.contract.steps import FLUSHING, POLICIES, Clock
from tests.postgres_gate import Interleaving, gated, number, patient_locks

from .writes import ALL_ACTS, MAY_SKIP, SCENES, Scene, make_scene, pairs_in

FIRST_STOP = 2
"""After BEGIN and the statement that tells the time: nothing has been read before."""
ID = re.compile(r"\b([a-z]+)_[0-9a-f]{32}")
NOT_OF_A_SCENE = ("store", "moves", "flush_turnstile")
MOST_VIOLATIONS = 20
VACUUM_AFTER = 300
"""Scenes: what they leave behind makes the next ones slow."""


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
            scene = await make_scene(kind, self._setter, self._clock)
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

    # --- running -----------------------------------------------------------------------------------------

    async def both(self, kind: str, first: str, second: str) -> None:
        """Every schedule of this pair in this scene, as long as the first can be stopped."""
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
                partial(ALL_ACTS[first], scene, self._stores[0], scene.nodes[0]),
                self._gates[0],
                number(stop),
                partial(ALL_ACTS[second], scene, self._stores[1], scene.nodes[1]),
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
                    await _outcome(ALL_ACTS[name](scene, self._stores[which], scene.nodes[which]))
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
    "conversations": "SELECT key, title, last_seq, token, holder, tip, metadata, revision, queued, "
    "places FROM conversations",
    "sessions": "SELECT ordinal, edge, parent, attached, node, end_reason, first_seq, last_seq, flushed_seq, "
    "next_due_at, deferral, last_activity_at, fresh_by FROM sessions",
    "turns": "SELECT session, status, node, attempt, first_seq, error, joined IS NULL, request IS NULL, "
    "tries, stops, refusals, due_at, cause FROM turns",
    "queued_turns": "SELECT steers, convert_from(messages, 'UTF8') FROM queued_turns",
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
    "connectors": "SELECT name, node, token, cursor, state, problem FROM connectors",
    "places": "SELECT address, owner, key, conversation, linked, hears_all, home FROM places",
    "inbox": "SELECT platform_id, state, conversation, turn IS NULL, attempts, due_at, error FROM inbox",
    "deliveries": "SELECT kind, conversation, turn IS NULL, text, parts, state, attempts, claimed_by, "
    "due_at, error FROM deliveries",
    "attachments": "SELECT conversation, source, name, size FROM attachments",
    "pairings": "SELECT person, owner, key, state, code_hash IS NULL FROM pairings",
    "link_codes": "SELECT owner, conversation FROM link_codes",
    "api_keys": "SELECT owner, revoked_at IS NULL, last_used_at FROM api_keys",
    # An expired item is not found. When it is deleted depends on what is locked.
    "items": "SELECT name, conversation, value, expires_at FROM items WHERE value <> 'expired'",
    "checkpoints": "SELECT conversation, id, convert_from(body, 'UTF8') FROM checkpoints",
    "checkpoint_writes": "SELECT conversation, checkpoint, convert_from(body, 'UTF8') FROM checkpoint_writes",
    "message_names": "SELECT conversation, name, seq FROM message_names",
    "rewinds": "SELECT at_seq, to_seq FROM rewinds",
    "side_requests": "SELECT name, conversation, reply FROM side_requests",
    "key_usage": "SELECT minute_requests, day_requests, minute_tokens, day_tokens FROM key_usage",
    "logins": "SELECT token_hash FROM logins",
}
STATE = "SELECT 'labels', id || ' ' || ordinal FROM sessions" + "".join(
    f" UNION ALL SELECT '{table}', each::text FROM ({query}) AS each" for table, query in STATES.items()
)
"""All of it in one query."""


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
    every = [(kind, *pair) for kind in SCENES for pair in pairs_in(kind)]
    random.Random(seed).shuffle(every)
    return iter(every)


def part_of_all(part: int, parts: int) -> Iterator[tuple[str, str, str]]:
    """One part of all combinations: a pair's scenes are in one part, so that equal ones are noticed."""
    scenes: dict[tuple[str, str], list[str]] = {}
    for kind in SCENES:
        for pair in pairs_in(kind):
            scenes.setdefault(pair, []).append(kind)
    return ((kind, *pair) for pair in list(scenes)[part::parts] for kind in scenes[pair])


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
