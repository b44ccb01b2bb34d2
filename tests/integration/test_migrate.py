"""`holdfast migrate`: a SQLite store in PostgreSQL, whole, verified, resumable, and never over another's."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.conversations import Address
from holdfast.domain.request_keys import RequestKey
from holdfast.errors import BadInput, StoreBusy, StoreError, StoreUnusable
from holdfast.runtime.agents.reaper import Reaper
from holdfast.store.postgres import moving
from holdfast.store.postgres.connections import DatabaseAddress, open_connection
from holdfast.store.postgres.engine import open_store as open_postgres
from holdfast.store.postgres.moving import Move, MoveStep
from holdfast.store.sqlite.engine import open_store as open_sqlite
from holdfast.store.sqlite.snapshots import OWN, snapshot
from holdfast.store.store import Store
from holdfast.transfer.migrate import STAYED, Mover
from tests.conftest import DatabaseMaker
from tests.contract.steps import (
    OWNER,
    POLICIES,
    Clock,
    all_events,
    begin,
    calling,
    contents,
    draft,
    everything,
    files_of,
    new_node,
    result,
    say,
    to_message,
    with_files,
)

pytestmark = pytest.mark.postgres

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DERIVED = {"search", "unindexed", "store", "moves"}
"""PostgreSQL's own tables: who the store is, what can be found, where it came from."""


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    """A store in which much has happened, left as a killed program leaves it."""
    path, clock = tmp_path / "agent.db", Clock(NOON)
    store = await open_sqlite(path, clock=clock, policies=POLICIES)
    node = await new_node(store)
    for number in range(30):
        await say(store, node, f"kelp {number}", f"ärger\x7f {number}", key=f"cli:{number % 7}")
    tools = await begin(store, node, "look", key="tools", request_key=RequestKey("/r", "k", b"h" * 32))
    await store.append(tools.lease, [to_message(calling("a")), to_message(result("a"))])
    await store.commit_reply(tools.lease, [to_message("42", "assistant")], answer=b'{"id":"x"}')
    await store.exclude(OWNER, tools.session.conversation_id, [1], "wrong")
    await store.delete_message(OWNER, tools.session.conversation_id, 2)
    await store.fork(OWNER, tools.session.id, node.id)
    await say(store, node, "by another name", id="telegram-42")
    due = await say(store, node, "soon idle", key="idle:1")
    clock.move(hours=3)
    assert await store.reset_session(due.session.id)
    key, token = new_key(OWNER, Scope.CHAT, (), store.now())
    await store.add_key(key, token.hash)
    await with_files(store, node, b"\x00OggS" * 1000, b"")
    left = await begin(store, node, "are you", key="cli:left", attached=True)
    await store.append_draft(left.lease, draft(0, "I was"))
    await store.close()  # without leaving
    return path


@asynccontextmanager
async def opened(at: Path | str) -> AsyncIterator[Store]:
    store: Store
    if isinstance(at, Path):
        store = await open_sqlite(at, clock=Clock(NOON), policies=POLICIES)
    else:
        store = await open_postgres(at, clock=Clock(NOON), policies=POLICIES)
    try:
        yield store
    finally:
        await store.close()


def content(database: Path) -> dict[str, list[Any]]:
    """Every row of a database that nobody has open."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = {table: sorted(map(repr, connection.execute(f'SELECT * FROM "{table}"'))) for table in tables}
    connection.close()
    return found


async def settled(store: Store) -> None:
    """What moving does with nodes that stay, done in the original."""
    for node in await store.nodes():
        await store.reap(node.id, node.beat, STAYED)
    await Reaper(store, own_node=lambda: None).reap_once()


async def shown(store: Store) -> dict[str, Any]:
    """All that a store shows, but for the times at which what was left open came to rest."""
    found = await everything(store)
    return {
        "contexts": found["contexts"],
        "keys": found["keys"],
        "statistics": found["statistics"],
        "messages": [
            [(each.seq, each.role, each.status, each.body) for each in line] for line in found["messages"]
        ],
        "turns": [[(turn.id, turn.status, turn.error) for turn in line] for line in found["turns"]],
        "drafts": found["drafts"],
        "sessions": [
            (each.id, each.tip_id, each.edge, each.end_reason, each.view) for each in found["sessions"]
        ],
        "conversations": [(each.id, each.key, each.token, each.last_seq) for each in found["conversations"]],
        "events": [(event.id, event.type, event.session_id) for event in found["events"]],
    }


async def test_everything_is_there_and_reads_the_same(database: Path, new_database: DatabaseMaker) -> None:
    before, url = content(database), new_database(empty=True)
    steps: list[MoveStep] = []
    arrived = await Mover(database, url, steps.append).move_once()
    assert content(database) == before
    assert {path.name for path in database.parent.iterdir()} <= {
        database.name, f"{database.name}-wal", f"{database.name}-shm", f"{database.name}.nodes",
        f"{database.name}.search",
    }  # fmt: skip
    assert {table.table: table.rows for table in arrived.tables} == {
        table: len(rows) for table, rows in before.items() if table not in OWN and "sqlite_" not in table
    }
    assert arrived.rows > 200
    assert all(step.done <= step.total for step in steps)
    with psycopg.connect(url) as connection:  # -1: never analysed
        known = "SELECT reltuples FROM pg_class WHERE oid = 'holdfast.messages'::regclass"
        assert connection.execute(known).fetchone() == (len(before["messages"]),)
    async with opened(url) as target, opened(database) as source:
        await settled(source)
        there, here = [await shown(store) for store in (target, source)]
        assert there == here
        assert all(node.gone for node in await target.nodes(gone=True))
        assert await target.check() == []
        assert len(await target.search(OWNER, "kelp", limit=100)) == 30
        chat = (await target.resolve("phone/42", Address(key="telegram:dm:42"))).conversation.id
        assert await files_of(target, chat) == await files_of(source, chat)
        assert [body for _, body in await files_of(target, chat)] == [b"\x00OggS" * 1000, b""]


async def test_it_goes_on_where_it_was(database: Path, new_database: DatabaseMaker) -> None:
    """Numbers, tokens and names are those of the original: the next turn is simply the next."""
    url = new_database(empty=True)
    await Mover(database, url).move_once()
    async with opened(url) as target:
        node = await new_node(target)
        last = (await all_events(target))[-1].id
        again = await say(target, node, "still there?", "yes", key="cli:left")
        assert await contents(target, again.session.conversation_id) == [
            "are you", "I was", "still there?", "yes",
        ]  # fmt: skip
        assert (await all_events(target))[-1].id > last
        named = await say(target, node, "and by that name?", id="telegram-42")
        assert len(await contents(target, named.session.conversation_id)) == 4
        assert await target.check() == []


async def test_every_table_and_column_has_a_place(tmp_path: Path, new_database: DatabaseMaker) -> None:
    """Whoever adds a table to one engine is told here that the other lacks it, or that moving forgets it."""
    database, url = tmp_path / "empty.db", new_database(empty=True)
    async with opened(database):
        pass
    await Mover(database, url).move_once()
    connection = open_connection(DatabaseAddress.parse(url))
    here = {
        row[0]
        for row in connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
    }
    with snapshot(database, 0) as source:
        moved = {table.name for table in source.tables()}
        for table in source.tables():
            columns = {
                row[0]
                for row in connection.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_name = %s", (table.name,)
                )
            }
            assert set(table.columns) <= columns, table.name
    connection.close()
    assert moved == here - DERIVED


async def test_another_store_is_never_touched(
    database: Path, tmp_path: Path, new_database: DatabaseMaker
) -> None:
    url = new_database()
    async with opened(url) as target:
        session = (await say(target, await new_node(target), "mine")).session
        before = await everything(target)
        with pytest.raises(BadInput, match="holds another store already; nothing was changed"):
            await Mover(database, url).move_once()
        assert await everything(target) == before
        assert await contents(target, session.conversation_id) == ["mine", "hi"]


async def test_a_finished_move_is_not_repeated_over_what_was_said_since(
    database: Path, tmp_path: Path, new_database: DatabaseMaker
) -> None:
    url, other = new_database(empty=True), tmp_path / "other.db"
    await Mover(database, url).move_once()
    async with opened(url) as target:
        session = (await say(target, await new_node(target), "news", key="cli:1")).session
    async with opened(other) as store:
        await say(store, await new_node(store))
    for source, why in ((database, "was already migrated to"), (other, "from another store")):
        with pytest.raises(BadInput, match=why):
            await Mover(source, url).move_once()
    async with opened(url) as target:
        assert (await contents(target, session.conversation_id))[-2:] == ["news", "hi"]


async def test_two_at_once_do_not_undo_each_others_work(database: Path, new_database: DatabaseMaker) -> None:
    url = new_database(empty=True)
    async with opened(url):
        first = Move(DatabaseAddress.parse(url), lambda _step: None)
        try:
            with snapshot(database, 0) as source:
                first.copy(source, 0)
            with pytest.raises(StoreBusy, match="another `holdfast migrate`"):
                await Mover(database, url).move_once()
        finally:
            first.close()
    await Mover(database, url).move_once()


@pytest.mark.parametrize("what", ["nothing", "text", "another program's"])
async def test_what_is_no_store_is_not_moved(tmp_path: Path, new_database: DatabaseMaker, what: str) -> None:
    database = tmp_path / "x.db"
    if what == "text":
        database.write_text("hello")
    elif what == "another program's":
        apsw.Connection(str(database)).execute("CREATE TABLE kelp (id)")
    with pytest.raises(StoreUnusable):
        Mover(database, new_database(empty=True)).still_running()


async def test_a_copy_that_is_not_the_same_is_noticed(
    database: Path, new_database: DatabaseMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = moving._TargetTable.replace

    def lossy(self: Any, behind: Any, upto: Any, piece: Any) -> None:
        whole(self, behind, upto, piece[:-1] if self.name == "messages" else piece)

    monkeypatch.setattr(moving._TargetTable, "replace", lossy)
    with pytest.raises(StoreError, match=r"table messages .* differs from its original"):
        await Mover(database, new_database(empty=True)).move_once()


async def test_a_value_that_changed_on_the_way_is_noticed(
    database: Path, new_database: DatabaseMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database(empty=True)
    verify = Move._verify

    def tampered(self: Any, source: Any, place: Any) -> Any:
        if place.name == "conversations":
            self._connection.execute("UPDATE conversations SET last_seq = last_seq + 1 WHERE key = 'cli:1'")
        return verify(self, source, place)

    monkeypatch.setattr(Move, "_verify", tampered)
    with pytest.raises(StoreError, match="table conversations"):
        await Mover(database, url).move_once()


def rows_in(url: str, tables: Iterable[str]) -> int:
    with psycopg.connect(url, options="-c search_path=holdfast") as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in tables]
    return sum(row[0] for row in counts if row)


SLOWLY = """
import asyncio, sys, time
from pathlib import Path
from holdfast.transfer.migrate import Mover
from holdfast.store.postgres import moving
moving.PIECE_ROWS = 5
def step(step):
    print(step.table, step.done, flush=True)
    time.sleep(0.005)
asyncio.run(Mover(Path(sys.argv[1]), sys.argv[2], step).move_once())
"""


@pytest.mark.parametrize("after", ["sessions", "messages"])
async def test_a_killed_move_goes_on_where_it_was(
    database: Path, new_database: DatabaseMaker, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of a table, then on what was there already; the original goes on meanwhile."""
    url, before = new_database(empty=True), content(database)
    for _ in range(2):
        mover = subprocess.Popen(
            [sys.executable, "-c", SLOWLY, str(database), url], stdout=subprocess.PIPE, text=True
        )
        assert mover.stdout is not None
        for line in mover.stdout:
            if line.split() == [after, "10"]:
                break
        os.kill(mover.pid, signal.SIGKILL)
        mover.wait()
        mover.stdout.close()
    assert rows_in(url, [after]) > 0
    assert content(database) == before
    with pytest.raises(StoreUnusable, match="is not complete; finish it with `holdfast migrate`"):
        await open_postgres(url)
    async with opened(database) as source:
        await say(source, await new_node(source), "said meanwhile", key="cli:3")
    replaced: list[str] = []
    whole = moving._TargetTable.replace

    def counting(self: Any, *arguments: Any) -> None:
        replaced.append(self.name)
        whole(self, *arguments)

    monkeypatch.setattr(moving._TargetTable, "replace", counting)
    until = time.monotonic() + 60
    while True:
        try:
            await Mover(database, url).move_once()
            break
        except StoreBusy:  # PostgreSQL has not noticed yet that the killed one is gone
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
    assert "nodes" in replaced  # a node was there meanwhile
    assert "api_keys" not in replaced  # these had come, and stayed
    async with opened(url) as target:
        found = await say(target, await new_node(target), "go on", key="cli:3")
        assert "said meanwhile" in await contents(target, found.session.conversation_id)
        assert await target.check() == []
