"""`search`: the conversation that asks, or all of its owner's; nobody else's, and not the question itself."""

from __future__ import annotations

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import new_messages
from holdfast.domain.turns import TurnBegun, TurnRequest
from holdfast.runtime.tools.search import MOST_FOUND, SearchTool
from holdfast.store.sqlite.engine import SQLiteStore
from tests.unit.runtime.conftest import Joined
from tests.unit.runtime.tools.conftest import OWNER, Caller


async def say(
    store: SQLiteStore, joined: Joined, text: str, key: str = "cli:ada", owner: str = OWNER
) -> None:
    node = await joined()
    begun = await store.begin_turn(
        TurnRequest(new_id("turn"), owner, node.id, Address(key=key), new_messages(text))
    )
    assert isinstance(begun, TurnBegun)
    await store.commit_reply(begun.lease)


@pytest.mark.parametrize("whole_owner", [False, True])
async def test_what_is_found_is_of_the_conversation_or_of_its_owner(
    store: SQLiteStore, joined: Joined, call: Caller, whole_owner: bool
) -> None:
    await say(store, joined, "kelp grows here")
    await say(store, joined, "kelp grows there", key="cli:other")
    await say(store, joined, "kelp is mine", owner="bob")
    told = await call(SearchTool(store, whole_owner=whole_owner), query="kelp")
    assert "2026-11-01 12:00 user in cli:ada: kelp grows here" in told
    assert ("kelp grows there" in told) is whole_owner
    assert "mine" not in told


async def test_what_a_reset_took_out_of_the_context_is_found(
    store: SQLiteStore, joined: Joined, call: Caller
) -> None:
    await say(store, joined, "the password is kelp")
    await store.end_session(OWNER, call.session.id, "idle")
    await say(store, joined, "hello again")
    assert "the password is kelp" in await call(SearchTool(store, whole_owner=False), query="password")


async def test_the_question_itself_is_not_found(store: SQLiteStore, joined: Joined, call: Caller) -> None:
    node = await joined()
    begun = await store.begin_turn(
        TurnRequest("turn", OWNER, node.id, Address(key="cli:ada"), new_messages("where is the kelp?"))
    )
    assert isinstance(begun, TurnBegun)
    assert await call(SearchTool(store, whole_owner=False), query="kelp") == "[Nothing was found.]"


async def test_not_everything_is_told(store: SQLiteStore, joined: Joined, call: Caller) -> None:
    for number in range(MOST_FOUND + 5):
        await say(store, joined, f"kelp {number}")
    assert len((await call(SearchTool(store, whole_owner=False), query="kelp")).splitlines()) == MOST_FOUND


@pytest.mark.parametrize("raw", ["{}", '{"query": 1}'])
async def test_bad_arguments_are_told_to_the_model(store: SQLiteStore, call: Caller, raw: str) -> None:
    assert "query" in await call(SearchTool(store, whole_owner=False), raw)
