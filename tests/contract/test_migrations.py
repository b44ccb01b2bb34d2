"""Stores of an older schema are migrated. The old ones were written by commit 7dbfd3b: see `old_stores/`."""

import asyncio
import gzip
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast.domain.conversations import Address
from holdfast.errors import StoreUnusable
from holdfast.store import queries
from holdfast.store.postgres import migrations as postgres_migrations
from holdfast.store.postgres.engine import open_store as open_postgres
from holdfast.store.sqlite import migrations as sqlite_migrations
from holdfast.store.sqlite.engine import open_store as open_sqlite
from holdfast.store.store import Store
from tests.contract.steps import OWNER, contents, everything, new_node, say

OLD = Path(__file__).parent / "old_stores"
ENGINES = ("sqlite", "postgres")
postgres = pytest.mark.postgres


@pytest.fixture
def old_database(tmp_path: Path) -> Path:
    """A SQLite store of schema 10."""
    path = tmp_path / "store.db"
    path.write_bytes(gzip.decompress((OLD / "schema-10.db.gz").read_bytes()))
    return path


@pytest.fixture
def old_url(new_database: Callable[..., str]) -> str:
    """A PostgreSQL store of schema 10."""
    url = new_database(empty=True)
    with psycopg.connect(url) as connection:
        connection.execute(gzip.decompress((OLD / "schema-10.sql.gz").read_bytes()))
    return url


Reopen = Callable[[], Awaitable[Store]]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=postgres)])
def reopen(request: pytest.FixtureRequest) -> Reopen:
    """Opens the old store of one engine."""
    if request.param == "sqlite":
        path = request.getfixturevalue("old_database")
        return lambda: open_sqlite(path)
    url = request.getfixturevalue("old_url")
    return lambda: open_postgres(url)


def schema_of_sqlite(path: Path) -> dict[str, Any]:
    """Everything that defines the tables, in a form that does not depend on how they came about."""

    def plain(sql: str) -> str:
        """Without comments and white space."""
        return re.sub(r"\s+", "", re.sub(r"--.*", "", sql)).lower()

    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:

        def rows(sql: str, *values: str) -> list[Any]:
            return connection.execute(sql, values).fetchall()

        found: dict[str, Any] = {}
        for kind, name, sql in rows("SELECT type, name, sql FROM sqlite_schema ORDER BY name"):
            if kind == "table":
                # Constraints: a column that was added later stands behind them.
                checks = sorted(re.findall(r"check\(.*?\)(?=,|\))", plain(sql)))
                found[name] = (
                    rows("SELECT * FROM pragma_table_xinfo(?)", name),
                    rows("SELECT * FROM pragma_foreign_key_list(?)", name),
                    rows("SELECT name, [unique], origin, partial FROM pragma_index_list(?) ORDER BY 1", name),
                    rows("SELECT type, wr, strict FROM pragma_table_list WHERE name = ?", name),
                    checks,
                    "autoincrement" in plain(sql),
                )
            else:
                found[name] = (kind, plain(sql or ""))
        return found


CATALOGUE = {
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
               a.attidentity, l.collname, pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        LEFT JOIN pg_collation l ON l.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'holdfast'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
          AND c.relkind IN ('r', 'S')
        ORDER BY 1, 2""",
    "relations": """
        SELECT relname, relkind, relpersistence, reloptions FROM pg_class
        WHERE relnamespace = 'holdfast'::regnamespace AND relkind <> 't' ORDER BY 1""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'holdfast' ORDER BY 1",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'holdfast'::regnamespace ORDER BY 1, 2""",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
        ORDER BY 1, 2""",
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = 'holdfast'::regnamespace ORDER BY 1""",
    "sequences": """
        SELECT sequencename, data_type::text, start_value, increment_by, cycle FROM pg_sequences
        WHERE schemaname = 'holdfast' ORDER BY 1""",
    "owned": """
        SELECT s.relname, t.relname, d.refobjsubid
        FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
        JOIN pg_class t ON t.oid = d.refobjid AND t.relkind = 'r' ORDER BY 1""",
}


def schema_of_postgres(url: str) -> dict[str, Any]:
    with psycopg.connect(url) as connection:
        return {name: connection.execute(sql).fetchall() for name, sql in CATALOGUE.items()}


def version_of(url: str) -> tuple[int, int]:
    """The schema number, and the oldest program that may write."""
    with psycopg.connect(url) as connection:
        (row,) = connection.execute("SELECT schema, oldest FROM holdfast.store").fetchall()
        return row[0], row[1]


# --- a store of 7dbfd3b ------------------------------------------------------------------------------------


async def test_a_migrated_sqlite_store_has_the_schema_of_a_new_one(
    old_database: Path, tmp_path: Path
) -> None:
    await (await open_sqlite(old_database)).close()
    await (await open_sqlite(tmp_path / "new.db")).close()
    migrated, new = schema_of_sqlite(old_database), schema_of_sqlite(tmp_path / "new.db")
    assert migrated.keys() == new.keys()
    assert {name: (migrated[name], new[name]) for name in new if migrated[name] != new[name]} == {}
    assert len(new["conversations"][0]) >= 17


@postgres
async def test_a_migrated_postgresql_store_has_the_schema_of_a_new_one(
    old_url: str, new_database: Callable[..., str]
) -> None:
    await (await open_postgres(old_url)).close()
    url = new_database(empty=True)
    await (await open_postgres(url)).close()
    migrated, new = schema_of_postgres(old_url), schema_of_postgres(url)
    for part in CATALOGUE:
        assert new[part], part
        assert [row for row in migrated[part] if row not in new[part]] == [], part
        assert [row for row in new[part] if row not in migrated[part]] == [], part
    assert version_of(old_url) == version_of(url) and version_of(url)[0] == postgres_migrations.newest()


async def test_a_migrated_store_holds_all_that_the_old_one_held_and_goes_on(reopen: Reopen) -> None:
    store = await reopen()
    try:
        told = await everything(store)
        counted = {"conversations": 7, "sessions": 8, "flushes": 1, "memories": 2, "keys": 2, "processes": 1}
        assert {part: len(told[part]) for part in counted} == counted
        tides = (await store.resolve(OWNER, Address(key="cli:ada"))).conversation
        assert (tides.title, (await store.resolve(OWNER, Address(id="chat-17"))).conversation.id) == (
            "Tides",
            tides.id,
        )
        spoken = await contents(store, tides.id)
        assert spoken[:4] == [
            "the tide tables of Ostend",
            "High water is at six.",
            "and tomorrow?",
            "At seven.",
        ]
        (draft,) = [draft for drafts in told["drafts"] for draft in drafts]
        assert draft.adds == {"content": "half an ans"}
        notices = (await store.notices(OWNER)).items
        assert [notice.text for notice in notices] == ["The disk is full.", "The disk is fine."]
        assert await store.check() == []  # sizes among them: they were counted by a migration
        node = await new_node(store)
        await say(store, node, "and the day after?", "At eight.", key="cli:ada")
        assert await contents(store, tides.id) == [*spoken, "and the day after?", "At eight."]
        await store.add_notice(OWNER, tides.id, "process", "The disk is new.")
        assert [notice.text for notice in (await store.notices(OWNER, after=notices[-1].id)).items] == [
            "The disk is new."
        ]
        assert await store.check() == []
    finally:
        await store.close()


async def test_the_old_sqlite_store_is_kept_beside_the_new_one(old_database: Path) -> None:
    await (await open_sqlite(old_database)).close()
    (copy,) = old_database.parent.glob("store.db.schema-10-*.backup*")
    assert re.fullmatch(r"store\.db\.schema-10-\d{8}-\d{6}\.backup", copy.name)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    old = gzip.decompress((OLD / "schema-10.db.gz").read_bytes())
    original = old_database.with_name("original.db")
    original.write_bytes(old)
    assert schema_of_sqlite(copy) == schema_of_sqlite(original)
    assert rows_of(copy) == rows_of(original)


def rows_of(path: Path) -> dict[str, list[Any]]:
    """All rows of a SQLite store, but for its id, which a copy has of its own."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        return {
            name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables if name != "store"
        }


async def test_a_copy_that_cannot_be_made_leaves_the_store_as_it_was(
    old_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        target.write_bytes(b"half a copy")
        raise PermissionError("no room")

    before = old_database.read_bytes()
    monkeypatch.setattr(sqlite_migrations, "copy_database", refuse)
    with pytest.raises(StoreUnusable, match=r"cannot keep a copy of .*nothing was changed"):
        await open_sqlite(old_database)
    assert old_database.read_bytes() == before
    assert [*old_database.parent.glob("*.backup*")] == []


# --- failures ----------------------------------------------------------------------------------------------


@contextmanager
def one_more(engine: Any, text: str) -> Iterator[None]:
    """A version that knows one migration more."""
    known = [*engine.migrations(), (engine.newest() + 1, text)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "migrations", lambda: known)
        yield


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
import apsw
from holdfast.store.sqlite import migrations
from holdfast.store.sqlite.engine import open_store

def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

apsw.connection_hooks.append(lambda connection: connection.create_scalar_function("die", die, 0))
known = [*migrations.migrations(), (9000, "CREATE TABLE later (id TEXT) STRICT; SELECT die();")]
migrations.migrations = lambda: known
asyncio.run(open_store(Path(sys.argv[1])))
"""


async def test_a_process_killed_in_the_middle_leaves_the_old_store(old_database: Path) -> None:
    before, schema = rows_of(old_database), schema_of_sqlite(old_database)
    died = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", DYING, str(old_database)], env=os.environ, capture_output=True
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    connection = apsw.Connection(str(old_database))  # rolls back what the log holds
    assert connection.execute("PRAGMA user_version").get == 10
    connection.close()
    assert (rows_of(old_database), schema_of_sqlite(old_database)) == (before, schema)
    (copy,) = old_database.parent.glob("*.backup*")
    assert rows_of(copy) == before
    await (await open_sqlite(old_database)).close()  # and the next one migrates it


@postgres
async def test_a_connection_lost_in_the_middle_leaves_the_old_store(old_url: str) -> None:
    before = schema_of_postgres(old_url)
    with one_more(postgres_migrations, "SELECT pg_terminate_backend(pg_backend_pid());"):
        with pytest.raises(StoreUnusable):
            await open_postgres(old_url)
    assert schema_of_postgres(old_url) == before
    assert version_of(old_url) == (10, 1)
    await (await open_postgres(old_url)).close()


async def test_a_tampered_sqlite_store_is_not_migrated_halfway(old_database: Path) -> None:
    connection = apsw.Connection(str(old_database))
    connection.execute("ALTER TABLE turns ADD COLUMN delivery TEXT")  # the last migration adds it too
    connection.close()
    before = (rows_of(old_database), schema_of_sqlite(old_database))
    with pytest.raises(StoreUnusable, match="delivery"):
        await open_sqlite(old_database)
    assert (rows_of(old_database), schema_of_sqlite(old_database)) == before
    (copy,) = old_database.parent.glob("*.backup*")
    assert rows_of(copy) == before[0]


@postgres
async def test_a_tampered_postgresql_store_is_not_migrated_halfway(old_url: str) -> None:
    with psycopg.connect(old_url) as connection:
        connection.execute("ALTER TABLE holdfast.turns ADD COLUMN delivery TEXT")
    before = schema_of_postgres(old_url)
    with pytest.raises(StoreUnusable, match="delivery"):
        await open_postgres(old_url)
    assert schema_of_postgres(old_url) == before


async def test_several_that_migrate_at_once_migrate_once(reopen: Reopen, tmp_path: Path) -> None:
    stores = await asyncio.gather(*(reopen() for _ in range(4)))
    try:
        for store in stores:
            await say(store, await new_node(store))
            assert await store.check() == []
    finally:
        for store in stores:
            await store.close()
    assert len([*tmp_path.glob("*.backup*")]) <= 1  # PostgreSQL's is not copied


async def test_a_sqlite_store_older_than_any_that_is_migrated_is_refused(old_database: Path) -> None:
    connection = apsw.Connection(str(old_database))
    connection.execute(f"PRAGMA user_version = {sqlite_migrations.OLDEST - 1}")
    connection.close()
    before = old_database.read_bytes()
    with pytest.raises(StoreUnusable, match=r"schema 9; the oldest .* is 10\. Nothing was changed"):
        await open_sqlite(old_database)
    assert old_database.read_bytes() == before
    assert [*old_database.parent.glob("*.backup*")] == []


@postgres
async def test_a_postgresql_store_older_than_any_that_is_migrated_is_refused(old_url: str) -> None:
    with psycopg.connect(old_url) as connection:
        connection.execute("UPDATE holdfast.store SET schema = 9")
    before = schema_of_postgres(old_url)
    with pytest.raises(StoreUnusable, match=r"schema 9; the oldest .* is 10\. Nothing was changed"):
        await open_postgres(old_url)
    assert schema_of_postgres(old_url) == before


# --- files -------------------------------------------------------------------------------------------------


def test_both_engines_have_the_same_schema_number_and_migrations() -> None:
    sqlite, postgresql = (f"holdfast.store.{engine}" for engine in ENGINES)
    assert queries.schema(sqlite)[0] == queries.schema(postgresql)[0]
    numbers = [number for number, _ in queries.migrations(sqlite)]
    assert numbers == [number for number, _ in queries.migrations(postgresql)]
    assert len(set(numbers)) == len(numbers)


async def test_a_new_store_also_gets_the_migrations_after_its_schema(tmp_path: Path) -> None:
    with one_more(sqlite_migrations, "ALTER TABLE store ADD COLUMN later TEXT;"):
        await (await open_sqlite(tmp_path / "new.db")).close()
        newest = sqlite_migrations.newest()
    with closing(apsw.Connection(str(tmp_path / "new.db"))) as connection:
        assert connection.execute("SELECT later FROM store").fetchall() == [(None,)]
        assert connection.execute("PRAGMA user_version").get == newest
    assert [*tmp_path.glob("*.backup*")] == []


async def test_interrupted_turns_of_an_old_store_are_left_alone(reopen: Reopen) -> None:
    """They were not stored with their request: nothing takes them up, and nothing is changed in them."""
    store = await reopen()
    try:
        assert await store.count_waiting() == 0
        assert await store.due_turns() == []
        turns = [turn for each in (await everything(store))["turns"] for turn in each]
        assert {turn.status.value for turn in turns} & {"interrupted", "failed"}
        for turn in turns:
            assert not turn.waits and turn.recovery.origin is None and not turn.recovery.recover
    finally:
        await store.close()
