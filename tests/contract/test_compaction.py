"""Compaction: one swap in one transaction, by one of many nodes; every message is kept."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.domain.compaction import (
    Claim,
    ClaimRefused,
    Compacted,
    CompactionFailure,
    CompactionOutdated,
    CompactionStats,
    CompactionWaits,
    ContextOutline,
    Trigger,
)
from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.sessions import Edge, Session
from holdfast.domain.turns import Lease, TurnFailure, TurnStatus
from holdfast.domain.views import Range, Summary, View
from holdfast.errors import LeaseLost
from holdfast.os_support import identity
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    calling,
    contents,
    context_of,
    reap,
    result,
    say,
    sweep,
    to_message,
    unchanged,
)
from tests.contract.test_processes import add as add_process

SPAN = timedelta(minutes=5)
FACTS = CompactionStats(Trigger.THRESHOLD, 1000, 200, 4)
GIST = "[Summary of the earlier part of this conversation]\n"


async def talked(store: Store, node: Node, turns: int = 5, **address: Any) -> Session:
    """A conversation with so many turns: messages 1, 2, 3, …"""
    number = 0
    address = address or {"key": "cli:ada"}
    for _ in range(turns):
        begun = await say(store, node, f"{number + 1}", f"{number + 2}", **address)
        number += 2
    return await store.session(None, begun.session.id)


async def claimed(
    store: Store,
    node: Node,
    session: Session,
    *,
    why: Trigger = Trigger.THRESHOLD,
    lease: Lease | None = None,
) -> Claim:
    found = await store.claim_compaction(
        session.id, node.id, SPAN, why=why, tokens=1000, window=1200, lease=lease
    )
    assert isinstance(found, Claim), found
    return found


async def revision(store: Store, session: Session) -> int:
    return (await store.resolve(None, Address(id=session.id))).conversation.revision


def view_of(session: Session, text: str = "gist", keep: int = 2) -> View:
    last = session.last_seq
    return View((Range(1, 2), Summary(text, 3, last - keep), Range(last - keep + 1)))


async def compacted(
    store: Store, node: Node, session: Session, text: str = "gist", *, view: View | None = None
) -> Session:
    claim = await claimed(store, node, session)
    outcome = await store.compact(
        claim, view or view_of(session, text), await revision(store, session), FACTS
    )
    assert isinstance(outcome, Compacted), outcome
    return outcome.session


async def types(store: Store, prefix: str = "") -> list[str]:
    return [event.type for event in await all_events(store) if event.type.startswith(prefix)]


# --- the swap --------------------------------------------------------------------------------------


@pytest.mark.parametrize("resumed", [True, False])
async def test_a_summary_stands_for_the_question_that_is_answered_again(
    store: Store, node: Node, resumed: bool
) -> None:
    """A long turn whose own messages were compacted is taken up: what was compacted does not come back."""
    begun = await begin(store, node, "1", key="cli:ada")
    await store.append(begun.lease, [to_message(str(each), "assistant") for each in (2, 3, 4)])
    view = View((Summary("gist", 1, 3), Range(4)))
    claim = await claimed(store, node, begun.session)
    seen = await revision(store, begun.session)
    outcome = await store.compact(claim, view, seen, FACTS, lease=begun.lease)
    assert isinstance(outcome, Compacted) and outcome.lease is not None
    await store.settle_turn(outcome.lease, TurnFailure(TurnStatus.FAILED))
    more = {"resumes_turn": begun.turn.id} if resumed else {}
    again = await begin(store, node, key="cli:ada", answer_existing=True, **more)
    assert again.session.id == outcome.session.id
    assert await context_of(store, again.session.id) == [GIST + "gist", "4"]


async def test_a_compacted_conversation_goes_on_in_a_child_that_sees_the_summary(
    store: Store, node: Node
) -> None:
    parent = await talked(store, node)
    child = await compacted(store, node, parent)
    before = await store.session(OWNER, parent.id)
    assert (before.end_reason, before.last_seq, before.tip_id) == ("compaction", 10, child.id)
    assert (child.edge, child.parent_id, child.ended) == (Edge.COMPACTION, parent.id, False)
    assert (child.first_seq, child.last_seq, child.message_count) == (11, 10, 0)
    assert await context_of(store, child.id) == ["1", "2", f"{GIST}gist", "9", "10"]
    assert await context_of(store, parent.id) == [str(number) for number in range(1, 11)]
    for name in (parent.id, child.id, parent.conversation_id):
        assert (await store.resolve(OWNER, Address(id=name))).tip.id == child.id


async def test_nothing_is_copied_moved_or_removed(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    before = (await store.messages(None, parent.conversation_id)).items
    await compacted(store, node, parent)
    assert (await store.messages(None, parent.conversation_id)).items == before
    found = await store.search(OWNER, "5")
    assert [hit.message.seq for hit in found] == [5]


async def test_what_was_said_meanwhile_stands_behind_the_summary(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    claim, seen = await claimed(store, node, parent), await revision(store, parent)
    await say(store, node, "11", "12", id=parent.id)
    outcome = await store.compact(claim, view_of(parent), seen, FACTS)
    assert isinstance(outcome, Compacted)
    assert await context_of(store, outcome.session.id) == ["1", "2", f"{GIST}gist", "9", "10", "11", "12"]
    assert outcome.session.first_seq == 13


async def test_the_child_has_all_that_was_its_parents(store: Store, node: Node, clock: Clock) -> None:
    begun = await begin(store, node, "1", key="idle:1", attached=True, model="m")
    await store.commit_reply(begun.lease, [to_message(str(n), "assistant") for n in range(2, 11)])
    process = await add_process(store, node, begun.session.id)
    await store.process_started(process.id, replace(identity(), pid=552), shim_pid=551, shim_start="1")
    await store.set_title(OWNER, begun.session.conversation_id, "Kelp")
    parent = await store.session(None, begun.session.id)
    clock.move(hours=1)
    child = await compacted(store, node, parent)
    for name in ("source", "key", "title", "attached", "node_id", "model", "last_activity_at", "next_due_at"):
        assert getattr(child, name) == getattr(parent, name), name
    assert (child.since, child.source) == (parent.since, "idle")
    assert (await store.process(OWNER, process.id)).session_id == child.id
    clock.move(hours=1, seconds=1)
    assert await store.due_sessions() == [child.id]
    assert (await store.judge_session(OWNER, child.id)).verdict.next_due_at == parent.next_due_at


async def test_a_deferral_that_was_told_is_not_told_again_of_the_child(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await begin(store, node, "1", key="idle:1")
    await store.commit_reply(begun.lease, [to_message(str(n), "assistant") for n in range(2, 11)])
    process = await add_process(store, node, begun.session.id)
    await store.process_started(process.id, replace(identity(), pid=552), shim_pid=551, shim_start="1")
    await store.pin_process(OWNER, process.id, clock.now + timedelta(hours=20))
    clock.move(hours=3)
    await store.reset_session(begun.session.id)
    child = await compacted(store, node, await store.session(None, begun.session.id))
    await store.reset_session(child.id)
    assert await types(store, "session.reset") == ["session.reset_deferred"]


async def test_a_session_made_fresh_by_a_reset_does_not_say_so_again_after_a_compaction(
    store: Store, node: Node, clock: Clock
) -> None:
    await say(store, node, key="idle:1")
    clock.move(hours=3)
    fresh = await begin(store, node, "1", key="idle:1")
    assert fresh.reset == "idle"
    await store.commit_reply(fresh.lease, [to_message(str(n), "assistant") for n in range(2, 11)])
    session = await store.session(None, fresh.session.id)
    view = View((Summary("gist", 3, 10), Range(11)))
    child = await compacted(store, node, session, view=view)
    later = await begin(store, node, "11", key="idle:1")
    assert (later.session.id, later.reset) == (child.id, None)


async def test_a_summary_is_replaced_by_one_that_reaches_further(store: Store, node: Node) -> None:
    session = await talked(store, node)
    for number in range(1, 6):
        session = await compacted(store, node, session, f"gist {number}")
        begun = await say(store, node, "more", "and more", id=session.conversation_id)
        session = await store.session(None, begun.session.id)
        assert len(session.view.parts) == 3
    shown = await context_of(store, session.id)
    assert shown == ["1", "2", f"{GIST}gist 5", "more", "and more", "more", "and more"]
    assert len(await contents(store, session.conversation_id)) == 20


# --- under a turn's own lease ----------------------------------------------------------------------


async def test_a_turn_goes_on_in_the_child_of_its_own_compaction(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    begun = await begin(store, node, "11", id=parent.id)
    claim = await claimed(store, node, begun.session, why=Trigger.NO_FIT, lease=begun.lease)
    outcome = await store.compact(
        claim, view_of(parent), await revision(store, parent), FACTS, lease=begun.lease
    )
    assert isinstance(outcome, Compacted)
    assert outcome.lease is not None
    assert outcome.lease == replace(begun.lease, session_id=outcome.session.id)
    assert await context_of(store, outcome.session.id) == ["1", "2", f"{GIST}gist", "9", "10", "11"]
    assert await store.commit_reply(outcome.lease, [to_message("12", "assistant")]) == 12
    turn = await store.turn(OWNER, begun.turn.id)
    assert (turn.status, turn.session_id) == (TurnStatus.COMPLETED, outcome.session.id)
    said = (await store.messages(None, parent.conversation_id)).items
    assert [(each.seq, each.session_id) for each in said[-2:]] == [(11, parent.id), (12, outcome.session.id)]


async def test_a_turn_that_is_interrupted_after_its_compaction_leaves_its_words_in_the_child(
    store: Store, node: Node
) -> None:
    parent = await talked(store, node)
    begun = await begin(store, node, "11", id=parent.id)
    claim = await claimed(store, node, begun.session, why=Trigger.NO_FIT, lease=begun.lease)
    outcome = await store.compact(
        claim, view_of(parent), await revision(store, parent), FACTS, lease=begun.lease
    )
    assert isinstance(outcome, Compacted)
    await reap(store, node)
    await sweep(store)
    tip = (await store.resolve(OWNER, Address(id=parent.id))).tip
    assert (tip.id, tip.running_turn) == (outcome.session.id, None)
    assert (await store.turn(OWNER, begun.turn.id)).status is TurnStatus.INTERRUPTED


async def test_the_first_turn_of_a_fresh_session_still_says_so_after_its_own_compaction(
    store: Store, node: Node, clock: Clock
) -> None:
    await say(store, node, key="idle:1")
    clock.move(hours=3)
    begun = await begin(store, node, "1", key="idle:1")
    last = await store.append(begun.lease, [to_message(str(n), "assistant") for n in range(2, 11)])
    session = await store.session(None, begun.session.id)
    claim = await claimed(store, node, session, why=Trigger.NO_FIT, lease=begun.lease)
    view = View((Summary("gist", 3, last - 1), Range(last)))
    outcome = await store.compact(claim, view, await revision(store, session), FACTS, lease=begun.lease)
    assert isinstance(outcome, Compacted)
    assert replace(begun, session=outcome.session).reset == "idle"


async def test_a_turn_that_has_lost_its_lease_compacts_nothing(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    begun = await begin(store, node, "11", id=parent.id)
    claim = await claimed(store, node, begun.session, why=Trigger.NO_FIT, lease=begun.lease)
    seen = await revision(store, parent)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.CANCELLED))
    async with unchanged(store):
        with pytest.raises(LeaseLost):
            await store.compact(claim, view_of(parent), seen, FACTS, lease=begun.lease)
        with pytest.raises(LeaseLost):
            await claimed(store, node, parent, lease=begun.lease)


# --- one of many -----------------------------------------------------------------------------------


async def test_a_turn_that_holds_the_conversation_is_waited_for(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    claim, seen = await claimed(store, node, parent), await revision(store, parent)
    begun = await begin(store, node, "11", id=parent.id)
    async with unchanged(store):
        outcome = await store.compact(claim, view_of(parent), seen, FACTS)
    assert outcome == CompactionWaits(parent.conversation_id, node.id, begun.turn.id)
    await store.commit_reply(begun.lease, [to_message("12", "assistant")])
    assert isinstance(await store.compact(claim, view_of(parent), seen, FACTS), Compacted)


async def test_nobody_waits_for_a_compaction(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    await claimed(store, node, parent)
    assert (await say(store, node, "11", "12", id=parent.id)).session.id == parent.id
    assert await store.end_session(OWNER, parent.id, "new")


async def test_of_two_that_want_to_compact_one_may(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    parent = await talked(store, node)
    await claimed(store, node, parent)
    async with unchanged(store):
        refused = await second_store.claim_compaction(
            parent.id, second_node.id, SPAN, why=Trigger.THRESHOLD, tokens=1, window=1
        )
    assert isinstance(refused, ClaimRefused)
    assert "already" in refused.reason


async def test_many_at_once_make_one_child(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    parent = await talked(store, node)
    seen = await revision(store, parent)

    async def race(by: Store, who: Node) -> bool:
        found = await by.claim_compaction(parent.id, who.id, SPAN, why=Trigger.THRESHOLD, tokens=1, window=1)
        if isinstance(found, ClaimRefused):
            return False
        return isinstance(await by.compact(found, view_of(parent), seen, FACTS), Compacted)

    won = await asyncio.gather(
        *(race(*side) for side in ((store, node), (second_store, second_node)) for _ in range(10))
    )
    assert sum(won) == 1
    assert len(await store.line(OWNER, parent.conversation_id)) == 2


async def test_the_claim_of_a_node_that_is_gone_is_free(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    parent = await talked(store, node)
    late, seen = await claimed(second_store, second_node, parent), await revision(store, parent)
    await reap(store, second_node)
    claim = await claimed(store, node, parent)
    assert claim.token > late.token
    async with unchanged(store):
        outcome = await second_store.compact(late, view_of(parent, "late"), seen, FACTS)
        assert isinstance(outcome, CompactionOutdated)
        assert not await second_store.give_up_compaction(
            late, CompactionFailure.SUMMARY_FAILED, Trigger.THRESHOLD
        )
    assert isinstance(await store.compact(claim, view_of(parent), seen, FACTS), Compacted)


async def test_a_claim_ends_by_itself(store: Store, node: Node, clock: Clock) -> None:
    parent = await talked(store, node)
    await claimed(store, node, parent)
    clock.move(seconds=SPAN.total_seconds() + 1)
    assert (await claimed(store, node, parent)).token == 2


async def test_a_turn_that_does_not_fit_takes_the_claim_over(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    late, seen = await claimed(store, node, parent), await revision(store, parent)
    begun = await begin(store, node, "11", id=parent.id)
    claim = await claimed(store, node, begun.session, why=Trigger.NO_FIT, lease=begun.lease)
    assert isinstance(await store.compact(late, view_of(parent), seen, FACTS), CompactionWaits)
    outcome = await store.compact(claim, view_of(parent), seen, FACTS, lease=begun.lease)
    assert isinstance(outcome, Compacted)
    assert isinstance(await store.compact(late, view_of(parent), seen, FACTS), CompactionOutdated)


async def _ends(store: Store, node: Node, session: Session) -> None:
    await store.end_session(OWNER, session.id, "closed")


async def _resets(store: Store, node: Node, session: Session) -> None:
    await store.end_session(OWNER, session.id, "new")
    await say(store, node, id=session.id)


async def _compacts(store: Store, node: Node, session: Session) -> None:
    begun = await begin(store, node, "11", id=session.id)
    claim = await claimed(store, node, begun.session, why=Trigger.NO_FIT, lease=begun.lease)
    await store.compact(claim, view_of(session), await revision(store, session), FACTS, lease=begun.lease)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.CANCELLED))


async def _resumes(store: Store, node: Node, session: Session) -> None:
    await store.end_session(OWNER, session.id, "closed")
    await store.resume_session(OWNER, session.id, node.id)


async def _excludes(store: Store, node: Node, session: Session) -> None:
    await store.exclude(OWNER, session.conversation_id, [4], "wrong")


async def _deletes_a_message(store: Store, node: Node, session: Session) -> None:
    await store.delete_message(OWNER, session.conversation_id, 4)


async def _deletes(store: Store, node: Node, session: Session) -> None:
    await store.delete_conversation(OWNER, session.conversation_id)


@pytest.mark.parametrize(
    "meanwhile", [_ends, _resets, _compacts, _resumes, _excludes, _deletes_a_message, _deletes]
)
async def test_what_is_not_the_same_any_more_is_not_swapped(store: Store, node: Node, meanwhile: Any) -> None:
    parent = await talked(store, node)
    claim, seen = await claimed(store, node, parent), await revision(store, parent)
    await meanwhile(store, node, parent)
    async with unchanged(store):
        outcome = await store.compact(claim, view_of(parent), seen, FACTS)
    assert isinstance(outcome, CompactionOutdated), outcome


async def test_only_the_open_tip_is_compacted(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    child = await compacted(store, node, parent)
    await store.end_session(OWNER, child.id, "closed")
    for session in (parent, child):
        refused = await store.claim_compaction(
            session.id, node.id, SPAN, why=Trigger.BY_HAND, tokens=1, window=1
        )
        assert isinstance(refused, ClaimRefused)


async def test_an_attached_session_whose_program_is_gone_is_left_to_the_reaper(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    begun = await begin(second_store, second_node, "1", key="cli:ada", attached=True)
    await second_store.commit_reply(begun.lease, [to_message(str(n), "assistant") for n in range(2, 11)])
    session = await store.session(None, begun.session.id)
    claim, seen = await claimed(store, node, session), await revision(store, session)
    await reap(store, second_node)
    assert isinstance(await store.compact(claim, view_of(session), seen, FACTS), CompactionOutdated)
    await sweep(store)
    assert (await store.session(None, session.id)).end_reason == "reaped"


# --- failing ---------------------------------------------------------------------------------------


async def test_a_failure_keeps_everything_and_the_next_try_waits_longer_each_time(
    store: Store, node: Node, clock: Clock
) -> None:
    parent = await talked(store, node)
    for pause in (60, 120, 240):
        claim = await claimed(store, node, parent)
        assert await store.give_up_compaction(claim, CompactionFailure.SUMMARY_TIMED_OUT, Trigger.THRESHOLD)
        refused = await store.claim_compaction(
            parent.id, node.id, SPAN, why=Trigger.THRESHOLD, tokens=1, window=1
        )
        assert isinstance(refused, ClaimRefused)
        assert refused.until == clock.now + timedelta(seconds=pause)
        clock.move(seconds=pause)
    failed = [event for event in await all_events(store) if event.type == "compaction.failed"]
    assert [event.data["failures"] for event in failed] == [1, 2, 3]
    assert failed[0].data["reason"] == "summary_timed_out"
    assert not (await store.session(None, parent.id)).ended
    await compacted(store, node, parent)
    newest = (await store.resolve(None, Address(id=parent.id))).tip
    assert (await claimed(store, node, newest)).failures == 0  # a success makes up for all of them


async def test_by_hand_earlier_failures_do_not_count_and_are_not_forgotten(
    store: Store, node: Node, clock: Clock
) -> None:
    parent = await talked(store, node)
    claim = await claimed(store, node, parent)
    await store.give_up_compaction(claim, CompactionFailure.SUMMARY_FAILED, Trigger.THRESHOLD)
    by_hand = await claimed(store, node, parent, why=Trigger.BY_HAND)
    assert by_hand.cooling
    await store.give_up_compaction(by_hand, CompactionFailure.SUMMARY_FAILED, Trigger.BY_HAND)
    refused = await store.claim_compaction(
        parent.id, node.id, SPAN, why=Trigger.THRESHOLD, tokens=1, window=1
    )
    assert isinstance(refused, ClaimRefused)
    assert refused.until == clock.now + timedelta(seconds=60)


async def test_what_only_came_between_is_put_off_and_no_failure(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    for failure in (CompactionFailure.BUSY, CompactionFailure.OUTDATED):
        claim = await claimed(store, node, parent)
        assert await store.give_up_compaction(claim, failure, Trigger.THRESHOLD)
    assert (await claimed(store, node, parent)).failures == 0
    told = await types(store, "compaction.")
    assert told.count("compaction.put_off") == 2


async def test_messages_that_were_only_left_out_count_as_a_failure_that_helped(
    store: Store, node: Node
) -> None:
    parent = await talked(store, node)
    begun = await begin(store, node, "11", id=parent.id)
    claim = await claimed(store, node, begun.session, why=Trigger.NO_FIT, lease=begun.lease)
    facts = replace(FACTS, why=Trigger.NO_FIT, failure=CompactionFailure.SUMMARY_EMPTY)
    outcome = await store.compact(
        claim, view_of(parent), await revision(store, parent), facts, lease=begun.lease
    )
    assert isinstance(outcome, Compacted)
    assert outcome.lease is not None
    events = [event for event in await all_events(store) if event.type.startswith("compaction.")]
    assert [event.type for event in events] == [
        "compaction.started",
        "compaction.failed",
        "compaction.completed",
    ]
    assert events[2].data["model_free"] is True
    assert (events[0].turn_id, events[2].session_id) == (begun.turn.id, outcome.session.id)
    again = await claimed(store, node, outcome.session, why=Trigger.NO_FIT, lease=outcome.lease)
    assert (again.failures, again.cooling) == (1, True)


# --- reading ---------------------------------------------------------------------------------------


def told(outline: ContextOutline) -> Sequence[tuple[int, int, str, bool, bool]]:
    return [
        (each.first, each.last, each.summary or each.role, each.calls, each.answers)
        for each in outline.entries
    ]


async def test_an_outline_is_the_context_message_by_message(store: Store, node: Node) -> None:
    session = await compacted(store, node, await talked(store, node))
    begun = await begin(store, node, "11", id=session.id)
    await store.append(begun.lease, [to_message(calling("a", "b")), to_message(result("a"))])
    await store.commit_reply(begun.lease, [to_message("14", "assistant")])
    await store.exclude(OWNER, session.conversation_id, [2], "wrong")
    outline = await store.outline(OWNER, session.id)
    assert told(outline) == [
        (1, 1, "user", False, False),
        (3, 8, "gist", False, False),
        (9, 9, "user", False, False),
        (10, 10, "assistant", False, False),
        (11, 11, "user", False, False),
        (12, 12, "assistant", True, False),
        (13, 13, "tool", False, True),
        (14, 14, "assistant", False, False),
    ]
    assert len(outline.entries[5].bodies) == 2  # no result was given for b
    joined = b",".join(body for entry in outline.entries for body in entry.bodies)
    assert b"[%b]" % joined == (await store.context(OWNER, session.id)).json()
    assert outline.revision == await revision(store, session)
    assert outline.open_part == 2


async def test_what_the_model_reported_is_known_of_the_newest_turn_that_says(
    store: Store, node: Node
) -> None:
    fields = {"context_tokens": 9, "context_bytes": 90, "context_extra": 10, "context_parts": 0}
    session = await talked(store, node, 1)
    assert await store.report(session.conversation_id) is None
    begun = await begin(store, node, id=session.id, model="m")
    await store.commit_reply(begun.lease, usage={"input_tokens": 20, "output_tokens": 1, **fields})
    await say(store, node, id=session.id)
    found = await store.report(session.conversation_id)
    assert found is not None
    assert (found.measured.tokens, found.measured.bytes, found.session_id, found.model) == (
        9,
        90,
        session.id,
        "m",
    )
    assert (await store.session(None, session.id)).input_tokens == 20


# --- lineage ---------------------------------------------------------------------------------------


async def test_a_fork_is_never_taken_for_a_continuation(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    fork = await store.fork(OWNER, parent.id, node.id)
    child = await compacted(store, node, parent)
    later = await store.fork(OWNER, child.id, node.id)
    for name in (parent.id, child.id):
        assert (await store.resolve(OWNER, Address(id=name))).tip.id == child.id
    assert (await store.resolve(OWNER, Address(id=fork.id))).tip.id == fork.id
    assert await context_of(store, later.id) == ["1", "2", f"{GIST}gist", "9", "10"]
    grown = await say(store, node, "5", "6", id=later.id)
    view = View((Summary("all", 0, 4), Range(5)))
    again = await compacted(store, node, await store.session(None, grown.session.id), view=view)
    assert await context_of(store, again.id) == [f"{GIST}all", "5", "6"]


async def test_a_fork_from_before_a_compaction_sees_what_was_said_then(store: Store, node: Node) -> None:
    first = await talked(store, node)
    second = await compacted(store, node, first)
    begun = await say(store, node, "11", "12", id=second.id)
    third = await compacted(store, node, await store.session(None, begun.session.id), "newer")
    assert await context_of(store, (await store.fork(OWNER, third.id, node.id, up_to=6)).id) == [
        str(number) for number in range(1, 7)
    ]
    between = await store.fork(OWNER, third.id, node.id, up_to=9)
    assert await context_of(store, between.id) == ["1", "2", f"{GIST}gist", "9"]


async def test_an_explicit_resume_takes_that_very_sessions_view(store: Store, node: Node) -> None:
    first = await talked(store, node)
    second = await compacted(store, node, first)
    resumed = await store.resume_session(OWNER, first.id, node.id)
    assert resumed.edge is Edge.RESUME
    assert await context_of(store, resumed.id) == [str(number) for number in range(1, 11)]
    back = await store.resume_session(OWNER, second.id, node.id)
    assert await context_of(store, back.id) == ["1", "2", f"{GIST}gist", "9", "10"]


async def test_another_owner_sees_nothing_of_it(store: Store, node: Node) -> None:
    parent = await talked(store, node)
    child = await compacted(store, node, parent)
    with pytest.raises(Exception, match="no session"):
        await store.outline(OTHER, child.id)
