"""The SQLite engine and its files: what it refuses to open, and who may read them."""

import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from holdfast.domain.conversations import Address
from holdfast.errors import HoldfastError, StatementFailed, StoreFailed, StoreUnusable
from holdfast.store.sqlite import connections, files, migrations, restore, snapshots
from holdfast.store.sqlite.connections import APPLICATION_ID, check_library
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.store import Store
from tests.contract.sqlite_steps import Opening, a_closed_store, answer, script, snapshot
from tests.contract.steps import (
    OWNER,
    Clock,
    contents,
    everything,
    new_node,
    say,
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "home" / "store.db"


@pytest.fixture
async def opening(clock: Clock) -> AsyncIterator[Opening]:
    """Opens stores and closes them at the end of the test."""
    opened: list[SQLiteStore] = []

    async def open_it(path: Path, patience: float = 10.0) -> SQLiteStore:
        opened.append(await open_store(path, clock=clock, patience=patience))
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


# --- what it does not open -------------------------------------------------------------------------


async def test_a_new_store_is_marked_as_ours(database: Path) -> None:
    await a_closed_store(database)
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.execute("PRAGMA application_id").get == APPLICATION_ID
    assert connection.execute("PRAGMA user_version").get == migrations.newest()
    assert connection.execute("PRAGMA journal_mode").get == "wal"
    connection.close()


async def test_a_newer_schema_is_refused_and_left_as_it_is(database: Path, opening: Opening) -> None:
    await a_closed_store(database)
    connection = apsw.Connection(str(database))
    connection.execute("PRAGMA user_version = 9999")
    connection.close()
    before = snapshot(database.parent)
    with pytest.raises(StoreUnusable, match=r"schema 9999.*newer holdfast.*nothing was changed"):
        await opening(database)
    assert snapshot(database.parent) == before


@pytest.mark.parametrize("size", [10, 100, 511, 512, 5_000, 100_000])
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(
    tmp_path: Path, opening: Opening, size: int
) -> None:
    (tmp_path / "notes.txt").write_bytes(b"dear diary, " * (size // 12 + 1))
    before = snapshot(tmp_path)
    with pytest.raises(StoreUnusable):
        await opening(tmp_path / "notes.txt")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("mark", ["application_id = 1234", "application_id = 0"])
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
async def test_another_programs_database_is_refused_and_left_as_it_is(
    tmp_path: Path, opening: Opening, mark: str, journal: str
) -> None:
    connection = apsw.Connection(str(tmp_path / "other.db"))
    connection.execute(f"PRAGMA journal_mode = {journal}; PRAGMA {mark}")
    connection.execute("CREATE TABLE sessions (id); INSERT INTO sessions VALUES (1)")
    connection.close()
    before = snapshot(tmp_path)
    with pytest.raises(StoreUnusable, match="another program"):
        await opening(tmp_path / "other.db")
    assert snapshot(tmp_path) == before


async def test_a_log_that_cannot_be_looked_at_is_an_unusable_store(
    database: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await opening(database)).close()
    found = os.stat

    def broken(path: object, *args: object, **named: object) -> os.stat_result:
        if str(path).endswith("-wal"):
            raise OSError(5, "Input/output error", str(path))
        return found(path, *args, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", broken)
        with pytest.raises(StoreUnusable, match="Input/output error"):
            await opening(database)
    await opening(database)


async def test_a_restore_behind_a_link_replaces_the_file_itself(tmp_path: Path, opening: Opening) -> None:
    database, link, copy = tmp_path / "disk" / "store.db", tmp_path / "link.db", tmp_path / "copy.db"
    database.parent.mkdir()
    link.symlink_to(database)
    store = await opening(link)
    await say(store, await new_node(store), "before", key="k")
    await store.backup(copy)
    await say(store, await new_node(store), "after", key="k")
    await store.close()
    aside = restore.restore(copy, link)
    assert link.is_symlink() and aside is not None and aside.parent == database.parent
    for path, expected in (
        (link, ["before", "hi"]),
        (aside / database.name, ["before", "hi", "after", "hi"]),
    ):
        again = await opening(path)
        conversation = (await again.resolve(OWNER, Address(key="k"))).conversation.id
        assert await contents(again, conversation) == expected


async def test_the_copy_for_a_migration_is_deleted_whatever_the_name_of_the_store(tmp_path: Path) -> None:
    database, another = tmp_path / "kelp[1].db", tmp_path / "kelp1.db.moving"
    await a_closed_store(database)
    another.touch()
    with snapshots.snapshot(database, 0) as copied:
        assert copied.tables()
    assert sorted(path.name for path in tmp_path.glob("*.moving*")) == [another.name]


async def test_an_empty_file_becomes_a_store(tmp_path: Path, opening: Opening) -> None:
    (tmp_path / "store.db").touch()
    store = await opening(tmp_path / "store.db")
    await say(store, await new_node(store))


async def test_a_path_that_cannot_hold_a_store_is_refused(tmp_path: Path, opening: Opening) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "directory").mkdir()
    before = snapshot(tmp_path)
    for path in (
        tmp_path / "file" / "store.db",
        tmp_path / "file" / "deeper" / "s.db",
        tmp_path / "directory",
    ):
        with pytest.raises(StoreUnusable):
            await opening(path)
    assert snapshot(tmp_path) == before


READ_ONLY = """
import asyncio, json, os, sys, traceback
from pathlib import Path
from holdfast.errors import HoldfastError
from holdfast.store.sqlite.engine import open_store

async def attempt(path):
    try:
        store = await open_store(Path(path))
    except HoldfastError as error:
        return type(error).__name__
    await store.close()
    return "opened"

warm_up, *paths = sys.argv[1:]
assert asyncio.run(attempt(warm_up)) == "opened"  # everything is imported while we still may
if os.getuid() == 0:  # root may write anywhere; be somebody else
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([asyncio.run(attempt(path)) for path in paths]))
"""


@contextmanager
def a_world_readable_directory() -> Iterator[Path]:
    """pytest's own directories are closed to the user that a script becomes."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-"))
    try:
        directory.chmod(0o755)
        yield directory
    finally:
        for path in [directory, *directory.rglob("*")]:
            path.chmod(0o700)
        shutil.rmtree(directory)


async def test_a_read_only_directory_is_refused_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    with a_world_readable_directory() as there:
        empty, full = there / "empty", there / "full"
        empty.mkdir()
        await a_closed_store(full / "store.db")
        (full / "store.db").chmod(0o666)
        for directory in (empty, full):
            directory.chmod(0o555)
        before = snapshot(there)
        paths = [empty / "store.db", empty / "deeper" / "store.db", full / "store.db"]
        assert answer(script(READ_ONLY, tmp_path / "warm.db", *paths)) == ["StoreUnusable"] * 3
        assert snapshot(there) == before


async def test_a_read_only_file_is_refused_at_the_door(tmp_path: Path) -> None:
    """Better there than at the first message somebody has already written."""
    with a_world_readable_directory() as there:
        await a_closed_store(there / "home" / "store.db")
        (there / "home" / "store.db").chmod(0o444)
        (there / "home").chmod(0o777)
        before = snapshot(there)
        assert answer(script(READ_ONLY, tmp_path / "warm.db", there / "home" / "store.db")) == [
            "StoreUnusable"
        ]
        assert snapshot(there) == before


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
async def test_a_network_filesystem_is_refused_before_a_file_is_made(
    database: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(files, "filesystem_of", lambda path: kind)
    with pytest.raises(StoreUnusable, match="network filesystem"):
        await opening(database)
    assert not database.exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "apfs", ""])
async def test_a_local_or_unknown_filesystem_is_taken(
    database: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(files, "filesystem_of", lambda path: kind)
    await opening(database)
    assert database.exists()


@pytest.mark.parametrize("version", ["3.40.1", "3.50.4", "3.51.2", "3.52.0"])
async def test_a_sqlite_with_the_wal_reset_bug_is_refused_before_a_file_is_made(
    database: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    with pytest.raises(StoreUnusable, match=version):
        check_library(version)
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(StoreUnusable, match=version):
        await opening(database)
    assert not database.parent.exists()


@pytest.mark.parametrize("version", ["3.51.3", "3.51.10", "3.52.1", "3.53.0", "3.54.1", "4.0.0"])
def test_a_sqlite_without_it_is_taken(version: str) -> None:
    check_library(version)


# --- corruption ------------------------------------------------------------------------------------

PAGE = 4096


def spoil(database: Path, table: str) -> None:
    """Overwrite the page that leads to everything in a table of a closed database."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    root = int(str(connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get))
    connection.close()
    data = bytearray(database.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = b"\xff" * PAGE
    database.write_bytes(data)


async def test_a_corrupt_page_stops_the_store_with_its_name(database: Path, opening: Opening) -> None:
    await a_closed_store(database, turns=20)
    spoil(database, "messages")
    store = await opening(database)
    session = (await store.resolve(OWNER, Address(key="cli:ada"))).tip
    with pytest.raises(StoreFailed, match="corrupt"):
        await store.context(OWNER, session.id)
    with pytest.raises(StoreFailed, match="corrupt"):
        await new_node(store)
    assert isinstance(store.failure, StoreFailed)


async def test_a_corrupt_page_met_while_writing_stops_the_store_too(database: Path, opening: Opening) -> None:
    await a_closed_store(database, turns=20)
    spoil(database, "messages")
    store = await opening(database)
    node = await new_node(store)
    with pytest.raises(StoreFailed, match="corrupt"):
        await say(store, node, key="cli:ada")
    with pytest.raises(StoreFailed, match="corrupt"):
        await store.beat(node.id)


@contextmanager
def failing_connections(error: apsw.Error) -> Iterator[None]:
    """Readers connect at their first use: now they get this error of SQLite."""

    def fail(*_: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connections, "_set_up", fail)
        yield


async def a_read(store: Store) -> None:
    await store.conversations(OWNER)


async def a_look_for_changes(store: Store) -> None:
    store.version()


a_first_use = pytest.mark.parametrize("use", [a_read, a_look_for_changes])


@a_first_use
async def test_a_corrupt_page_met_while_a_reader_connects_stops_the_store(
    database: Path, opening: Opening, use: Callable[[Store], Awaitable[None]]
) -> None:
    store = await opening(database)
    with failing_connections(apsw.CorruptError("database disk image is malformed")):
        with pytest.raises(StoreFailed, match="corrupt"):
            await use(store)
    with pytest.raises(StoreFailed, match="corrupt"):
        await new_node(store)


@a_first_use
async def test_no_memory_for_a_reader_concerns_its_caller_alone(
    database: Path, opening: Opening, use: Callable[[Store], Awaitable[None]]
) -> None:
    store = await opening(database)
    with failing_connections(apsw.NoMemError("out of memory")):
        with pytest.raises(StatementFailed, match="out of memory"):
            await use(store)
    await use(store)
    await new_node(store)


@pytest.mark.parametrize("table", ["messages", "sessions", "events", "sessions_by_owner"])
async def test_a_check_of_a_corrupt_store_finds_it(database: Path, opening: Opening, table: str) -> None:
    await a_closed_store(database, turns=20)
    spoil(database, table)
    store = await opening(database)
    try:
        findings = await store.check()
    except StoreFailed as failure:
        assert "corrupt" in str(failure)
    else:
        assert findings


async def test_a_corrupt_first_page_is_refused_at_the_door(database: Path, opening: Opening) -> None:
    await a_closed_store(database)
    data = bytearray(database.read_bytes())
    data[100:PAGE] = b"\xff" * (PAGE - 100)
    database.write_bytes(data)
    before = database.read_bytes()
    with pytest.raises(HoldfastError):
        store = await opening(database)
        await everything(store)
    assert database.read_bytes() == before


# --- who may read ----------------------------------------------------------------------------------


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
async def test_every_file_and_directory_is_its_owners_alone_whatever_the_umask(
    tmp_path: Path, opening: Opening, mask: int
) -> None:
    home = tmp_path / "new" / "deeper" / "home"
    with umask(mask):
        store = await opening(home / "store.db")
        await say(store, await new_node(store), "kelp")
        await store.search(OWNER, "kelp")
        await store.repair()
        await store.backup(home / "copy.db")
        assert os.umask(mask) == mask
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*")}
    assert {"store.db", "store.db-wal", "store.db-shm", "store.db.search", "store.db.nodes", "copy.db"} <= {
        *found
    }
    directories = {path.name for path in (tmp_path / "new").rglob("*") if path.is_dir()}
    found["new"] = stat.S_IMODE((tmp_path / "new").stat().st_mode)
    wrong = {
        name: oct(mode)
        for name, mode in found.items()
        if mode != (0o700 if name in {*directories, "new"} else 0o600)
    }
    assert wrong == {}


async def test_an_existing_directory_keeps_its_mode(tmp_path: Path, opening: Opening) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)  # the umask may allow less
    await opening(tmp_path / "shared" / "store.db")
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755
