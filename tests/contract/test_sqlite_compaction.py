"""A conversation compacted a thousand times costs as much as one compacted a few times."""

from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.compaction import Claim, Compacted, CompactionStats, KeepPolicy, Plan, Trigger, plan
from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.sessions import Edge, Session
from holdfast.store.sqlite import connections, engine
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from tests.contract.steps import OWNER, begin, context_of, new_node, say, to_message
from tests.contract.test_sqlite_queries import Meter

COMPACTIONS = 1000
SPAN = timedelta(minutes=5)


@pytest.fixture
async def metered(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SQLiteStore, Meter]]:
    meter = Meter()
    connect = connections.connect

    def connect_metered(*arguments: Any, **options: Any) -> apsw.Connection:
        connection = connect(*arguments, **options)
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, meter.note)
        return connection

    monkeypatch.setattr(engine, "connect", connect_metered)
    store = await open_store(home / "store.db")
    yield store, meter
    assert await store.check() == []
    await store.close()


async def compacted(store: SQLiteStore, node: Node, session_id: str, number: int) -> Session:
    """As the compactor would: claim, read, plan, swap."""
    claim = await store.claim_compaction(session_id, node.id, SPAN, why=Trigger.THRESHOLD, tokens=1, window=1)
    assert isinstance(claim, Claim), claim
    outline = await store.outline(None, session_id)
    found = plan(
        outline.entries,
        KeepPolicy(2, 2),
        lambda weight: weight.bytes,
        40,
        last_seq=outline.session.last_seq,
        open_part=outline.open_part,
    )
    assert isinstance(found, Plan)
    view = found.view([f"gist {number}"])
    outcome = await store.compact(claim, view, outline.revision, CompactionStats(Trigger.THRESHOLD, 2, 1, 1))
    assert isinstance(outcome, Compacted), outcome
    return outcome.session


async def test_after_a_thousand_compactions_everything_costs_what_it_did_after_thirty(
    metered: tuple[SQLiteStore, Meter],
) -> None:
    store, meter = metered
    node = await new_node(store)
    first = (await say(store, node, "1", "2", key="cli:ada")).session.id

    async def cost(work: Awaitable[object]) -> tuple[int, int]:
        store._cache.clear()
        meter.clear()
        await work
        return len(meter.statements), meter.steps

    async def costs() -> dict[str, tuple[int, int]]:
        tip = (await store.resolve(OWNER, Address(id=first))).tip
        found = {
            "resolve by the first id": await cost(store.resolve(OWNER, Address(id=first))),
            "resolve by the key": await cost(store.resolve(OWNER, Address(key="cli:ada"))),
            "context": await cost(store.context(OWNER, tip.id)),
            "outline": await cost(store.outline(OWNER, tip.id)),
            "report": await cost(store.report(tip.conversation_id)),
        }
        meter.clear()
        begun = await begin(store, node, "more", id=first)
        found["begin a turn"] = len(meter.statements), meter.steps
        meter.clear()
        await store.commit_reply(begun.lease, [to_message("and more", "assistant")])
        found["commit its reply"] = len(meter.statements), meter.steps
        meter.clear()
        await compacted(store, node, begun.session.id, 0)
        found["compact"] = len(meter.statements), meter.steps
        return found

    early: dict[str, tuple[int, int]] = {}
    for number in range(1, COMPACTIONS + 1):
        begun = await say(store, node, "more " * 5, "and more " * 5, id=first)
        await compacted(store, node, begun.session.id, number)
        if number == 30:
            early = await costs()
    late = await costs()
    for what, (statements, steps) in late.items():
        assert statements == early[what][0], what
        assert steps <= early[what][1] * 1.1 + 20, (what, early[what], late[what])

    line = await store.line(OWNER, begun.session.conversation_id)
    assert len(line) == COMPACTIONS + 3
    assert {each.edge for each in line[1:]} == {Edge.COMPACTION}
    for each in (line[0], line[1], line[500], line[-2]):
        assert (await store.resolve(OWNER, Address(id=each.id))).tip.id == line[-1].id
    assert len(await context_of(store, line[-1].id)) == 3
    # Every original is still there, and can be read in what its own session saw.
    page = await store.messages(OWNER, begun.session.conversation_id, limit=10_000)
    assert [each.seq for each in page.items] == list(range(1, 2 * (COMPACTIONS + 3) + 1))
    assert (await context_of(store, line[0].id)) == ["1", "2", "more " * 5, "and more " * 5]
