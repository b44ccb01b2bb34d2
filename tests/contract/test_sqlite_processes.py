"""The SQLite engine among other processes: forks, replaced files, held locks, upgrades, copies."""

import asyncio
import os
import shutil
import signal
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw
import pytest

from holdfast.domain.nodes import Liveness
from holdfast.errors import HoldfastError, StoreBusy, StoreFailed, StoreUnusable, StoreUpgraded
from holdfast.store.sqlite import migrations
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from tests.contract.sqlite_steps import Opening, a_closed_store, answer, script
from tests.contract.steps import (
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
from holdfast.store.values import SessionFilter
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
            await asyncio.wait_for(verb(), 60)
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
    with suppress(HoldfastError):
        await store.backup(database.parent / "copy.db")
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
