"""First words and previews of conversations, suggested titles, and ids by their beginning."""

from __future__ import annotations

import pytest

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.headings import ConversationSums, Heading
from holdfast.domain.ids import short
from holdfast.domain.pages import SessionFilter
from holdfast.errors import NotFound
from holdfast.store.store import Store
from tests.contract.steps import OTHER, OWNER, Clock, begin, new_node, say


async def test_a_conversation_has_first_words_and_a_preview_of_its_last_message(store: Store) -> None:
    node = await new_node(store)
    first = await say(store, node, "How tall is the lighthouse?", "Forty metres.", key="a")
    await say(store, node, "And how old?", "Two hundred years.", key="a")
    parts = [
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "text", "text": "What?"},
    ]
    second = await say(store, node, {"role": "user", "content": parts}, "A crab.", key="b")
    ids = [each.lease.conversation_id for each in (first, second)]
    assert await store.headings([*ids, ids[0], "conv_unknown"]) == {
        ids[0]: Heading("How tall is the lighthouse?", "Two hundred years."),
        ids[1]: Heading("What?", "A crab."),
    }
    assert await store.headings([]) == {}


async def test_a_message_that_an_agent_program_puts_first_is_passed_over(store: Store) -> None:
    node = await new_node(store)
    notes = {"role": "user", "content": "<environment_context>\n<cwd>/x</cwd>\n</environment_context>"}
    begun = await begin(store, node, notes, {"role": "user", "content": "fix the tests"}, key="a")
    found = await store.headings([begun.lease.conversation_id])
    assert found[begun.lease.conversation_id].first_words == "fix the tests"


async def test_a_long_message_is_not_read_whole(store: Store) -> None:
    node = await new_node(store)
    begun = await say(store, node, "wort " * 100_000, "🦀" * 10_000, key="a")
    heading = (await store.headings([begun.lease.conversation_id]))[begun.lease.conversation_id]
    assert heading.first_words == "wort " * 10 + "wort…"
    assert heading.preview == "🦀" * 139 + "…"


async def test_a_conversation_in_which_nothing_was_said_has_no_words(store: Store) -> None:
    node = await new_node(store)
    begun = await begin(store, node, {"role": "user", "content": "  "}, key="a")
    assert await store.headings([begun.lease.conversation_id]) == {begun.lease.conversation_id: Heading()}


async def test_each_session_has_its_own_first_words(store: Store) -> None:
    node = await new_node(store)
    first = await say(store, node, "How tall is the lighthouse?", "Forty metres.", key="a")
    await store.end_session(OWNER, first.session.id, "closed")
    second = await say(store, node, "And how old?", "Two hundred years.", key="a")
    silent = await begin(store, node, {"role": "system", "content": "Be brief."}, key="b")
    ids = [first.session.id, second.session.id, silent.session.id, "sess_unknown"]
    assert await store.words_of_sessions(ids) == {
        first.session.id: "How tall is the lighthouse?",
        second.session.id: "And how old?",
    }
    assert await store.words_of_sessions([]) == {}


async def test_a_conversation_adds_its_sessions_up(store: Store) -> None:
    node = await new_node(store)
    first = await say(store, node, "How tall is it?", "Forty metres.", key="a")
    await store.end_session(OWNER, first.session.id, "closed")
    await say(store, node, "And how old?", "Two hundred years.", key="a")
    other = await say(store, node, "hello", "hi", key="b", model="kelp-7b")
    await begin(store, node, {"role": "user", "content": "and?"}, key="b")
    conversations = [first.lease.conversation_id, other.lease.conversation_id]
    assert await store.sums_of_conversations([*conversations, "conv_unknown"]) == {
        conversations[0]: ConversationSums(messages=4, sessions=2),
        conversations[1]: ConversationSums(messages=3, sessions=1, model="kelp-7b"),
    }
    assert await store.sums_of_conversations([]) == {}


async def test_a_suggested_title_never_replaces_one(store: Store) -> None:
    node = await new_node(store)
    conversation = (await say(store, node, "hello", "hi", key="a")).lease.conversation_id
    assert not await store.suggest_title(OTHER, conversation, "theirs")
    assert await store.suggest_title(OWNER, conversation, "made by a model")
    assert not await store.suggest_title(OWNER, conversation, "made again")
    assert not await store.suggest_title(OWNER, "conv_unknown", "nothing")
    assert (await store.sessions(SessionFilter(OWNER))).items[0].title == "made by a model"


async def test_only_the_newest_session_of_each_conversation_is_listed(store: Store, clock: Clock) -> None:
    node = await new_node(store)
    for key in ("a", "b"):
        for _ in range(2):
            session = (await say(store, node, "hello", "hi", key=key)).session
            clock.move(seconds=1)
            await store.end_session(OWNER, session.id, "new")
    everything = (await store.sessions(SessionFilter(OWNER))).items
    newest = (await store.sessions(SessionFilter(OWNER, newest=True))).items
    assert len(everything) == 4
    assert [each.id for each in newest] == [everything[0].id, everything[2].id]
    assert [each.ordinal for each in newest] == [2, 2]
    await store.set_title(OWNER, newest[0].conversation_id, "seaweed")
    titled = (await store.sessions(SessionFilter(OWNER, title="seaweed", newest=True))).items
    assert [each.id for each in titled] == [newest[0].id]


# --- shortened ids -------------------------------------------------------------------------------------


async def test_objects_are_found_by_a_part_of_their_id_within_their_owner(store: Store) -> None:
    node = await new_node(store)
    begun = await say(store, node, "hello", "hi", key="a")
    key, token = new_key(OWNER, Scope.CHAT, (), store.now())
    await store.add_key(key, token.hash)
    for id_ in (begun.session.id, begun.lease.conversation_id, begun.turn.id, key.id):
        for part in {id_[:30], short(id_)}:
            assert await store.ids_like(OWNER, part) == [id_], part
            assert await store.ids_like(None, part) == [id_]
            assert part == id_ or await store.ids_like(OTHER, part) == []
    for prefix in ("resp", "proc", "mem", "note"):
        assert await store.ids_like(OWNER, f"{prefix}_00000000") == []


async def test_several_that_begin_the_same_are_listed_up_to_a_limit(store: Store) -> None:
    node = await new_node(store)
    begun = [await say(store, node, "hello", "hi", key=f"{number}") for number in range(5)]
    ids = sorted(each.session.id for each in begun)
    assert await store.ids_like(OWNER, "sess_", limit=3) == ids[:3]
    assert await store.ids_like(OWNER, ids[2][:30]) == [ids[2]]


async def test_what_is_no_id_of_ours_is_a_mistake_of_the_caller(store: Store) -> None:
    with pytest.raises((KeyError, NotFound)):
        await store.ids_like(OWNER, "other_1234")
