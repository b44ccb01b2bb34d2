"""Flushes: scheduled with the end of a session, claimed by one node at a time, settled once."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.flushes import MOST_INTERRUPTIONS, WAIT, Flush, FlushState
from holdfast.domain.nodes import Node
from holdfast.domain.sessions import Session
from holdfast.errors import Conflict, NotFound
from holdfast.store.store import Store
from holdfast.store.values import FlushFigures
from tests.contract.steps import OTHER, OWNER, Clock, all_events, new_node, reap, say, sweep, unchanged
from tests.contract.test_compaction import compacted, talked

LATER = WAIT.total_seconds() + 1


async def talk(store: Store, node: Node, turns: int = 2, **address: Any) -> Session:
    """A session of so many turns, still open."""
    address = address if address.keys() & {"id", "key"} else {**address, "key": "a"}
    for number in range(turns):
        begun = await say(store, node, f"question {number}", f"answer {number}", **address)
    return begun.session


async def finished(store: Store, node: Node, reason: str = "new", turns: int = 2, **address: Any) -> Session:
    session = await talk(store, node, turns, **address)
    assert await store.end_session(None, session.id, reason)
    return session


async def claim(store: Store, node: Node, together: int = 10, per_minute: int = 100) -> list[Flush]:
    return await store.claim_flushes(node.id, together=together, per_minute=per_minute)


async def read(store: Store, session_id: str) -> list[Any]:
    """What the flush of this session would read."""
    entries = (await store.flush_input(session_id)).entries
    return [entry.summary or msgspec.json.decode(entry.bodies[0])["content"] for entry in entries]


# --- scheduling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        ("new", timedelta()),
        ("idle", timedelta()),
        ("daily", timedelta()),
        ("completed", timedelta()),
        ("closed", WAIT),
        ("reaped", WAIT),
    ],
)
async def test_a_session_that_ends_is_to_be_flushed_in_the_same_transaction(
    store: Store, node: Node, reason: str, wait: timedelta
) -> None:
    session = await finished(store, node, reason, key="telegram:dm:42")
    flush = await store.flush(OWNER, session.id)
    assert (flush.state, flush.attempts, flush.next_attempt_at) == ("pending", 0, store.now() + wait)
    assert (flush.key, flush.reason, flush.after_seq, flush.last_seq) == ("telegram:dm:42", reason, 0, 4)
    assert await store.flushes_due() == (not wait)


@pytest.mark.parametrize("reason", ["compaction", "hermes:cli_close"])
async def test_compacted_and_imported_sessions_are_never_flushed(
    store: Store, node: Node, reason: str
) -> None:
    session = await finished(store, node, reason)
    with pytest.raises(NotFound):
        await store.flush(OWNER, session.id)


async def test_a_session_that_is_too_short_is_not_flushed(store: Store, node: Node) -> None:
    session = await finished(store, node, turns=1)
    assert await store.flushes_of([session.id]) == {}


async def test_what_was_deleted_or_left_the_context_does_not_count(store: Store, node: Node) -> None:
    session = await talk(store, node)
    await store.delete_message(OWNER, session.conversation_id, 2)
    await store.end_session(OWNER, session.id, "new")
    assert await store.flushes_of([session.id]) == {}


async def test_a_reset_schedules_the_flush_too(store: Store, node: Node, clock: Clock) -> None:
    session = await talk(store, node, key="idle:1")
    clock.move(hours=3)
    assert (await store.flush_figures()).coming == 1
    await store.reset_session(session.id)
    assert (await store.flush(OWNER, session.id)).reason == "idle"
    assert await store.flush_figures() == FlushFigures(pending=1, running=0, dead=0, coming=0)


async def test_the_reaped_and_the_left_are_flushed_after_a_while(
    store: Store, node: Node, second_store: Store, second_node: Node, clock: Clock
) -> None:
    reaped = await talk(second_store, second_node, key="a", attached=True)
    third = await new_node(store)
    left = await talk(store, third, key="b", attached=True)
    await reap(store, second_node)
    await sweep(store)
    await store.leave(third.id, "closed")
    assert not await store.flushes_due()
    clock.move(seconds=LATER)
    assert {flush.session_id for flush in await claim(store, node)} == {reaped.id, left.id}


# --- going on --------------------------------------------------------------------------------------------


async def test_a_resume_in_time_takes_the_waiting_flush_over(store: Store, node: Node, clock: Clock) -> None:
    first = await finished(store, node, "closed", key="cli:ada")
    clock.move(seconds=60)
    second = (await say(store, node, "more", "of it", key="cli:ada")).session
    assert second.parent_id == first.id
    taken = await store.flush(OWNER, first.id)
    assert (taken.state, taken.shown) == (FlushState.TAKEN, "none")
    clock.move(seconds=LATER)
    assert not await store.flushes_due(), "while it goes on, nothing is flushed"
    await store.end_session(OWNER, second.id, "new")
    assert [flush.session_id for flush in await claim(store, node)] == [second.id]
    assert await read(store, second.id) == [
        "question 0",
        "answer 0",
        "question 1",
        "answer 1",
        "more",
        "of it",
    ]


async def test_a_resume_after_the_flush_is_flushed_from_there_on(
    store: Store, node: Node, clock: Clock
) -> None:
    first = await finished(store, node, "closed", key="cli:ada")
    clock.move(seconds=LATER)
    (claimed,) = await claim(store, node)
    second = await talk(store, node, 1, key="cli:ada")  # while it is running
    assert await store.finish_flush(claimed, "they asked two questions")
    await store.end_session(OWNER, second.id, "closed")
    assert await store.flushes_of([second.id]) == {}, "too short since the last flush"
    third = await talk(store, node, 1, key="cli:ada")
    await store.end_session(OWNER, third.id, "new")
    (claimed,) = await claim(store, node)
    assert (claimed.session_id, claimed.after_seq) == (third.id, 4)
    assert await read(store, third.id) == ["question 0", "answer 0"] * 2
    assert first.id != third.id


async def test_what_was_taken_over_once_is_not_read_by_another_resume(store: Store, node: Node) -> None:
    first = await finished(store, node, "closed", key="cli:ada")
    second = await store.resume_session(OWNER, first.id, node.id)
    again = await store.resume_session(OWNER, first.id, node.id)  # ends the second as new
    assert (await store.flush(OWNER, second.id)).state is FlushState.PENDING
    assert await read(store, second.id) == ["question 0", "answer 0", "question 1", "answer 1"]
    await talk(store, node, 2, id=again.id)
    await store.end_session(OWNER, again.id, "new")
    assert await read(store, again.id) == ["question 0", "answer 0", "question 1", "answer 1"]
    assert (await store.flush(OWNER, again.id)).after_seq == 4


async def test_a_fresh_session_takes_nothing_over(store: Store, node: Node) -> None:
    first = await finished(store, node, "new", key="cli:ada")
    second = await finished(store, node, "new", key="cli:ada")
    assert [flush.session_id for flush in await claim(store, node)] == [first.id, second.id]
    assert await read(store, second.id) == ["question 0", "answer 0", "question 1", "answer 1"]


async def test_a_compacted_session_is_flushed_at_its_end_by_its_summary_and_what_came_since(
    store: Store, node: Node
) -> None:
    parent = await talked(store, node, key="cli:ada")
    child = await compacted(store, node, parent)
    assert await store.flushes_of([parent.id]) == {}
    await store.end_session(OWNER, child.id, "closed")
    assert await read(store, child.id) == ["1", "2", "gist", "9", "10"]
    again = (await say(store, node, "11", "12", key="cli:ada")).session
    second = await compacted(store, node, await store.session(None, again.id))
    await say(store, node, "13", "14", key="cli:ada")
    await store.end_session(OWNER, second.id, "new")
    assert (await store.flush(OWNER, child.id)).state is FlushState.TAKEN
    (claimed,) = await claim(store, node)
    assert (claimed.session_id, claimed.after_seq) == (second.id, 0)
    assert "gist" in await read(store, second.id) and (await read(store, second.id))[-2:] == ["13", "14"]
    resumed = await store.resume_session(OWNER, parent.id, node.id)
    await store.end_session(OWNER, resumed.id, "new")
    assert await store.flushes_of([resumed.id]) == {}, "what it sees was read by its continuation"


# --- claiming and settling -------------------------------------------------------------------------------


async def test_nobody_claims_what_another_has_claimed(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = await finished(store, node)
    (claimed,) = await claim(store, node)
    assert (claimed.state, claimed.node_id, claimed.attempts) == (FlushState.RUNNING, node.id, 1)
    assert await claim(second_store, second_node) == []
    assert not await second_store.flushes_due()
    assert await store.finish_flush(claimed, "a memory")
    assert not await store.finish_flush(claimed, "another")
    assert [memory.text for memory in (await store.memories(OWNER)).items] == ["a memory"]
    done = await store.flush(OWNER, session.id)
    assert (done.state, done.settled_at, done.node_id) == (FlushState.DONE, store.now(), None)
    assert await claim(second_store, second_node) == []


async def test_the_claim_of_a_node_that_is_gone_is_free_again_and_its_late_answer_refused(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = await finished(store, node)
    (late,) = await claim(second_store, second_node)
    await reap(store, second_node)
    assert await store.flushes_due()
    (claimed,) = await claim(store, node)
    assert (claimed.attempts, claimed.interruptions) == (1, 1), "a death is no attempt"
    assert claimed.token > late.token
    async with unchanged(store):
        assert not await second_store.finish_flush(late, "too late")
        assert not await second_store.fail_flush(late, "too late", timedelta(seconds=1))
        assert not await second_store.fail_flush(late, "too late", None)
        assert not await second_store.release_flush(late)
    assert await store.finish_flush(claimed, "in time")
    (memory,) = (await store.memories(OWNER)).items
    assert (memory.text, memory.session_id, memory.origin) == ("in time", session.id, "flush")


async def test_a_flush_that_kills_its_nodes_is_not_tried_for_ever(store: Store, node: Node) -> None:
    session = await finished(store, node)
    for _ in range(MOST_INTERRUPTIONS):
        another = await new_node(store)
        assert len(await claim(store, another)) == 1
        await store.leave(another.id, "closed")
    assert await claim(store, node) == []
    dead = await store.flush(OWNER, session.id)
    assert (dead.state, dead.shown) == (FlushState.DEAD, "dead")
    assert (await store.retry_flush(OWNER, session.id)).interruptions == 0


async def test_nothing_to_remember_is_done_without_a_memory(store: Store, node: Node) -> None:
    session = await finished(store, node)
    (claimed,) = await claim(store, node)
    assert await store.finish_flush(claimed, None)
    assert (await store.flush(OWNER, session.id)).state is FlushState.DONE
    assert (await store.memories(OWNER)).items == []


async def test_what_failed_is_tried_again_later_and_given_up_visibly(
    store: Store, node: Node, clock: Clock
) -> None:
    session = await finished(store, node)
    (claimed,) = await claim(store, node)
    assert await store.fail_flush(claimed, "the model is away", timedelta(seconds=5))
    assert not await store.flushes_due()
    failed = await store.flush(OWNER, session.id)
    assert (failed.state, failed.attempts, failed.error) == (FlushState.PENDING, 1, "the model is away")
    clock.move(seconds=5)
    (claimed,) = await claim(store, node)
    assert claimed.attempts == 2
    assert await store.fail_flush(claimed, "still away", None)
    dead = await store.flush(OWNER, session.id)
    assert (dead.state, dead.error, dead.settled_at) == (FlushState.DEAD, "still away", store.now())
    assert (await store.flushes(OWNER, state=FlushState.DEAD)).items == [dead]
    clock.move(hours=1000)
    assert not await store.flushes_due()
    assert await store.flush_figures() == FlushFigures(pending=0, running=0, dead=1, coming=0)
    again = await store.retry_flush(OWNER, session.id)
    assert (again.state, again.attempts, again.next_attempt_at) == (FlushState.PENDING, 0, store.now())
    (claimed,) = await claim(store, node)
    assert await store.finish_flush(claimed, "at last")
    with pytest.raises(Conflict, match="done"):
        await store.retry_flush(OWNER, session.id)


async def test_what_is_given_back_was_no_attempt(store: Store, node: Node) -> None:
    await finished(store, node)
    (claimed,) = await claim(store, node)
    assert await store.release_flush(claimed)
    assert not await store.release_flush(claimed)
    (claimed,) = await claim(store, node)
    assert (claimed.attempts, claimed.interruptions) == (1, 1)


async def test_a_node_gives_back_what_it_does_not_work_at(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for key in ("a", "b", "c"):
        await finished(store, node, key=key)
    mine = await claim(store, node, together=2)
    (theirs,) = await claim(second_store, second_node)
    assert await store.release_flushes(node.id, keep=[mine[0].session_id]) == 1
    assert await store.release_flushes(node.id, keep=[mine[0].session_id]) == 0
    assert not await store.finish_flush(mine[1], "what nobody works at")
    assert await store.finish_flush(mine[0], "kept")
    assert await second_store.finish_flush(theirs, "kept")
    assert [flush.session_id for flush in await claim(store, node)] == [mine[1].session_id]


async def test_no_more_at_once_and_in_a_minute_than_allowed_over_all_nodes(
    store: Store, node: Node, second_store: Store, second_node: Node, clock: Clock
) -> None:
    for number in range(9):
        await finished(store, node, key=f"k{number}")
        clock.move(seconds=0.001)
    first = await claim(store, node, together=2, per_minute=5)
    assert [flush.key for flush in first] == ["k0", "k1"], "the longest waiting first"
    assert await claim(second_store, second_node, together=2, per_minute=5) == []
    for claimed in first:
        await store.finish_flush(claimed, None)
    second = await claim(second_store, second_node, together=10, per_minute=5)
    assert [flush.key for flush in second] == ["k2", "k3", "k4"]
    for claimed in second:
        await second_store.fail_flush(claimed, "no", timedelta())
    clock.move(seconds=59)
    assert await claim(store, node, together=10, per_minute=5) == []
    clock.move(seconds=1)
    assert len(await claim(store, node, together=10, per_minute=5)) == 5


async def test_a_clock_that_was_wrong_stops_no_flush(store: Store, node: Node, clock: Clock) -> None:
    clock.move(hours=24)
    await finished(store, node, key="a")
    (claimed,) = await claim(store, node, per_minute=1)
    await store.finish_flush(claimed, None)
    clock.move(hours=-24)
    await finished(store, node, key="b")
    assert len(await claim(store, node, per_minute=1)) == 1


# --- by hand ---------------------------------------------------------------------------------------------


async def test_pages_of_flushes_come_newest_first(store: Store, node: Node) -> None:
    made = [(await finished(store, node, key=f"k{number}")).id for number in range(5)]
    await finished(store, node, owner=OTHER)
    page = await store.flushes(OWNER, limit=2)
    assert ([flush.session_id for flush in page.items], page.has_more) == ([made[4], made[3]], True)
    page = await store.flushes(OWNER, after=made[3], limit=5)
    assert ([flush.session_id for flush in page.items], page.has_more) == ([made[2], made[1], made[0]], False)
    assert len((await store.flushes(None, state=FlushState.PENDING)).items) == 6


async def test_dead_letters_are_retried_together(store: Store, node: Node) -> None:
    for number in range(3):
        await finished(store, node, key=f"k{number}", owner=OTHER if number == 2 else OWNER)
    for claimed in await claim(store, node):
        await store.fail_flush(claimed, "no", None)
    assert await store.retry_flushes(OWNER) == 2
    assert await store.retry_flushes(OWNER) == 0
    assert (await store.flush_figures()).dead == 1


async def test_a_person_may_have_old_sessions_not_flushed(store: Store, node: Node, clock: Clock) -> None:
    old = await finished(store, node, key="a")
    still_open = await talk(store, node, key="idle:b")
    short_since = clock.move(hours=1)
    young = await finished(store, node, key="c")
    assert await store.skip_flushes(OTHER, short_since, "said bob") == 0
    assert await store.skip_flushes(OWNER, short_since, "said ada") == 2
    assert await store.skip_flushes(OWNER, short_since, "said ada") == 0
    skipped = await store.flush(OWNER, old.id)
    assert (skipped.state, skipped.shown, skipped.error) == (FlushState.SKIPPED, "none", "said ada")
    clock.move(hours=3)
    await store.reset_session(still_open.id)
    assert await store.flushes_of([still_open.id]) == {}
    assert [flush.session_id for flush in await claim(store, node)] == [young.id]
    assert (await store.retry_flush(OWNER, old.id)).state is FlushState.PENDING


async def test_what_is_said_after_a_skip_is_flushed(store: Store, node: Node, clock: Clock) -> None:
    session = await talk(store, node, key="a")
    now = clock.move(hours=1)
    assert await store.skip_flushes(OWNER, now, "said ada") == 1
    await talk(store, node, key="a")
    await store.end_session(OWNER, session.id, "new")
    assert (await store.flush(OWNER, session.id)).after_seq == 4
    assert await read(store, session.id) == ["question 0", "answer 0", "question 1", "answer 1"]


async def test_one_flush_may_be_skipped(store: Store, node: Node) -> None:
    session = await finished(store, node)
    assert (await store.skip_flush(OWNER, session.id, "enough")).state is FlushState.SKIPPED
    assert (await store.skip_flush(OWNER, session.id, "again")).error == "enough"
    await store.retry_flush(OWNER, session.id)
    await claim(store, node)
    async with unchanged(store):
        for act in (store.skip_flush(OWNER, session.id, "no"), store.retry_flush(OWNER, session.id)):
            with pytest.raises(Conflict, match="running"):
                await act


async def test_another_owners_flush_is_like_one_that_never_existed(store: Store, node: Node) -> None:
    theirs = await finished(store, node, owner=OTHER)
    async with unchanged(store):
        for unknown in (theirs.id, "sess_never"):
            for act in (
                store.flush(OWNER, unknown),
                store.retry_flush(OWNER, unknown),
                store.skip_flush(OWNER, unknown, "no"),
                store.flushes(OWNER, after=unknown),
            ):
                with pytest.raises(NotFound, match=f"^no session '{unknown}'$"):
                    await act


async def test_a_flush_goes_with_its_conversation(store: Store, node: Node) -> None:
    session = await finished(store, node)
    (claimed,) = await claim(store, node)
    await store.delete_conversation(OWNER, session.conversation_id)
    assert not await store.finish_flush(claimed, "of somebody who is gone")
    assert (await store.memories(None)).items == []
    assert (await store.flushes(None)).items == []


async def test_flushes_tell_their_story_in_events(store: Store, node: Node) -> None:
    session = await finished(store, node)
    for pause in (timedelta(), None):
        (claimed,) = await claim(store, node)
        await store.fail_flush(claimed, "what was said", pause)
    await store.retry_flush(OWNER, session.id)
    (claimed,) = await claim(store, node)
    await store.finish_flush(claimed, "what was said")
    told = [
        (event.type, dict(event.data)) for event in await all_events(store) if event.session_id == session.id
    ]
    (memory,) = (await store.memories(OWNER)).items
    assert told[-5:] == [
        ("flush.failed", {"attempts": 1, "again_at": store.now().isoformat()}),
        ("flush.dead", {"attempts": 2}),
        ("flush.retried", {}),
        ("memory.added", {"memory": memory.id, "origin": "flush"}),
        ("flush.done", {"attempts": 1, "memory": memory.id}),
    ]


async def test_opening_again_schedules_nothing(store: Store, node: Node) -> None:
    session = await finished(store, node, "closed", key="cli:ada")
    opened = await store.open_session(OWNER, Address(key="cli:ada"), node.id)
    assert opened.parent_id == session.id
    assert (await store.flush_figures()).pending == 0
    await store.end_session(OWNER, opened.id, "closed")
    assert (await store.flush_figures()).pending == 1, "nothing was said since, and nothing is lost"
    assert await read(store, opened.id) == ["question 0", "answer 0", "question 1", "answer 1"]
