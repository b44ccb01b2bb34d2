"""The search index of the SQLite engine: a separate, derived file, never the source of truth."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.new_messages import new_message
from holdfast.domain.nodes import Node
from holdfast.errors import SearchFailed, SearchTimeout
from holdfast.store import search_terms
from holdfast.store.search_terms import marked
from holdfast.store.sqlite import search
from holdfast.store.sqlite.engine import SQLiteStore, open_store
from holdfast.store.sqlite.search import SearchIndex
from tests.contract.steps import OWNER, Clock, begin, new_node, say

Opening = Callable[[], Any]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def opening(database: Path, clock: Clock) -> AsyncIterator[Opening]:
    opened: list[SQLiteStore] = []

    async def open_it() -> SQLiteStore:
        opened.append(await open_store(database, clock=clock))
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


def index_of(database: Path) -> Path:
    return database.with_name(f"{database.name}.search")


def indexed(database: Path, word: str) -> int:
    """How many rows of the index file itself hold this word."""
    connection = apsw.Connection(str(index_of(database)))
    try:
        kept = marked(word, OWNER)
        return int(str(connection.execute("SELECT count(*) FROM words(?)", (kept,)).get))
    finally:
        connection.close()


async def a_closed_store(database: Path, messages: int = 3) -> None:
    store = await open_store(database)
    node = await new_node(store)
    await begin(store, node, *(f"kelp {number}" for number in range(messages)), key="cli:ada")
    await store.repair()
    await store.leave(node.id, "closed")
    await store.close()


async def still_writes_and_finds(store: SQLiteStore, found: int) -> None:
    node: Node = await new_node(store)
    await say(store, node, "kelp again", "noted")
    assert len(await store.search(OWNER, "kelp", limit=1000)) == found + 1


async def test_an_index_that_was_deleted_is_made_anew(database: Path, opening: Opening) -> None:
    await a_closed_store(database)
    index_of(database).unlink()
    await still_writes_and_finds(await opening(), 3)


async def test_another_stores_index_is_not_believed(database: Path, opening: Opening, tmp_path: Path) -> None:
    await a_closed_store(database)
    await a_closed_store(tmp_path / "other" / "store.db", messages=50)
    shutil.copy(index_of(tmp_path / "other" / "store.db"), index_of(database))
    await still_writes_and_finds(await opening(), 3)


async def test_the_index_of_a_newer_copy_is_not_believed(
    database: Path, opening: Opening, tmp_path: Path
) -> None:
    """The database was restored from an older backup; the index beside it has seen more."""
    await a_closed_store(database)
    shutil.copy(database, tmp_path / "older")
    store = await open_store(database)
    await say(store, await new_node(store), "kelp, later undone")
    await store.repair()
    await store.close()
    shutil.copy(tmp_path / "older", database)
    await still_writes_and_finds(await opening(), 3)


def garbage(path: Path) -> None:
    path.write_bytes(b"dear diary, " * 1000)


def torn(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6000])


@pytest.mark.parametrize("damage", [garbage, torn, cut])
async def test_a_damaged_index_never_stops_the_store(
    database: Path, opening: Opening, damage: Callable[[Path], None]
) -> None:
    await a_closed_store(database, messages=500)
    damage(index_of(database))
    store = await opening()
    with contextlib.suppress(SearchFailed):  # a search may fail; what is said must still be kept
        assert len(await store.search(OWNER, "kelp", limit=1000)) == 500
    node = await new_node(store)
    session = (await say(store, node, "still here")).session
    assert (await store.session(OWNER, session.id)).message_count == 2
    assert store.failure is None


@pytest.mark.parametrize("damage", [garbage, torn, cut])
async def test_a_damaged_index_is_found_by_a_check_and_mended_by_a_repair(
    database: Path, opening: Opening, damage: Callable[[Path], None]
) -> None:
    await a_closed_store(database, messages=500)
    damage(index_of(database))
    store = await opening()
    findings = await store.check()
    assert [finding.repairable for finding in findings] == [True]
    assert await store.repair()
    assert await store.check() == []
    await still_writes_and_finds(store, 500)


async def test_deleted_text_leaves_the_index_file_too(database: Path, opening: Opening) -> None:
    await a_closed_store(database)
    store = await opening()
    node = await new_node(store)
    session = (await say(store, node, "heliotrope")).session
    await store.repair()
    assert indexed(database, "heliotrope") == 1
    await store.delete_message(OWNER, session.conversation_id, 1)
    while store._index().follow_once():
        pass
    assert indexed(database, "heliotrope") == 0


async def test_a_message_that_loses_part_after_part_is_indexed_anew_each_time(
    database: Path, opening: Opening
) -> None:
    store = await opening()
    node = await new_node(store)
    words = ["kelp", "dulse", "laver", "wrack"]
    parts = [{"type": "text", "text": word} for word in words]
    made = await store.create_conversation(
        OWNER, node.id, messages=[new_message({"role": "user", "content": parts})]
    )
    for number in range(1, len(words)):
        rest = new_message({"role": "user", "content": parts[number:]})
        await store.reduce_message(OWNER, made.id, 1, rest)
        while store._index().follow_once():
            pass
        await store.set_title(OWNER, made.id, "behind what the indexer has asked to be written")
        assert [indexed(database, word) for word in words] == [
            0 if at < number else 1 for at in range(len(words))
        ]


async def test_a_message_deleted_while_others_are_being_forgotten_is_forgotten_too(
    database: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexer clears its list behind a deletion that was queued before: that one must not be lost."""
    store = await opening()
    node = await new_node(store)
    first = (await say(store, node, "heliotrope", "noted")).session
    later = (await say(store, node, "kelp", "noted")).session
    await store.repair()
    monkeypatch.setattr(SearchIndex, "notice", lambda self: None)  # only our own hand indexes from here on
    forgotten: list[Sequence[int]] = []
    index = SearchIndex(database, forgotten.append)
    try:
        await store.delete_message(OWNER, later.conversation_id, 1)
        assert index.follow_once()
        await store.delete_message(OWNER, first.conversation_id, 1)
        for numbers in forgotten:
            store._forgotten(numbers)
        await store.beat(node.id)  # behind it in the queue: it has been done
        for _ in range(5):
            index.follow_once()
        assert indexed(database, "heliotrope") == 0
    finally:
        monkeypatch.undo()
        index.stop()


async def test_what_is_deleted_after_another_process_made_the_index_anew_leaves_the_new_one(
    database: Path, opening: Opening
) -> None:
    store, other = await opening(), await opening()
    node = await new_node(store)
    session = (await say(store, node, "heliotrope", "noted")).session
    for by in (store, other):
        assert len(await by.search(OWNER, "heliotrope")) == 1
    await other.repair()
    assert indexed(database, "heliotrope") == 1
    await store.delete_message(OWNER, session.conversation_id, 1)
    for by in (store, other):
        for _ in range(20):
            await by.beat(node.id)
            if not by._index().follow_once():
                break
    assert indexed(database, "heliotrope") == 0


async def test_an_indexer_whose_bookkeeping_is_not_done_yet_does_not_run_in_circles(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the list of what to forget cannot be shortened; that is no reason to go on at once."""
    store = await opening()
    node = await new_node(store)
    session = (await say(store, node, "heliotrope", "noted")).session
    await store.repair()
    monkeypatch.setattr(store._writer, "submit_later", lambda work: None)
    monkeypatch.setattr(SearchIndex, "notice", lambda self: None)
    await store.delete_message(OWNER, session.conversation_id, 1)
    went_on = [store._index().follow_once() for _ in range(5)]
    assert went_on[-1] is False


async def test_deleted_messages_the_index_still_holds_do_not_push_living_ones_out(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening()
    node = await new_node(store)
    doomed = (await begin(store, node, *["kelp kelp kelp"] * 30)).session
    await begin(store, node, "some words about seaweed, of which kelp is one")
    await store.repair()
    monkeypatch.setattr(SearchIndex, "follow_once", lambda self: False)  # the indexer has not come round yet
    await store.delete_conversation(OWNER, doomed.conversation_id)
    assert len(await store.search(OWNER, "kelp", limit=5)) == 1


async def test_an_index_is_never_believed_about_whose_a_message_is_or_whether_it_is_still_there(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening()
    node = await new_node(store)
    mine = (await say(store, node, "kelp of mine", "kelp noted")).session
    await say(store, node, "kelp of another", "kelp noted", owner="another")
    await store.delete_message(OWNER, mine.conversation_id, 2)
    everything = list(range(1, 20))
    monkeypatch.setattr(SearchIndex, "search", lambda self, *given: (everything, False))
    (hit,) = await store.search(OWNER, "kelp")
    assert hit.message.content()["content"] == "kelp of mine"
    assert len(await store.search(None, "kelp")) == 3


async def test_an_indexer_that_cannot_follow_delays_nobody_and_hides_nothing(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening()
    node = await new_node(store)
    await say(store, node, "kelp 0", "noted")
    await store.repair()

    def fail(self: SearchIndex) -> bool:
        raise SearchFailed("the disk is full")

    monkeypatch.setattr(SearchIndex, "follow_once", fail)
    store.start_indexing()
    for number in range(1, 20):
        await say(store, node, f"kelp {number}", "noted")
        assert len(await store.search(OWNER, "kelp", limit=100)) == number + 1


async def test_a_repair_while_another_process_searches_hides_nothing_from_it(opening: Opening) -> None:
    store, other = await opening(), await opening()
    node = await new_node(store)
    await say(store, node, "kelp 0", "noted")
    assert len(await other.search(OWNER, "kelp")) == 1
    for number in range(1, 6):
        await store.repair()
        await say(store, node, f"kelp {number}", "noted")
        for by in (store, other):
            assert len(await by.search(OWNER, "kelp")) == number + 1
        await other.repair()
        for by in (store, other):
            assert len(await by.search(OWNER, "kelp")) == number + 1
    assert await store.check() == []
    assert await other.check() == []


async def test_a_follower_that_is_told_to_stop_while_it_wakes_up_ends(database: Path) -> None:
    await a_closed_store(database)
    index = SearchIndex(database, lambda numbers: None)
    clear = index._wake.clear

    def told_meanwhile() -> None:
        index._stopping.set()
        index._wake.set()
        clear()

    index._wake.clear = told_meanwhile  # type: ignore[method-assign]
    index.notice()
    thread = index._thread._thread
    thread.join(10)
    stopped = not thread.is_alive()
    index._wake.set()  # whatever came of it, the thread must not outlive the test
    index.stop()
    assert stopped


async def test_no_word_of_the_index_is_shared_by_two_owners(database: Path, opening: Opening) -> None:
    """So a search, which asks for words of its owner only, costs what its owner has stored."""
    store = await opening()
    node = await new_node(store)
    for owner in (OWNER, "another"):
        await say(store, node, "kelp kelps and tide", "kelp noted", owner=owner)
    await store.repair()
    connection = apsw.Connection(str(index_of(database)))
    connection.execute("CREATE VIRTUAL TABLE temp.vocab USING fts5vocab(main, words, instance)")
    rows: list[Any] = connection.execute("SELECT term, doc FROM vocab").fetchall()
    connection.close()
    owners = {term: {(doc - 1) // 2 for other, doc in rows if other == term} for term, _ in rows}
    assert len(owners) >= 12
    assert [term for term, whose in owners.items() if len(whose) > 1] == []


async def test_an_index_of_another_version_is_made_anew(database: Path, opening: Opening) -> None:
    await a_closed_store(database)
    connection = apsw.Connection(str(index_of(database)))
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    store = await opening()
    assert len(await store.search(OWNER, "kelp")) == 3
    assert indexed(database, "kelp") in (0, 3)
    await still_writes_and_finds(store, 3)


async def test_a_statement_of_a_search_ends_at_its_deadline(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening()
    await say(store, await new_node(store), "kelp")
    monkeypatch.setattr(search_terms, "SEARCH_SECONDS", 0.2)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 1.0, max(i) FROM n"
    monkeypatch.setattr(search, "_FIND", f"{endless} WHERE :match || :limit <> ''")
    with pytest.raises(SearchTimeout):
        await store.search(OWNER, "kelp")
    monkeypatch.undo()
    assert len(await store.search(OWNER, "kelp")) == 1


async def test_a_search_of_an_index_far_behind_is_refused_and_found_later(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opening()
    await begin(store, await new_node(store), *["kelp"] * 30)
    monkeypatch.setattr(search, "LONGEST_TAIL", 10)
    monkeypatch.setattr("holdfast.store.sqlite.engine.CATCH_UP_SECONDS", -1.0)
    with pytest.raises(SearchFailed, match="lacks 30 messages"):
        await store.search(OWNER, "kelp")
    monkeypatch.undo()
    assert len(await store.search(OWNER, "kelp", limit=50)) == 30
