"""The SQLite engine and its files: what it refuses to open, who may read them, what it notices."""

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Liveness
from holdfast.errors import HoldfastError, StoreBusy, StoreFailed, StoreUnusable, StoreUpgraded
from holdfast.store.sqlite import files, migrations
from holdfast.store.sqlite.connections import APPLICATION_ID, check_library
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from tests.contract.steps import (
    OWNER,
    Clock,
    begin,
    contents,
    draft,
    everything,
    new_node,
    request,
    say,
    to_message,
)

Opening = Callable[..., Awaitable[SQLiteStore]]


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


async def a_closed_store(database: Path, turns: int = 1) -> list[object]:
    """A store with something in it, closed; returns its contents."""
    store = await open_store(database)
    node = await new_node(store)
    for number in range(turns):
        session = (await say(store, node, f"kelp {number}", key="cli:ada")).session
    told = await contents(store, session.conversation_id)
    await store.leave(node.id, "closed")
    await store.close()
    return told


def snapshot(directory: Path) -> dict[str, bytes | None]:
    """Every file below a directory and what it holds. Only for databases that nobody has open."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def script(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a Python script in a process of its own, with what the tests can import."""
    source = Path(holdfast.__file__).parents[1]
    path = os.pathsep.join([str(source), str(Path(__file__).parents[2])])
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answer(finished: subprocess.CompletedProcess[str]) -> object:
    """What a script said on its last line, as JSON."""
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


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
    (tmp_path / "shared").mkdir(mode=0o755)
    await opening(tmp_path / "shared" / "store.db")
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


# --- nothing but SQLite touches the files ----------------------------------------------------------

WATCHED = """
import asyncio, json, os, sys
from pathlib import Path

home = Path(sys.argv[1])
touched = []

def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = Path(os.path.abspath(os.fsdecode(arguments[0])))
        if path.parent == home and path.name.startswith("store.db"):
            touched.append(path.name)

sys.addaudithook(hook)

from holdfast.store.sqlite.engine import open_store
from tests.contract.steps import OWNER, begin, draft, everything, new_node, reap, say, sweep

async def live():
    store, other = await open_store(home / "store.db"), await open_store(home / "store.db")
    node, dead = await new_node(store), await new_node(other)
    session = (await say(store, node, "kelp")).session
    await begin(other, dead, attached=True)
    await store.search(OWNER, "kelp")
    await store.fork(OWNER, session.id, node.id)
    await store.delete_message(OWNER, session.conversation_id, 1)
    await store.probe(await store.nodes())
    await reap(store, dead)
    await sweep(store)
    await store.changed(store.version(), 0)
    await everything(store)
    await store.backup(home / "copy.db")
    await store.check()
    await store.repair()
    await other.close()
    await store.leave(node.id, "closed")
    await store.close()

asyncio.run(live())
asyncio.run(live())
while_alive = list(touched)
open(home / "store.db", "rb").close()
print(json.dumps([while_alive, touched]))
"""


def test_no_plain_open_ever_touches_the_database_its_log_or_its_shared_memory(tmp_path: Path) -> None:
    text = WATCHED.replace('home / "copy.db"', "home / os.urandom(8).hex()")
    told = answer(script(text, tmp_path))
    assert told == [[], ["store.db"]], "the hook must see its own open() and no other"


FORKS = """
import asyncio, json, os, sys
from pathlib import Path
from holdfast.domain.conversations import Address
from holdfast.errors import StoreClosed
from holdfast.store.base import SessionFilter
from holdfast.store.sqlite.engine import open_store
from tests.contract.steps import OWNER, begin, contents, new_node, request, say, to_message

home = Path(sys.argv[1])

async def in_the_child(store, node, begun):
    otherwise = {}
    verbs = {
        "begin_turn": lambda: store.begin_turn(request(node)),
        "append": lambda: store.append(begun.lease, [to_message("from the child", "assistant")]),
        "commit_reply": lambda: store.commit_reply(begun.lease),
        "sessions": lambda: store.sessions(SessionFilter(OWNER)),
        "context": lambda: store.context(OWNER, begun.session.id),
        "search": lambda: store.search(OWNER, "hello"),
        "beat": lambda: store.beat(node.id),
        "join": lambda: store.join(node),
        "leave": lambda: store.leave(node.id, "closed"),
        "probe": lambda: store.probe([node]),
        "changed": lambda: store.changed(0, 0),
        "check": lambda: store.check(),
        "repair": lambda: store.repair(),
        "backup": lambda: store.backup(home / "copy.db"),
    }
    for name, verb in verbs.items():
        try:
            await asyncio.wait_for(verb(), 2)
            otherwise[name] = "done"
        except StoreClosed:
            continue
        except BaseException as error:
            otherwise[name] = repr(error)
    await store.close()
    return otherwise

def fork(store, node, begun):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            loop = asyncio.new_event_loop()
            asyncio.events._set_running_loop(None)
            os.write(write, json.dumps(loop.run_until_complete(in_the_child(store, node, begun))).encode())
        finally:
            os._exit(0)
    os.close(write)
    told = b""
    while chunk := os.read(read, 65536):
        told += chunk
    os.waitpid(child, 0)
    return json.loads(told)

async def live():
    store = await open_store(home / "store.db")
    node = await new_node(store)
    begun = await begin(store, node)
    await store.search(OWNER, "hello")
    otherwise = fork(store, node, begun)
    await store.append(begun.lease, [to_message("from the parent", "assistant")])
    await store.commit_reply(begun.lease)
    await store.beat(node.id)
    told = await contents(store, begun.session.conversation_id)
    found = await store.check()
    await store.close()
    return [otherwise, told, len(found), (home / "copy.db").exists()]

print(json.dumps(asyncio.run(live())))
"""


def test_a_forked_child_cannot_use_the_store_and_the_parent_goes_on(tmp_path: Path) -> None:
    assert answer(script(FORKS, tmp_path)) == [{}, ["hello", "from the parent"], 0, False]


SURVIVING_CHILD = """
import asyncio, os, sys, time
from pathlib import Path
from holdfast.store.sqlite.engine import open_store
from tests.contract.steps import new_node

async def live():
    store = await open_store(Path(sys.argv[1]) / "store.db")
    node = await new_node(store)
    child = os.fork()
    if child == 0:
        os.close(1)
        os.close(2)
        time.sleep(60)
        os._exit(0)
    print(f'"{node.id} {child}"', flush=True)
    os._exit(0)

asyncio.run(live())
"""


async def test_a_forked_child_does_not_keep_its_dead_parent_alive(tmp_path: Path, opening: Opening) -> None:
    told = answer(script(SURVIVING_CHILD, tmp_path))
    node_id, child = str(told).split()
    try:
        os.kill(int(child), 0)
        store = await opening(tmp_path / "store.db")
        (node,) = await store.nodes()
        assert node.id == node_id
        assert (await store.probe([node]))[node_id][0] is Liveness.DEAD
    finally:
        os.kill(int(child), signal.SIGKILL)


# --- files that are taken away ---------------------------------------------------------------------


async def test_a_replaced_database_is_noticed_before_anything_is_acknowledged(
    tmp_path: Path, opening: Opening
) -> None:
    database = tmp_path / "store.db"
    await a_closed_store(tmp_path / "other.db")
    store = await opening(database)
    node = await new_node(store)
    begun = await begin(store, node)
    os.replace(tmp_path / "other.db", database)
    with pytest.raises(StoreFailed):
        await store.append(begun.lease, [to_message("lost", "assistant")])
    with pytest.raises(StoreFailed):
        await store.begin_turn(request(node))
    assert isinstance(store.failure, StoreFailed)


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_vanished_file_is_noticed_before_anything_is_acknowledged(
    tmp_path: Path, opening: Opening, suffix: str, how: str
) -> None:
    store = await opening(tmp_path / "store.db")
    node = await new_node(store)
    begun = await begin(store, node)
    victim = tmp_path / f"store.db{suffix}"
    victim.rename(tmp_path / "elsewhere")
    if how == "replaced":
        shutil.copy(tmp_path / "elsewhere", victim)
    outcomes = await asyncio.gather(
        store.append(begun.lease, [to_message("lost", "assistant")]),
        store.append_draft(begun.lease, draft(0, "lost")),
        store.commit_reply(begun.lease),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [StoreFailed] * 3
    with pytest.raises(StoreFailed):
        await store.beat(node.id)


async def test_a_lock_that_is_held_too_long_is_busy_and_passes(tmp_path: Path, opening: Opening) -> None:
    store = await opening(tmp_path / "store.db", patience=0.1)
    node = await new_node(store)
    begun = await begin(store, node)
    intruder = apsw.Connection(str(tmp_path / "store.db"))
    intruder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        await store.append(begun.lease, [to_message("not yet", "assistant")])
    intruder.execute("ROLLBACK")
    intruder.close()
    await store.append(begun.lease, [to_message("now", "assistant")])
    assert await contents(store, begun.session.conversation_id) == ["hello", "now"]


# --- upgrades --------------------------------------------------------------------------------------


@contextmanager
def a_newer_holdfast(text: str = "CREATE TABLE later (id TEXT) STRICT;") -> Iterator[None]:
    """Inside, this process knows one more migration."""
    known = migrations.migrations()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda: [*known, (known[-1][0] + 1, text)])
        yield


async def test_an_upgrade_keeps_a_copy_and_the_older_process_writes_nothing_more(
    database: Path, opening: Opening
) -> None:
    old = await opening(database)
    node = await new_node(old)
    begun = await begin(old, node)
    before = await everything(old)
    known = migrations.newest()
    with a_newer_holdfast():
        new = await opening(database)
    assert await everything(new) == before
    for _ in range(2):
        with pytest.raises(StoreUpgraded) as refusal:
            await old.append(begun.lease, [to_message("from the old one", "assistant")])
        assert (refusal.value.found, refusal.value.known) == (known + 1, known)
    with pytest.raises(StoreUpgraded):
        await old.beat(node.id)
    assert await everything(new) == before
    await new.append(begun.lease, [to_message("from the new one", "assistant")])
    assert await contents(new, begun.session.conversation_id) == ["hello", "from the new one"]

    with pytest.raises(StoreUnusable, match="newer holdfast"):
        await opening(database)
    (copy,) = database.parent.glob(f"store.db.schema-{known}-*.backup")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    kept = await opening(copy)
    assert await everything(kept) == before


async def test_a_store_without_data_needs_no_copy(database: Path, opening: Opening) -> None:
    with a_newer_holdfast():
        await opening(database)
    assert [path.name for path in database.parent.glob("*backup*")] == []


async def test_a_migration_that_fails_changes_nothing(database: Path, opening: Opening) -> None:
    told = await a_closed_store(database)
    with a_newer_holdfast("CREATE TABLE later (id TEXT) STRICT; ALTER TABLE nowhere RENAME TO somewhere;"):
        with pytest.raises(StoreUnusable):
            await opening(database)
    store = await opening(database)
    session = (await say(store, await new_node(store), "again", key="cli:ada")).session
    assert await contents(store, session.conversation_id) == [*told, "again", "hi"]


async def test_two_processes_that_upgrade_at_once_upgrade_once(database: Path, opening: Opening) -> None:
    await a_closed_store(database)
    with a_newer_holdfast():
        stores = await asyncio.gather(*(opening(database) for _ in range(4)))
        for store in stores:
            await say(store, await new_node(store))
    assert len([*database.parent.glob("*.backup")]) == 1


# --- the copy --------------------------------------------------------------------------------------


async def test_a_backup_touches_no_file_but_its_target(database: Path, opening: Opening) -> None:
    store = await opening(database)
    await say(store, await new_node(store))
    bystander = database.parent / "copy.db.partial"
    bystander.write_text("somebody's half-finished work")
    try:
        await store.backup(database.parent / "copy.db")
    except HoldfastError:
        pass
    assert bystander.read_text() == "somebody's half-finished work"


async def test_two_backups_to_one_target_leave_one_whole_copy(database: Path, opening: Opening) -> None:
    store = await opening(database)
    await say(store, await new_node(store))
    target = database.parent / "copy.db"
    outcomes = await asyncio.gather(*(store.backup(target) for _ in range(4)), return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, HoldfastError) for outcome in outcomes)
    assert outcomes.count(None) == 1
    copy = await opening(target)
    assert await everything(copy) == await everything(store)
    assert await copy.check() == []
