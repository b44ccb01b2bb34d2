"""Current activity and totals: the cheap reads for clients that poll."""

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.domain.figures import FIRST_TOKEN
from holdfast.domain.new_messages import new_message
from holdfast.domain.nodes import Node
from holdfast.domain.sessions import Session
from holdfast.domain.turns import TurnBegun, TurnFailure, TurnRepeated, TurnRequest, TurnStatus
from holdfast.errors import NotFound, TurnSuperseded
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    contents,
    ended,
    request,
    say,
    unchanged,
)


def ids(sessions: list[Session]) -> list[str]:
    return [session.id for session in sessions]


async def test_the_living_are_open_sessions_the_most_recently_active_first(
    store: Store, node: Node, clock: Clock
) -> None:
    idle = (await say(store, node, key="idle")).session
    clock.move(seconds=1)
    gone = await ended(store, node, key="gone")
    clock.move(seconds=1)
    running = (await begin(store, node, key="running")).session
    clock.move(seconds=1)
    theirs = (await say(store, node, key="theirs", owner=OTHER)).session
    assert ids(await store.alive(OWNER)) == [running.id, idle.id]
    assert ids(await store.alive(None)) == [theirs.id, running.id, idle.id]
    assert ids(await store.alive(OWNER, limit=1)) == [running.id]
    assert gone.id not in ids(await store.alive(None))


async def test_who_has_just_ended_is_told_for_as_long_as_is_asked(
    store: Store, node: Node, clock: Clock
) -> None:
    first = await ended(store, node, key="a")
    clock.move(seconds=30)
    theirs = await ended(store, node, key="b", owner=OTHER)
    clock.move(seconds=29)
    second = await ended(store, node, key="c")
    now = store.now()
    assert ids(await store.ended_since(OWNER, now - timedelta(seconds=60))) == [second.id, first.id]
    assert ids(await store.ended_since(OWNER, now - timedelta(seconds=58))) == [second.id]
    assert ids(await store.ended_since(None, now - timedelta(seconds=58))) == [second.id, theirs.id]
    assert ids(await store.ended_since(None, now - timedelta(seconds=60), limit=1)) == [second.id]


async def test_figures_count_what_there_is(store: Store, node: Node) -> None:
    begun = await begin(store, node, key="a")
    await ended(store, node, key="b")
    await store.add_notice(OWNER, begun.session.conversation_id, "reset", "x")
    figures = await store.figures()
    assert (figures.open_sessions, figures.running_turns, figures.messages) == (1, 1, 3)
    assert figures.undelivered_notices == 1
    assert figures.events == len(await all_events(store))
    assert (figures.free_bytes is None) == store.location.startswith("postgresql")
    assert figures.unindexed is not None
    assert 0 <= figures.unindexed <= 3


async def test_events_are_read_up_to_a_bound(store: Store, node: Node) -> None:
    assert await store.event_bounds() == (1, 1)  # the node has joined
    await say(store, node, key="a")
    told = await all_events(store)
    assert await store.event_bounds() == (1, told[-1].id)
    assert await store.events(owner=None, after=1, upto=told[2].id) == told[1:3]
    conversation_id = told[-1].conversation_id
    assert await store.events(owner=None, upto=1, conversation_id=conversation_id) == []


async def test_turns_come_page_by_page(store: Store, node: Node) -> None:
    begun = [await say(store, node, str(number), key="a") for number in range(5)]
    conversation_id = begun[0].session.conversation_id
    page = await store.turns(OWNER, conversation_id, limit=2)
    assert [turn.id for turn in page] == [begun[4].turn.id, begun[3].turn.id]
    rest = await store.turns(OWNER, conversation_id, after=page[-1].id)
    assert [turn.id for turn in rest] == [one.turn.id for one in reversed(begun[:3])]
    other = await say(store, node, key="b")
    with pytest.raises(NotFound):
        await store.turns(OWNER, conversation_id, after=other.turn.id)


async def test_an_admins_reading_is_an_event_of_the_owner_it_was_about(store: Store, node: Node) -> None:
    begun = await say(store, node, owner=OTHER)
    await store.note_reading(OTHER, "key_1", begun.session)
    await store.note_reading(OTHER, "key_1")
    of_session, of_search = [
        event for event in await store.events(owner=OTHER) if event.type == "messages.read_by_admin"
    ]
    assert (of_session.session_id, of_session.data) == (begun.session.id, {"key_id": "key_1"})
    assert of_session.conversation_id == begun.session.conversation_id
    assert (of_search.session_id, of_search.data) == (None, {"key_id": "key_1"})
    assert await store.events(owner=OWNER) == []


# --- taking a turn up by its id ------------------------------------------------------------------------


def retry(node: Node, turn_id: str, owner: str = OWNER) -> TurnRequest:
    return replace(request(node, owner=owner), messages=(), resumes_turn=turn_id)


async def test_an_unfinished_turn_is_taken_up_by_its_id(store: Store, node: Node) -> None:
    for status in (TurnStatus.INTERRUPTED, TurnStatus.FAILED):
        begun = await begin(store, node, "hello", key=status.value)
        await store.cancel_turn(OWNER, begun.turn.id, status, "a test")
        again = await store.begin_turn(retry(node, begun.turn.id))
        assert isinstance(again, TurnBegun)
        assert (again.turn.id, again.taken_up, again.turn.attempt) == (begun.turn.id, True, 2)
        assert await contents(store, begun.session.conversation_id) == ["hello"]
        await store.commit_reply(again.lease)


async def test_a_turn_that_has_ended_for_good_or_runs_is_not_taken_up(store: Store, node: Node) -> None:
    completed = await say(store, node, key="completed")
    cancelled = await begin(store, node, key="cancelled")
    await store.cancel_turn(OWNER, cancelled.turn.id, TurnStatus.CANCELLED, "a test")
    running = await begin(store, node, key="running")
    async with unchanged(store):
        for turn in (completed.turn, cancelled.turn, running.turn):
            told = await store.begin_turn(retry(node, turn.id))
            assert isinstance(told, TurnRepeated)
            assert told.turn.id == turn.id


async def test_a_turn_that_is_not_the_newest_or_not_ones_own_is_not_taken_up(
    store: Store, node: Node
) -> None:
    older = await begin(store, node, key="a")
    await store.cancel_turn(OWNER, older.turn.id, TurnStatus.INTERRUPTED, "a test")
    async with unchanged(store):
        for unknown in (older.turn.id, "turn_never"):
            with pytest.raises(NotFound, match=f"^no turn '{unknown}'$"):
                await store.begin_turn(retry(node, unknown, OTHER))
    await say(store, node, "later", key="a")
    async with unchanged(store):
        with pytest.raises(TurnSuperseded):
            await store.begin_turn(retry(node, older.turn.id))


async def test_resets_that_wait_are_listed_whether_or_not_something_holds_them(
    store: Store, node: Node, clock: Clock
) -> None:
    first = (await say(store, node, key="first", source="idle")).session
    clock.move(seconds=1)
    held = (await begin(store, node, key="held", source="idle")).session
    clock.move(seconds=1)
    theirs = (await say(store, node, key="theirs", source="idle", owner=OTHER)).session
    (await say(store, node, key="never"))
    assert await store.resets_waiting(None) == []
    clock.move(hours=2)
    (await say(store, node, key="later", source="idle"))
    assert ids(await store.resets_waiting(None)) == [first.id, held.id, theirs.id]
    await store.reset_session(held.id)  # which is put off: a turn runs
    assert set(ids(await store.resets_waiting(OWNER))) == {first.id, held.id}
    await store.reset_session(first.id)
    assert ids(await store.resets_waiting(OWNER)) == [held.id]
    assert ids(await store.resets_waiting(None, limit=1)) == [theirs.id]


async def test_ended_turns_have_their_model_tokens_and_times(store: Store, node: Node, clock: Clock) -> None:
    await say(store, node, key="before")
    clock.move(seconds=60)
    since = clock.now
    begun = await begin(store, node, key="a")
    clock.move(seconds=2)
    usage = {"input_tokens": 7, "output_tokens": 3, FIRST_TOKEN: 400}
    await store.commit_reply(
        begun.lease, [new_message({"role": "assistant", "content": "a"})], usage=usage, model="m1"
    )
    await say(store, node, key="c", owner=OTHER)
    failed = await begin(store, node, key="d")
    await store.settle_turn(failed.lease, TurnFailure(TurnStatus.FAILED, error="the model is away"))
    await begin(store, node, key="running")
    ours = await store.turns_ended(OWNER, since)
    assert ours.is_complete
    bad, good = ours.turns
    assert (bad.status, bad.problem, bad.model, bad.first_token_ms) == (
        TurnStatus.FAILED,
        "the model is away",
        None,
        None,
    )
    assert (good.status, good.model, good.input_tokens, good.output_tokens) == (
        TurnStatus.COMPLETED,
        "m1",
        7,
        3,
    )
    assert (good.owner, good.first_token_ms, good.total_ms) == (OWNER, 400, 2000)
    assert [each.owner for each in (await store.turns_ended(None, since)).turns] == [OWNER, OTHER, OWNER]
    assert list((await store.turns_ended("nobody", since)).turns) == []


async def test_ended_turns_are_read_from_the_newest_and_say_when_some_are_missing(
    store: Store, node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.maintenance.MOST_COUNTED", 2)
    since = clock.now
    for key in ("a", "b", "c"):
        clock.move(seconds=1)
        await say(store, node, key=key)
    found = await store.turns_ended(OWNER, since)
    assert len(found.turns) == 2
    assert not found.is_complete
    assert (await store.turns_ended(OWNER, clock.now)).is_complete


async def test_the_answering_model_is_kept_only_if_the_turn_named_none(store: Store, node: Node) -> None:
    named = await begin(store, node, key="named", model="asked-for")
    await store.commit_reply(named.lease, model="answered")
    unnamed = await begin(store, node, key="unnamed")
    await store.commit_reply(unnamed.lease, model="answered")
    assert (await store.turn(OWNER, named.turn.id)).model == "asked-for"
    assert (await store.turn(OWNER, unnamed.turn.id)).model == "answered"


async def test_a_store_has_one_id_that_stays(store: Store) -> None:
    found = await store.store_id()
    assert found.startswith("store_") and len(found) > 30
    assert await store.store_id() == found
