"""Deleted text leaves every file of a SQLite store: the database, its log, the search index and its log."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.domain.attachments import FileRef
from holdfast.domain.connectors import Batch, ConnectorClaim, Incoming, IncomingKind
from holdfast.domain.ids import new_id
from holdfast.domain.items import PutItem
from holdfast.domain.processes import ProcessState
from holdfast.domain.recovery import Origin, RequestToStore
from holdfast.domain.turns import NewResponse, TurnBegun
from holdfast.store.sqlite import search, writer
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.values import Retention
from tests.contract import test_processes as processes
from tests.contract.steps import OWNER, Clock, begin, draft, new_node, request, say, to_message

CANARY = "heliotropezanzibar"
SETTINGS = {"memory": {"flush": False}}
KEEP = Retention(
    drafts=timedelta(hours=24),
    events=timedelta(days=30),
    requests=timedelta(days=30),
    conversations=timedelta(days=60),
)


def holding(directory: Path) -> set[str]:
    """Names of files under the directory that hold the word. By a process of its own: a handle of the
    database that this one closed would drop its locks."""
    found = subprocess.run(
        ["grep", "-rlaF", CANARY, str(directory)], capture_output=True, text=True, check=False
    )
    assert found.returncode in (0, 1), found.stderr
    return {Path(line).name for line in found.stdout.splitlines()}


async def gone(directory: Path) -> bool:
    """Does the word leave every file while the store is open? Only a store that never does runs into the end
    of this."""
    for _ in range(600):
        if not holding(directory):
            return True
        await asyncio.sleep(0.1)
    return False


@pytest.fixture
def home(tmp_path: Path) -> Path:
    directory = tmp_path / "home"
    directory.mkdir()
    return directory


@pytest.fixture
async def store(home: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    opened = await open_store(home / "store.db", clock=clock)
    opened.start_indexing()
    yield opened
    await opened.close()


async def settled(store: SQLiteStore) -> None:
    """All that was said is indexed."""
    await asyncio.to_thread(lambda: [None for _ in iter(store._index().follow_once, False)])


async def fill(store: SQLiteStore, number: int = 300) -> None:
    """Something that stays, in several parts of the index."""
    node = await new_node(store)
    for _ in range(5):
        await begin(store, node, *(f"the tide {at} comes in w{at % 97}" for at in range(number // 5)))
        await settled(store)


async def secret(store: SQLiteStore) -> str:
    node = await new_node(store)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": f'{{"q": "{CANARY}"}}'}}
    calling = {"role": "assistant", "content": f"my {CANARY}", "tool_calls": [call]}
    begun = await begin(store, node, f"my {CANARY} is secret", key=CANARY)
    await store.append_draft(begun.lease, draft(0, f"the {CANARY}"))
    await store.append(begun.lease, [to_message(calling), to_message({**RESULT, "content": CANARY})])
    await store.commit_reply(begun.lease, [to_message(f"noted: {CANARY}", "assistant")])
    await store.set_title(OWNER, begun.session.conversation_id, CANARY)
    await store.remember(OWNER, begun.session.conversation_id, f"likes {CANARY}")
    await settled(store)
    return begun.session.conversation_id


RESULT = {"role": "tool", "tool_call_id": "a"}


async def test_a_deleted_conversation_leaves_every_file_while_the_store_is_open_and_after(
    store: SQLiteStore, home: Path
) -> None:
    await fill(store)
    conversation = await secret(store)
    await fill(store)
    assert {"store.db.search"} <= holding(home) or {"store.db.search-wal"} <= holding(home)
    await store.delete_conversation(OWNER, conversation)
    assert await gone(home), holding(home)
    await store.close()
    assert holding(home) == set()


async def chat(store: SQLiteStore, *more: str) -> str:
    """A conversation of a messaging platform: a message with a file, whose reply is a dead letter; these
    further messages, the first of which fails, and one that was withdrawn. Returns its id."""
    node = await new_node(store)
    claim = await store.claim_connector("phone", "telegram", node.id)
    assert isinstance(claim, ConnectorClaim)
    file = FileRef("f", f"{CANARY}.ogg", "audio/ogg")
    texts = (f"my {CANARY}", *more, f"not {CANARY}")
    wrote = [
        Incoming(str(at), "dm:42", "telegram:dm:42", "42", text, ordinal=at, files=() if at > 1 else (file,))
        for at, text in enumerate(texts, 1)
    ]
    await store.receive("phone", wrote, ["*"], claimed=claim)
    await store.receive("phone", [replace(wrote[-1], kind=IncomingKind.DELETE)], ["*"], claimed=claim)
    ((place, _),) = await store.waiting_places("phone")
    conversation = ""
    for at, text in enumerate(texts[:-1]):
        batch = await store.take_messages(claim, place, new_id("turn"), "telegram", timedelta(0))
        assert isinstance(batch, Batch)
        if at:
            error = CANARY if at == 1 else None
            assert await store.settle_messages(claim, batch, f"about {CANARY}", error)
            continue
        await store.add_attachment(claim, batch, "1 0", file, CANARY.encode() * 10_000)
        where = {"owner": batch.place.owner, "key": batch.place.key, "turn_id": batch.turn_id}
        conversation = (await say(store, node, text, f"noted: {CANARY}", **where)).session.conversation_id
        (out,) = await store.claim_deliveries(claim)
        assert await store.delivery_failed(claim, out.id, 1, "blocked", for_good=True)
    await settled(store)
    return conversation


@pytest.mark.parametrize("by", ["delete", "retention"])
async def test_the_messages_and_files_of_a_platform_leave_every_file(
    store: SQLiteStore, home: Path, clock: Clock, by: str
) -> None:
    await fill(store)
    conversation = await chat(store, f"or {CANARY}", f"/title {CANARY}")
    assert holding(home)
    if by == "delete":
        await store.delete_conversation(None, conversation)
    else:
        clock.move(hours=24 * 100)
        assert (await store.prune(KEEP)).conversations >= 1
    assert await gone(home), holding(home)


async def test_a_deleted_message_of_a_platform_leaves_every_file_with_its_file(
    store: SQLiteStore, home: Path
) -> None:
    await fill(store)
    conversation = await chat(store)
    for seq in (1, 2):
        await store.delete_message(None, conversation, seq)
    assert await gone(home), holding(home)
    assert (await store.attachments(None, conversation)).items == []


async def test_a_store_that_is_closed_right_after_a_deletion_holds_nothing_of_it(
    store: SQLiteStore, home: Path
) -> None:
    await fill(store)
    conversation = await secret(store)
    await store.delete_conversation(OWNER, conversation)
    await store.close()
    assert holding(home) == set()


async def test_a_store_that_is_closed_by_one_process_while_another_has_it_open(
    store: SQLiteStore, home: Path, clock: Clock
) -> None:
    conversation = await secret(store)
    other = await open_store(home / "store.db", clock=clock)
    try:
        await other.delete_conversation(OWNER, conversation)
        await other.close()
        assert await gone(home), holding(home)
    finally:
        await other.close()


async def test_deleted_messages_and_memories_leave_every_file(store: SQLiteStore, home: Path) -> None:
    node = await new_node(store)
    tells, asks = (
        {"id": id_, "type": "function", "function": {"name": "f", "arguments": said}}
        for id_, said in (("a", f'"{CANARY}"'), ("b", '"tide"'))
    )
    calls = {"role": "assistant", "content": None, "tool_calls": [tells, asks]}
    session = (await say(store, node, f"my {CANARY}", calls)).session
    kept = await store.remember(OWNER, session.conversation_id, f"likes {CANARY}")
    edited = await store.remember(OWNER, session.conversation_id, f"hates {CANARY}")
    await settled(store)
    await store.delete_message(OWNER, session.conversation_id, 1)
    rest = to_message({**calls, "tool_calls": [asks]})
    await store.reduce_message(OWNER, session.conversation_id, 2, rest, [0])
    await store.edit_memory(OWNER, edited.id, "likes tea")
    await store.forget_memory(OWNER, kept.id)
    assert await gone(home), holding(home)


QUEUED = RequestToStore(b'{"surface":"chat","body":{}}', Origin.QUEUED, True)


@pytest.mark.parametrize("by", ["withdraw", "withdraw all", "end", "edit"])
async def test_a_queued_message_that_is_withdrawn_or_edited_leaves_every_file(
    store: SQLiteStore, home: Path, by: str
) -> None:
    node = await new_node(store)
    begun = await begin(store, node, "hello", key="k")
    waiting = replace(request(node, f"my {CANARY}", key="k"), stored=QUEUED)
    queued = await store.enqueue_turn(waiting, most=16)
    assert queued is not None and holding(home)
    conversation = begun.session.conversation_id
    if by == "withdraw":
        assert await store.withdraw_queued(OWNER, queued.turn.id, "not now")
    elif by == "withdraw all":
        assert await store.withdraw_queue(OWNER, conversation, "not now") == 1
    elif by == "end":
        await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
        await store.end_session(OWNER, begun.session.id, "new")
    else:
        await store.edit_queued(OWNER, queued.turn.id, [to_message("rather not")])
    assert await gone(home), holding(home)


@pytest.mark.parametrize("kind", [IncomingKind.DELETE, IncomingKind.EDIT])
async def test_a_message_that_is_withdrawn_or_edited_at_its_platform_leaves_every_file(
    store: SQLiteStore, home: Path, kind: IncomingKind
) -> None:
    wrote = Incoming("1", "dm:42", "telegram:dm:42", "42", f"my {CANARY}", ordinal=1)
    await store.receive("phone", [wrote], ["*"])
    assert holding(home)
    await store.receive("phone", [replace(wrote, kind=kind, text="rather not")], ["*"])
    assert await gone(home), holding(home)


async def test_a_deletion_of_a_message_that_was_never_stored_does_not_truncate_the_log(
    store: SQLiteStore,
) -> None:
    """Anyone in a room may delete messages: each truncation makes writers wait for readers."""
    gone = Incoming("1", "group:1", "telegram:group:1", "42", "", kind=IncomingKind.DELETE)
    await store.receive("phone", [gone], [])
    assert not store._writer.erased


async def test_what_a_framework_deletes_leaves_every_file(store: SQLiteStore, home: Path) -> None:
    item = PutItem("space", "", "name", f'"{CANARY}"')
    await store.put_items(OWNER, [item])
    assert holding(home)
    await store.put_items(OWNER, [replace(item, value=None)])
    assert await gone(home), holding(home)


async def test_a_deleted_response_leaves_every_file(store: SQLiteStore, home: Path) -> None:
    node = await new_node(store)
    response = NewResponse("resp_1", f'{{"instructions": "my {CANARY}"}}'.encode())
    begun = await store.begin_turn(replace(request(node, "hello"), response=response))
    assert isinstance(begun, TurnBegun) and holding(home)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    await store.delete_response(OWNER, "resp_1")
    assert await gone(home), holding(home)


@pytest.mark.parametrize("by", ["age", "its conversation"])
async def test_the_command_of_a_process_leaves_every_file(
    store: SQLiteStore, home: Path, clock: Clock, by: str
) -> None:
    node = await new_node(store)
    session = (await say(store, node, "hello")).session
    process = await processes.run(store, node, session.id, command=f"echo {CANARY}")
    if by == "its conversation":
        await store.delete_conversation(OWNER, session.conversation_id)
        assert holding(home), "it still runs"
    assert await store.end_process(process.id, ProcessState.STOPPED)
    if by == "age":
        assert await store.prune_processes(clock.move(hours=1)) == [process.id]
    assert await gone(home), holding(home)


async def test_what_is_dropped_by_age_leaves_every_file(store: SQLiteStore, home: Path, clock: Clock) -> None:
    await secret(store)
    clock.move(hours=24 * 100)
    assert (await store.prune(KEEP)).conversations == 1
    assert await gone(home), holding(home)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from holdfast.store.sqlite import search
from holdfast.store.sqlite.engine import open_store

async def main(database, conversation):
    store = await open_store(Path(database))
    search.SearchIndex.notice = lambda self: None
    await store.delete_conversation(None, conversation)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_process_killed_right_after_a_deletion_leaves_the_rest_to_the_next(
    store: SQLiteStore, home: Path, clock: Clock
) -> None:
    conversation = await secret(store)
    await store.close()
    assert holding(home)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(home / "store.db"), conversation], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert {"store.db", "store.db-wal", "store.db.search"} & holding(home)
    async with holdfast.open(f"sqlite:///{home / 'store.db'}", settings=SETTINGS):
        assert await gone(home), holding(home)
    assert holding(home) == set()


@pytest.mark.parametrize("at", ["merge_once", "_finish_merge"])
async def test_a_merge_that_was_cut_short_is_done_by_the_next_start(
    store: SQLiteStore, home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    await fill(store)
    conversation = await secret(store)
    with monkeypatch.context() as cut:
        cut.setattr(search.SearchIndex, at, lambda *_: False)
        await store.delete_conversation(OWNER, conversation)
        await settled(store)
        await store.close()
        index = apsw.Connection(str(home / "store.db.search"))
        assert index.execute("SELECT count(*) FROM leftovers").get
        index.close()
    again = await open_store(home / "store.db", clock=clock)
    again.start_indexing()
    try:
        assert await gone(home), holding(home)
    finally:
        await again.close()


async def test_an_index_made_by_an_older_version_is_cleaned_once(
    store: SQLiteStore, home: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store)
    conversation = await secret(store)
    with monkeypatch.context() as older:
        older.setattr(search.SearchIndex, "merge_once", lambda self: False)
        await store.delete_conversation(OWNER, conversation)
        await settled(store)
        await store.close()
    index = apsw.Connection(str(home / "store.db.search"))
    index.execute("DROP TABLE leftovers")
    index.close()
    assert holding(home) == {"store.db.search"}
    again = await open_store(home / "store.db", clock=clock)
    again.start_indexing()
    try:
        assert await gone(home), holding(home)
    finally:
        await again.close()


async def test_a_reader_that_uses_the_log_delays_only_the_erasing(
    store: SQLiteStore, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LONGEST_ERASE_SECONDS", 1.0)
    conversation = await secret(store)
    reader = apsw.Connection(str(home / "store.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM messages").fetchall()
    await store.delete_conversation(OWNER, conversation)
    await say(store, await new_node(store), "others", "go on")
    reader.execute("COMMIT")
    reader.close()
    assert await gone(home), holding(home)


async def test_a_deletion_during_a_merge_is_merged_too(store: SQLiteStore, home: Path) -> None:
    await fill(store, 2_000)
    conversation = await secret(store)
    node = await new_node(store)
    first = (await say(store, node, "kelp", "noted")).session
    await settled(store)
    index = store._index()
    await store.delete_conversation(OWNER, first.conversation_id)
    await settled(store)
    index.merge_once()
    await store.delete_conversation(OWNER, conversation)
    assert await gone(home), holding(home)


async def test_searches_and_writes_go_on_while_the_index_is_merged(store: SQLiteStore) -> None:
    await fill(store)
    conversation = await secret(store)
    await store.delete_conversation(OWNER, conversation)
    node = await new_node(store)
    for number in range(20):
        await say(store, node, f"kelp {number}", "noted")
        assert len(await store.search(OWNER, "kelp", limit=100)) == number + 1
        assert await store.search(OWNER, CANARY) == []
    assert await store.check() == []


async def test_the_output_of_a_process_goes_with_its_conversation(home: Path) -> None:
    async with holdfast.open(f"sqlite:///{home / 'store.db'}", settings=SETTINGS) as hf:
        session = await hf.session("k")
        process = await hf.supervisor.start(
            "default", session.id, [sys.executable, "-c", f"print({CANARY!r})"]
        )
        while (await hf.store.process("default", process.id)).ended_at is None:
            await hf.supervisor.supervise_once()
            await asyncio.sleep(0.02)
        assert holding(home)
        await hf.store.delete_conversation("default", session.conversation_id)
        await hf.supervisor.forget_once()
        assert await gone(home), holding(home)
