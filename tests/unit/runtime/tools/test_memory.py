"""`memory`: remembers, recalls and forgets for its conversation or its owner; nobody else's."""

from __future__ import annotations

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.memories import MemoryOrigin
from holdfast.runtime.tools.memory import MemoryTool
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.conftest import Joined
from tests.unit.runtime.tools.conftest import OWNER, Caller


async def test_what_it_remembers_it_recalls_and_forgets(store: SQLiteStore, call: Caller) -> None:
    tool = MemoryTool(store, whole_owner=False)
    said = await call(tool, action="remember", text="likes kelp")
    (memory,) = (await store.memories(OWNER)).items
    assert said == f"Remembered as {memory.id}."
    assert (memory.text, memory.origin, memory.session_id) == (
        "likes kelp",
        MemoryOrigin.TOOL,
        call.session.id,
    )
    assert await call(tool, action="recall") == f"{memory.id} (2026-11-01): likes kelp"
    assert await call(tool, action="recall", query="KELP") == f"{memory.id} (2026-11-01): likes kelp"
    assert await call(tool, action="recall", query="tides") == "[No matching memories.]"
    assert await call(tool, action="forget", id=memory.id) == f"{memory.id} is forgotten."
    assert (await store.memories(OWNER)).items == []
    assert f"no memory '{memory.id}'" in await call(tool, action="forget", id=memory.id)


@pytest.mark.parametrize("whole_owner", [False, True])
async def test_it_sees_its_conversation_or_its_owner_and_nobody_else(
    store: SQLiteStore, joined: Joined, call: Caller, whole_owner: bool
) -> None:
    node = await joined()
    tool = MemoryTool(store, whole_owner=whole_owner)
    other = await store.open_session(OWNER, Address(key="cli:other"), node.id)
    theirs = await store.open_session("bob", Address(key="cli:ada"), node.id)
    for session, text in ((other, "of another key"), (theirs, "of bob")):
        await call.of(session)(tool, action="remember", text=text)
    told = await call(tool, action="recall")
    assert ("of another key" in told) is whole_owner
    assert "bob" not in told
    for memory in (await store.memories(None)).items:
        await call(tool, action="forget", id=memory.id)
    left = [memory.text for memory in (await store.memories(None)).items]
    assert left == (["of bob"] if whole_owner else ["of bob", "of another key"])


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ("{}", "needs action"),
        ('{"action": "erase"}', "there is no action 'erase'"),
        ('{"action": "remember"}', "needs text"),
        ('{"action": "remember", "text": " "}', "must not be empty"),
        ('{"action": "forget"}', "needs id"),
        ('{"action": "recall", "query": 1}', "query must be a text"),
    ],
)
async def test_bad_arguments_are_told_to_the_model(
    store: SQLiteStore, call: Caller, raw: str, problem: str
) -> None:
    assert problem in await call(MemoryTool(store, whole_owner=False), raw)
    assert (await store.memories(None)).items == []
