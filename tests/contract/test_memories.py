"""Memories: bound to their conversation and owner; found, edited, and deleted for good."""

from pathlib import Path

import apsw
import pytest

from holdfast.domain.flushes import LONGEST_MEMORY
from holdfast.domain.memories import Memory, MemoryOrigin
from holdfast.domain.nodes import Node
from holdfast.errors import BadInput, NotFound
from holdfast.store import memories
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, Clock, only_sqlite, say, unchanged


async def remember(store: Store, node: Node, text: str, key: str = "a", owner: str = OWNER) -> Memory:
    session = (await say(store, node, key=key, owner=owner)).session
    return await store.remember(
        owner, session.conversation_id, text, session_id=session.id, origin=MemoryOrigin.TOOL
    )


async def test_a_memory_says_where_it_came_from(store: Store, node: Node, clock: Clock) -> None:
    memory = await remember(store, node, "likes kelp", "telegram:dm:42")
    assert (memory.key, memory.text, memory.origin) == ("telegram:dm:42", "likes kelp", "tool")
    assert (memory.created_at, memory.edited_at) == (store.now(), None)
    assert await store.memory(OWNER, memory.id) == memory
    edited_at = clock.move(seconds=1)
    edited = await store.edit_memory(OWNER, memory.id, "loves kelp")
    assert (edited.text, edited.edited_at, edited.session_id) == ("loves kelp", edited_at, memory.session_id)
    assert (await store.memories(OWNER)).items == [edited]


async def test_memories_come_newest_first_page_by_page_and_by_key(store: Store, node: Node) -> None:
    made = [await remember(store, node, str(number), "ab"[number % 2]) for number in range(5)]
    await remember(store, node, "theirs", owner=OTHER)
    page = await store.memories(OWNER, limit=2)
    assert (list(page.items), page.has_more) == ([made[4], made[3]], True)
    page = await store.memories(OWNER, after=made[3].id, limit=3)
    assert (list(page.items), page.has_more) == ([made[2], made[1], made[0]], False)
    assert [memory.text for memory in (await store.memories(OWNER, key="b")).items] == ["3", "1"]
    of_one = await store.memories(OWNER, conversation_id=made[0].conversation_id)
    assert [memory.text for memory in of_one.items] == ["4", "2", "0"]
    assert len((await store.memories(None)).items) == 6


async def test_memories_are_found_by_all_their_words_in_any_case(
    store: Store, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("Likes Kelp and tides", "likes neither", "ÄRGER mit Ebbe"):
        await remember(store, node, text)
    monkeypatch.setattr(memories, "LOOKED_AT_ONCE", 2)

    async def found(words: str) -> list[str]:
        return [memory.text for memory in (await store.memories(OWNER, words=words)).items]

    assert await found("kelp LIKES") == ["Likes Kelp and tides"]
    assert await found("likes") == ["likes neither", "Likes Kelp and tides"]
    assert await found("ärger") == ["ÄRGER mit Ebbe"]
    assert await found("100%") == []
    page = await store.memories(OWNER, words="likes", limit=1)
    assert page.has_more
    rest = await store.memories(OWNER, words="likes", limit=1, after=page.items[0].id)
    assert ([memory.text for memory in rest.items], rest.has_more) == (["Likes Kelp and tides"], False)


async def test_a_forgotten_memory_is_nowhere_to_be_found(store: Store, node: Node) -> None:
    memory = await remember(store, node, "the canary heliotrope")
    await store.forget_memory(OWNER, memory.id)
    with pytest.raises(NotFound):
        await store.memory(OWNER, memory.id)
    assert (await store.memories(OWNER, words="heliotrope")).items == []
    with pytest.raises(NotFound):
        await store.forget_memory(OWNER, memory.id)


@only_sqlite
async def test_a_forgotten_memory_is_in_no_copy(store: Store, node: Node, tmp_path: Path) -> None:
    memory = await remember(store, node, "the canary heliotrope")
    await store.forget_memory(OWNER, memory.id)
    copy = tmp_path / "copy.db"
    await store.backup(copy)
    assert b"heliotrope" not in copy.read_bytes()
    connection = apsw.Connection(str(copy))
    for (table,) in list(connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")):
        assert "heliotrope" not in str(list(connection.execute(f"SELECT * FROM {table}")))
    connection.close()


async def test_memories_go_with_their_conversation(store: Store, node: Node) -> None:
    memory = await remember(store, node, "x")
    await store.delete_conversation(OWNER, memory.conversation_id)
    assert (await store.memories(None)).items == []


async def test_another_owners_memory_is_like_one_that_never_existed(store: Store, node: Node) -> None:
    theirs = await remember(store, node, "theirs", owner=OTHER)
    mine = await remember(store, node, "mine")
    async with unchanged(store):
        for unknown in (theirs.id, "mem_never"):
            for act in (
                store.memory(OWNER, unknown),
                store.edit_memory(OWNER, unknown, "mine now"),
                store.forget_memory(OWNER, unknown),
                store.memories(OWNER, after=unknown),
            ):
                with pytest.raises(NotFound, match=f"^no memory '{unknown}'$"):
                    await act
        with pytest.raises(NotFound):
            await store.remember(OWNER, theirs.conversation_id, "x")
        assert (await store.memories(OWNER, conversation_id=theirs.conversation_id)).items == []
    assert (await store.memories(OWNER)).items == [mine]
    await store.forget_memory(None, theirs.id)


@pytest.mark.parametrize("text", ["", " \n", "x" * (LONGEST_MEMORY + 1), "a\x00b", "\ud800"])
async def test_a_memory_that_cannot_be_kept_is_refused(store: Store, node: Node, text: str) -> None:
    memory = await remember(store, node, "fine")
    async with unchanged(store):
        with pytest.raises(BadInput):
            await store.remember(OWNER, memory.conversation_id, text)
        with pytest.raises(BadInput):
            await store.edit_memory(OWNER, memory.id, text)


async def test_only_a_claim_remembers_for_a_flush(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    with pytest.raises(BadInput):
        await store.remember(
            OWNER, session.conversation_id, "x", session_id=session.id, origin=MemoryOrigin.FLUSH
        )
