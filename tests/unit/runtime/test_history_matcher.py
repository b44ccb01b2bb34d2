"""Where a request belongs: clients that send all, trim, edit, ask again or come from nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.history import history_of
from holdfast.domain.turns import TurnRepeated, TurnStatus
from holdfast.errors import ModelError, NotFound, ToolCallClosed
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.turns.history_matcher import LOOK_BACK
from holdfast.runtime.turns.live import RunningTurn
from holdfast.store.sqlite.engine import SQLiteStore

from .asking import (
    OWNER,
    Gated,
    Server,
    assert_history_is_right,
    ended,
    key,
    said_by_model,
    serving,
    stored,
    user,
)

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLS: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "42"}


def echo(messages: list[dict[str, Any]], purpose: Any) -> str:
    return str(messages[-1]["content"]).upper()


@pytest.fixture
def model() -> ScriptedModel:
    """Says what was said last, in capitals."""
    return ScriptedModel(echo)


@pytest.fixture
async def server(store: SQLiteStore, model: ScriptedModel) -> AsyncIterator[Server]:
    async with serving(store, model) as opened:
        yield opened


def spoken(*texts: str) -> list[dict[str, Any]]:
    """A history: capitals are the model's."""
    return [said_by_model(text) if text.isupper() else user(text) for text in texts]


async def talk(server: Server, *texts: str, **more: Any) -> RunningTurn:
    """A whole turn with this history, ended in whatever way."""
    running = await server.run(*spoken(*texts), **more)
    await ended(running)
    await assert_history_is_right(server.store, running.turn.conversation_id)
    return running


async def texts_of(store: SQLiteStore, running: RunningTurn) -> list[Any]:
    return [text for _, text, _ in await stored(store, running.turn.conversation_id)]


async def context_of(store: SQLiteStore, running: RunningTurn) -> list[Any]:
    context = await store.context(None, running.session.id)
    return [message["content"] for message in context.messages()]


# --- with a name --------------------------------------------------------------------------------------------


async def test_a_client_that_sends_all_of_it_adds_only_what_is_new(
    server: Server, store: SQLiteStore
) -> None:
    await talk(server, "a", key="k")
    await talk(server, "a", "A", "b", key="k")
    running = await talk(server, "a", "A", "b", "B", "c", key="k")
    assert await texts_of(store, running) == ["a", "A", "b", "B", "c", "C"]


async def test_clients_that_trim_or_send_only_what_is_new_go_on_too(
    server: Server, store: SQLiteStore
) -> None:
    await talk(server, "a", key="k")
    await talk(server, "b", key="k")
    await talk(server, "B", "c", key="k")
    running = await talk(server, "c", "C", "d", key="k")
    assert await texts_of(store, running) == ["a", "A", "b", "B", "c", "C", "d", "D"]


async def test_a_history_brought_to_a_new_key_is_its_beginning(server: Server, store: SQLiteStore) -> None:
    running = await talk(server, "a", "A", "b", key="k")
    assert await texts_of(store, running) == ["a", "A", "b", "B"]
    await assert_history_is_right(store, running.turn.conversation_id, known=True)


async def test_an_id_of_ours_that_leads_nowhere_is_not_found(server: Server) -> None:
    for texts in (("a",), ("a", "A", "b")):
        with pytest.raises(NotFound):
            await talk(server, *texts, id="sess_nothing")


async def test_an_edited_history_forks_and_leaves_its_source_alone(
    server: Server, store: SQLiteStore
) -> None:
    source = await talk(server, "a", key="k")
    await talk(server, "a", "A", "b", key="k")
    before = await stored(store, source.turn.conversation_id)
    fork = await talk(server, "a", "A", "c", key="k")
    assert fork.turn.conversation_id != source.turn.conversation_id
    assert await texts_of(store, fork) == ["a", "A", "c", "C"]
    assert await stored(store, source.turn.conversation_id) == before
    further = await talk(server, "a", "A", "c", "C", "d", id=fork.session.id)
    assert further.turn.conversation_id == fork.turn.conversation_id
    assert await texts_of(store, further) == ["a", "A", "c", "C", "d", "D"]


async def test_a_history_with_nothing_in_common_is_a_conversation_of_its_own(
    server: Server, store: SQLiteStore
) -> None:
    source = await talk(server, "a", key="k")
    other = await talk(server, "x", "X", "y", key="k")
    assert other.turn.conversation_id != source.turn.conversation_id
    assert await texts_of(store, other) == ["x", "X", "y", "Y"]
    assert (await store.resolve(OWNER, Address(key="k"))).conversation.id == source.turn.conversation_id


@pytest.mark.parametrize("history", [("a", "A", "b"), ("A", "b")], ids=["whole", "trimmed"])
async def test_what_was_answered_is_answered_again_in_place(
    server: Server, store: SQLiteStore, history: tuple[str, ...]
) -> None:
    await talk(server, "a", key="k")
    await talk(server, "a", "A", "b", key="k")
    again = await talk(server, *history, key="k")
    assert await texts_of(store, again) == ["a", "A", "b", "B", "B"]
    assert await context_of(store, again) == ["a", "A", "b", "B"]
    await assert_history_is_right(store, again.turn.conversation_id, known=True)
    further = await talk(server, "a", "A", "b", "B", "c", key="k")
    assert further.turn.conversation_id == again.turn.conversation_id


async def test_an_older_message_answered_again_is_a_fork(server: Server, store: SQLiteStore) -> None:
    await talk(server, "a", key="k")
    await talk(server, "a", "A", "b", key="k")
    source = await talk(server, "a", "A", "b", "B", "c", key="k")
    fork = await talk(server, "a", "A", "b", key="k")
    assert fork.turn.conversation_id != source.turn.conversation_id
    assert await texts_of(store, fork) == ["a", "A", "b", "B"]


async def test_a_fork_far_back_begins_where_the_histories_part(server: Server, store: SQLiteStore) -> None:
    """Further than one looks at first."""
    texts = [f"m{number}" if number % 2 == 0 else f"M{number}" for number in range(3 * LOOK_BACK)]
    source = await talk(server, *texts, "a", key="k")
    fork = await talk(server, *texts[:11], "OTHER", "b", key="k")
    assert fork.turn.conversation_id != source.turn.conversation_id
    assert await texts_of(store, fork) == [*texts[:11], "OTHER", "b", "B"]
    further = await talk(server, *texts, "a", "A", "c", key="k")
    assert further.turn.conversation_id == source.turn.conversation_id


async def test_a_fork_of_a_session_that_began_anew_has_the_history_it_shows(
    server: Server, store: SQLiteStore
) -> None:
    first = await talk(server, "a", key="k")
    await store.end_session(OWNER, first.session.id, "new")
    await talk(server, "a", "A", "b", key="k")
    fork = await talk(server, "a", "A", "b", "OTHER", "c", key="k")
    assert fork.turn.conversation_id != first.turn.conversation_id
    await assert_history_is_right(store, fork.turn.conversation_id, known=True)


async def test_every_id_of_a_conversation_leads_to_its_newest_session(
    server: Server, store: SQLiteStore
) -> None:
    first = await talk(server, "a", key="k")
    await store.end_session(OWNER, first.session.id, "closed")
    second = await talk(server, "a", "A", "b", id=first.session.id)
    assert (second.begun.addressed, second.session.parent_id) == (first.session.id, first.session.id)
    third = await talk(server, "a", "A", "b", "B", "c", id=first.turn.conversation_id)
    assert third.session.id == second.session.id
    assert await context_of(store, third) == ["a", "A", "b", "B", "c", "C"]


# --- what did not go well -----------------------------------------------------------------------------------


async def test_a_message_that_failed_is_not_stored_again_by_a_client_that_keeps_it(
    store: SQLiteStore,
) -> None:
    refusal = ModelError("no")
    async with serving(store, ScriptedModel(["A", refusal, "B", refusal, "D"])) as server:
        await talk(server, "a", key="k")
        await talk(server, "a", "A", "b", key="k")
        again = await talk(server, "a", "A", "b", key="k")
        assert await texts_of(store, again) == ["a", "A", "b", "B"]
        await talk(server, "a", "A", "b", "B", "c", key="k")
        both = await talk(server, "a", "A", "b", "B", "c", "d", key="k")
        assert both.turn.conversation_id == again.turn.conversation_id
        assert await texts_of(store, both) == ["a", "A", "b", "B", "c", "d", "D"]


@pytest.mark.parametrize("kept", [("HALF",), ()], ids=["kept", "dropped"])
async def test_a_reply_that_broke_off_is_gone_on_from(store: SQLiteStore, kept: tuple[str, ...]) -> None:
    async with serving(store, ScriptedModel(["A", ("HALF OF IT", ModelError("no")), "C"])) as server:
        await talk(server, "a", key="k")
        await talk(server, "a", "A", "b", key="k")
        running = await talk(server, "a", "A", "b", *kept, "c", key="k")
        assert await texts_of(store, running) == ["a", "A", "b", "HALF OF IT", "c", "C"]
        await assert_history_is_right(store, running.turn.conversation_id, known=True)


CUT_SHORT = ("HALF", ModelError("no"))


@pytest.mark.parametrize(
    ("line", "kept"),
    [(ModelError("no"), ["a", "A"]), (CUT_SHORT, ["a", "A"]), (CUT_SHORT, ["a", "A", "b"])],
    ids=["a refusal", "a reply cut short", "only the reply"],
)
async def test_a_client_that_forgets_what_failed_goes_on_in_the_same_conversation(
    store: SQLiteStore, line: Any, kept: list[str]
) -> None:
    transcript = list(kept)
    async with serving(store, ScriptedModel(["A", line, "C", "D", "E"])) as server:
        first = await talk(server, "a", key="k")
        await talk(server, "a", "A", "b", key="k")
        for text in ("c", "d", "e"):
            running = await talk(server, *transcript, text, key="k")
            transcript += [text, text.upper()]
            assert running.turn.conversation_id == first.turn.conversation_id
        said = await texts_of(store, running)
    failed = ["b", "HALF"] if line is CUT_SHORT else ["b"]
    assert said == ["a", "A", *failed, "c", "C", "d", "D", "e", "E"], "it stays all the same"


async def test_a_conversation_that_moves_while_its_request_is_placed_is_looked_at_again(
    store: SQLiteStore,
) -> None:
    gated = Gated()
    async with serving(store, gated.model) as server:
        first = await server.run(user("a"), key="k")
        waiting = asyncio.create_task(server.run(*spoken("a", "A", "b"), key="k"))
        await asyncio.sleep(0.05)
        gated.finish("A")
        await ended(first)
        gated.finish("B")
        running = await waiting
        await ended(running)
        assert await texts_of(store, running) == ["a", "A", "b", "B"]
        assert running.turn.conversation_id == first.turn.conversation_id


async def test_two_who_say_different_things_at_once_are_both_heard(
    server: Server, store: SQLiteStore
) -> None:
    await talk(server, "a", key="k")
    both = await asyncio.gather(
        server.run(*spoken("a", "A", "b"), key="k"), server.run(*spoken("a", "A", "c"), key="k")
    )
    told = []
    for running in both:
        await ended(running)
        told.append(await context_of(store, running))
    assert sorted(told) == [["a", "A", "b", "B"], ["a", "A", "c", "C"]], "one of them in a fork"


async def test_two_who_begin_a_key_at_once_share_it(server: Server, store: SQLiteStore) -> None:
    both = await asyncio.gather(*(server.run(user(text), key="k") for text in ("a", "b")))
    for running in both:
        await ended(running)
    assert both[0].turn.conversation_id == both[1].turn.conversation_id
    assert sorted(await texts_of(store, both[0])) == ["A", "B", "a", "b"]


# --- tools of the client ------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["whole", "only"])
async def test_results_are_added_to_the_call_they_answer(store: SQLiteStore, style: str) -> None:
    model = ScriptedModel([CALLS, ModelError("no"), "B", "C"])
    brought = [user("a"), CALLS, RESULT] if style == "whole" else [RESULT]
    async with serving(store, model) as server:
        first = await server.run(user("a"), key="k")
        await ended(first)
        for turn in range(2):  # the first of them fails, and is sent again
            running = await server.run(*brought, key="k")
            await ended(running)
            assert running.turn.conversation_id == first.turn.conversation_id
            said = await stored(store, running.turn.conversation_id)
            assert [role for role, _, _ in said] == ["user", "assistant", "tool", "assistant"][: 3 + turn]
        await server.answered(user("b"), key="k")
        if style == "only":
            with pytest.raises(ToolCallClosed):
                await server.ask(RESULT, key="k")


async def test_a_result_after_the_conversation_went_on_is_refused(store: SQLiteStore) -> None:
    async with serving(store, ScriptedModel([CALLS, "B"])) as server:
        await ended(await server.run(user("a"), key="k"))
        await server.answered(user("never mind"), key="k")
        for brought in ([RESULT], [user("a"), CALLS, RESULT]):
            with pytest.raises(ToolCallClosed):
                await server.ask(*brought, key="k")


# --- without a name -----------------------------------------------------------------------------------------


async def test_without_a_name_the_whole_history_continues(server: Server, store: SQLiteStore) -> None:
    first = await talk(server, "a")
    second = await talk(server, "a", "A", "b")
    third = await talk(server, "a", "A", "b", "B", "c")
    assert len({turn.turn.conversation_id for turn in (first, second, third)}) == 1
    assert await texts_of(store, third) == ["a", "A", "b", "B", "c", "C"]


@pytest.mark.parametrize(
    "history",
    [("a",), ("A", "b"), ("a", "OTHER", "b"), ("x", "A", "b"), ("a", "A", "b", "B", "c")],
    ids=["the same words", "trimmed", "another answer", "another beginning", "more than there was"],
)
async def test_without_a_name_anything_else_is_a_new_conversation(
    server: Server, store: SQLiteStore, history: tuple[str, ...]
) -> None:
    first = await talk(server, "a")
    other = await talk(server, *history)
    assert other.turn.conversation_id != first.turn.conversation_id
    assert await texts_of(store, other) == [*history, history[-1].upper()]
    assert await texts_of(store, first) == ["a", "A"]


async def test_two_people_with_the_same_opening_words_never_share_a_conversation(
    server: Server, store: SQLiteStore
) -> None:
    ada, bob = await talk(server, "hello"), await talk(server, "hello")
    assert ada.turn.conversation_id != bob.turn.conversation_id
    third = await talk(server, "hello", "HELLO", "how are you?")
    assert third.turn.conversation_id not in (ada.turn.conversation_id, bob.turn.conversation_id)
    assert await texts_of(store, third) == ["hello", "HELLO", "how are you?", "HOW ARE YOU?"]


async def test_a_conversation_with_a_name_is_not_continued_without_it(server: Server) -> None:
    named = await talk(server, "a", key="k")
    assert (await talk(server, "a", "A", "b")).turn.conversation_id != named.turn.conversation_id
    aliased = await talk(server, "x", id="my-chat")
    assert (await talk(server, "x", "X", "y")).turn.conversation_id != aliased.turn.conversation_id


async def test_another_owners_history_is_unknown(server: Server) -> None:
    mine = await talk(server, "a")
    theirs = await talk(server, "a", "A", "b", owner="bob")
    assert theirs.turn.conversation_id != mine.turn.conversation_id


async def test_two_who_continue_one_history_at_once_are_two_conversations(
    server: Server, store: SQLiteStore
) -> None:
    first = await talk(server, "a")
    both = await asyncio.gather(server.run(*spoken("a", "A", "b")), server.run(*spoken("a", "A", "c")))
    for running in both:
        await ended(running)
    assert first.turn.conversation_id in {running.turn.conversation_id for running in both}
    told = sorted([await context_of(store, running) for running in both])
    assert told == [["a", "A", "b", "B"], ["a", "A", "c", "C"]]


async def test_a_history_goes_on_after_a_turn_was_taken_up_again(store: SQLiteStore) -> None:
    async with serving(store, ScriptedModel([ModelError("no"), "A", "B"])) as server:
        failed = await talk(server, "a", request_key=key("k1"))
        again = await talk(server, "a", request_key=key("k1"))
        assert again.turn.id == failed.turn.id
        further = await talk(server, "a", "A", "b")
        assert further.turn.conversation_id == again.turn.conversation_id


async def test_a_request_that_comes_again_is_its_turn_wherever_it_would_belong_now(
    server: Server, store: SQLiteStore
) -> None:
    fork = ("a", "A", "c")
    await talk(server, "a", key="k")
    await talk(server, "a", "A", "b", key="k")
    first = await talk(server, *fork, key="k", request_key=key("k1"))
    again = await server.ask(*spoken(*fork), key="k", request_key=key("k1"))
    assert isinstance(again, TurnRepeated) and again.turn.id == first.turn.id
    assert again.turn.status is TurnStatus.COMPLETED


def test_a_request_that_brings_nothing_but_a_question_brings_no_history() -> None:
    assert not history_of(spoken("a")).brings_history
    assert history_of(spoken("a", "b")).brings_history
    assert history_of(spoken("A", "b")).brings_history
