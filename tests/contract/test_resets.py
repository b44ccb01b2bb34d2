"""Resets in the store: on time, once, with event and notice, by a sweep or a message."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.resets import NEVER, Decision, ResetPolicies
from holdfast.domain.sessions import Edge
from holdfast.domain.turns import TurnBegun, TurnFailure, TurnRepeated, TurnStatus, reset_before
from holdfast.errors import ToolCallClosed
from holdfast.store.store import Store
from tests.contract.conftest import Opener
from tests.contract.steps import (
    OWNER,
    POLICIES,
    Clock,
    begin,
    calling,
    follow,
    messages,
    reap,
    request,
    result,
    say,
    sweep,
    to_message,
)

IDLE, DAILY = "idle:42", "daily:42"


async def test_an_idle_session_is_due_on_time_and_not_before(store: Store, node: Node, clock: Clock) -> None:
    begun = await say(store, node, key=IDLE)
    assert (await store.session(OWNER, begun.session.id)).next_due_at == clock.now.replace(hour=14)
    clock.move(hours=1.99)
    assert await store.due_sessions() == []
    clock.move(hours=0.01)
    assert await store.due_sessions() == [begun.session.id]


async def test_a_reset_ends_the_session_with_its_reason_its_event_and_its_notice(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await say(store, node, key=IDLE)
    clock.move(hours=2)
    found = await store.reset_session(begun.session.id)
    assert found is not None and found.decision is Decision.DUE
    ended = await store.session(OWNER, begun.session.id)
    assert (ended.end_reason, ended.ended_at, ended.next_due_at) == ("idle", clock.now, None)
    told = [event for event in await store.events(owner=OWNER) if event.type == "session.reset"]
    assert [event.data["reason"] for event in told] == ["idle"]
    notices = (await store.notices(OWNER, undelivered=True)).items
    assert [(notice.kind, notice.key) for notice in notices] == [("reset", IDLE)]
    assert await store.due_sessions() == []


async def test_resetting_twice_changes_nothing(store: Store, node: Node, clock: Clock) -> None:
    begun = await say(store, node, key=IDLE)
    clock.move(hours=2)
    await store.reset_session(begun.session.id)
    clock.move(hours=24)
    again = await store.reset_session(begun.session.id)
    assert again is not None and again.decision is Decision.ENDED
    assert len((await store.notices(OWNER)).items) == 1
    assert await store.reset_session("sess_unknown") is None


async def test_the_next_message_opens_a_fresh_session_and_says_so(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await say(store, node, "old", key=IDLE)
    clock.move(hours=2)
    await store.reset_session(begun.session.id)
    fresh = await begin(store, node, "new", key=IDLE)
    assert (fresh.session.edge, fresh.session.parent_id, fresh.reset) == (
        Edge.RESET,
        begun.session.id,
        "idle",
    )
    assert fresh.session.conversation_id == begun.session.conversation_id
    assert [m["content"] for m in (await store.context(OWNER, fresh.session.id)).messages()] == ["new"]
    await store.commit_reply(fresh.lease)
    assert (await begin(store, node, key=IDLE)).reset is None


async def test_a_message_that_comes_before_the_sweep_resets_first(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await say(store, node, "old", key=IDLE)
    clock.move(hours=2)
    fresh = await begin(store, node, "new", key=IDLE)
    assert (fresh.session.edge, fresh.reset) == (Edge.RESET, "idle")
    assert (await store.session(OWNER, begun.session.id)).end_reason == "idle"
    assert len((await store.notices(OWNER)).items) == 1


async def test_speaking_and_being_answered_move_the_clock_and_nothing_else_does(
    store: Store, node: Node, clock: Clock, second_store: Store, second_node: Node
) -> None:
    begun = await begin(store, node, key=IDLE)
    clock.move(hours=1)
    await store.commit_reply(begun.lease)
    assert (await store.session(OWNER, begun.session.id)).next_due_at == datetime(2026, 3, 1, 15, tzinfo=UTC)
    other = await begin(second_store, second_node, key="idle:other")
    clock.move(hours=1)
    await reap(store, second_node)
    await sweep(store)
    after = await store.session(OWNER, other.session.id)
    assert after.next_due_at == datetime(2026, 3, 1, 15, tzinfo=UTC)
    await store.beat(node.id)
    await store.judge_session(OWNER, begun.session.id)
    assert (await store.session(OWNER, begun.session.id)).next_due_at == datetime(2026, 3, 1, 15, tzinfo=UTC)


async def test_a_running_turn_defers_and_a_change_is_told_once(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await begin(store, node, key=IDLE)
    clock.move(hours=5)
    for _ in range(3):
        found = await store.reset_session(begun.session.id)
        assert found is not None and found.decision is Decision.DEFERRED
        clock.move(hours=1)
    told = [event.type for event in await store.events(owner=OWNER)]
    assert told.count("session.reset_deferred") == 1
    await store.commit_reply(begun.lease)
    assert await store.due_sessions() == []
    clock.move(hours=2)
    assert await store.due_sessions() == [begun.session.id]


async def test_a_deferred_reset_is_not_looked_at_before_it_is_worth_it(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await begin(store, node, key=IDLE)
    clock.move(hours=3)
    await store.reset_session(begun.session.id)
    assert await store.due_sessions() == []
    clock.move(seconds=POLICIES.look_again.total_seconds())
    assert await store.due_sessions() == [begun.session.id]


async def test_awaited_tool_calls_defer_for_a_limited_time_and_their_results_are_never_reset_away(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await begin(store, node, key=IDLE)
    await store.commit_reply(begun.lease, [to_message(calling("a"))])
    clock.move(hours=3.9)
    found = await store.reset_session(begun.session.id)
    assert found is not None and found.decision is Decision.DEFERRED
    assert [reason.code for reason in found.holding] == ["tool_calls"]
    clock.move(hours=0.1)  # two hours of being due: max_block
    found = await store.reset_session(begun.session.id)
    assert found is not None and found.decision is Decision.DUE
    begun = await begin(store, node, key="idle:brings")
    await store.commit_reply(begun.lease, [to_message(calling("a"))])
    clock.move(hours=9)
    brings = await begin(store, node, to_message(result("a")), key="idle:brings")
    assert (brings.session.id, brings.reset) == (begun.session.id, None)


async def test_an_ended_session_is_continued_only_while_its_policy_would_not_have_reset_it(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await say(store, node, key=IDLE)
    await store.end_session(OWNER, begun.session.id, "closed")
    clock.move(hours=1)
    resumed = await begin(store, node, key=IDLE)
    assert (resumed.session.edge, resumed.reset) == (Edge.RESUME, None)
    await store.commit_reply(resumed.lease)
    await store.end_session(OWNER, resumed.session.id, "closed")
    clock.move(hours=2)
    fresh = await begin(store, node, key=IDLE)
    assert (fresh.session.edge, fresh.reset) == (Edge.RESET, "idle")


async def test_days_that_were_missed_are_one_reset(store: Store, node: Node, clock: Clock) -> None:
    begun = await say(store, node, key=DAILY)
    clock.move(hours=24 * 9)
    assert await store.due_sessions() == [begun.session.id]
    await store.reset_session(begun.session.id)
    assert await store.due_sessions() == []
    assert len((await store.notices(OWNER)).items) == 1
    fresh = await say(store, node, key=DAILY)
    assert fresh.session.edge is Edge.RESET
    assert (await store.session(OWNER, fresh.session.id)).next_due_at == datetime(2026, 3, 11, 6, tzinfo=UTC)


async def test_what_has_no_policy_is_never_due(store: Store, node: Node, clock: Clock) -> None:
    begun = await say(store, node, key="cli:ada")
    clock.move(hours=24 * 3650)
    assert (await store.session(OWNER, begun.session.id)).next_due_at is None
    assert await store.due_sessions() == []
    again = await begin(store, node, key="cli:ada")
    assert again.session.id == begun.session.id


async def test_reading_resolves_and_never_resets(store: Store, node: Node, clock: Clock) -> None:
    begun = await say(store, node, key=IDLE)
    clock.move(hours=3)
    place = await store.resolve(OWNER, Address(key=IDLE))
    assert place.tip.id == begun.session.id
    assert (await store.judge_session(OWNER, begun.session.id)).verdict.decision is Decision.DUE
    assert not (await store.session(OWNER, begun.session.id)).ended


async def test_other_policies_date_open_sessions_anew(
    store: Store, node: Node, clock: Clock, open_another: Opener
) -> None:
    for number in range(5):
        await say(store, node, key=f"idle:{number}")
    ended = await say(store, node, key="idle:ended")
    await store.end_session(OWNER, ended.session.id, "closed")
    assert await store.date_sessions() == 0
    follow(store, ResetPolicies(NEVER))
    assert [await store.date_sessions(2) for _ in range(4)] == [2, 2, 1, 0]
    clock.move(hours=24)
    assert await store.due_sessions() == []
    follow(store, POLICIES)
    assert await store.date_sessions() == 5
    assert len(await store.due_sessions()) == 5


async def test_two_who_reset_at_once_are_one_reset(
    store: Store, second_store: Store, node: Node, clock: Clock
) -> None:
    begun: TurnBegun = await say(store, node, key=IDLE)
    clock.move(hours=2)
    await store.reset_session(begun.session.id)
    await second_store.reset_session(begun.session.id)
    assert len((await store.notices(OWNER)).items) == 1
    assert len(await messages(store, begun.session.conversation_id)) > 0


@pytest.mark.parametrize("key", [IDLE, DAILY])
async def test_a_library_session_that_is_due_begins_afresh(
    store: Store, node: Node, clock: Clock, key: str
) -> None:
    session = await store.open_session(OWNER, Address(key=key), node.id, attached=True)
    clock.move(hours=48)
    again = await store.open_session(OWNER, Address(key=key), node.id, attached=True)
    assert (again.edge, again.parent_id) == (Edge.RESET, session.id)


async def test_the_reset_is_told_by_the_first_turn_however_often_that_is_tried(
    store: Store, node: Node, clock: Clock
) -> None:
    await say(store, node, "old", key=IDLE)
    clock.move(hours=2)
    key = RequestKey("/r", "k", b"h")
    first = await begin(store, node, "new", key=IDLE, request_key=key)
    await store.settle_turn(first.lease, TurnFailure(TurnStatus.FAILED, error="no answer"))
    again = await begin(store, node, "new", key=IDLE, request_key=key)
    assert again.taken_up
    assert [(each.reset, len(each.notices)) for each in (first, again)] == [("idle", 1)] * 2
    await store.commit_reply(again.lease, [to_message("hi", "assistant")])
    repeated = await store.begin_turn(request(node, "new", key=IDLE, request_key=key))
    assert isinstance(repeated, TurnRepeated)
    assert reset_before(repeated.session, repeated.turn) == "idle"
    later = await begin(store, node, key=IDLE)
    assert (later.reset, later.notices) == (None, ())


async def test_a_fresh_session_that_was_only_opened_tells_of_its_reset_when_somebody_speaks(
    store: Store, node: Node, clock: Clock
) -> None:
    await say(store, node, key=IDLE)
    clock.move(hours=2)
    opened = await store.open_session(OWNER, Address(key=IDLE), node.id)
    begun = await begin(store, node, key=IDLE)
    assert (begun.session.id, begun.reset) == (opened.id, "idle")


async def test_a_session_that_a_person_takes_up_again_is_theirs_for_a_while(
    store: Store, node: Node, clock: Clock
) -> None:
    for key, hours in ((IDLE, 2), (DAILY, 24)):
        old = await say(store, node, "old", key=key)
        clock.move(hours=48)
        await store.reset_session(old.session.id)
        resumed = await store.resume_session(OWNER, old.session.id, node.id)
        assert await store.due_sessions() == []
        spoken = await say(store, node, key=key)
        assert (spoken.session.id, spoken.reset) == (resumed.id, None)
        clock.move(hours=hours)
        assert await store.due_sessions() == [resumed.id]
        await store.reset_session(resumed.id)


async def test_a_daily_reset_that_waits_for_quiet_is_not_forgotten_by_a_crash(
    store: Store, node: Node, clock: Clock, second_store: Store, second_node: Node
) -> None:
    await say(second_store, second_node, key=DAILY, attached=True)
    clock.move(hours=17.95)
    await begin(second_store, second_node, "at three to six", key=DAILY, attached=True)
    clock.move(hours=0.1)
    await reap(store, second_node)
    await sweep(store)
    resumed = await say(store, node, "at three past six", key=DAILY)
    assert (resumed.session.edge, resumed.reset) == (Edge.RESUME, None)
    assert (await store.session(OWNER, resumed.session.id)).next_due_at == clock.now + timedelta(minutes=15)
    clock.move(hours=0.25)
    assert (await begin(store, node, key=DAILY)).reset == "daily"


async def test_what_a_client_adds_outside_of_turns_is_asked_the_same_questions(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await say(store, node, key=IDLE)
    conversation = begun.session.conversation_id
    clock.move(hours=1)
    await store.add_messages(OWNER, conversation, node.id, [to_message("a note")])
    assert (await store.session(OWNER, begun.session.id)).next_due_at == clock.now + timedelta(hours=2)
    clock.move(hours=2)
    await store.add_messages(OWNER, conversation, node.id, [to_message("a later note")])
    tip = (await store.resolve(OWNER, Address(key=IDLE))).tip
    assert (tip.edge, tip.fresh_by, tip.message_count) == (Edge.RESET, "idle", 1)


async def test_a_reset_behind_a_closed_program_leaves_its_event_and_its_notice_too(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await say(store, node, key=IDLE)
    await store.end_session(OWNER, begun.session.id, "closed")
    clock.move(hours=3)
    fresh = await begin(store, node, key=IDLE)
    assert [notice.kind for notice in fresh.notices] == ["reset"]
    told = [event for event in await store.events(owner=OWNER) if event.type == "session.reset"]
    assert [(event.session_id, event.data["reason"]) for event in told] == [(begun.session.id, "idle")]


async def test_who_has_other_policies_leaves_what_is_due_alone(
    store: Store, node: Node, clock: Clock, second_store: Store
) -> None:
    begun = await say(store, node, key=IDLE)
    follow(second_store, ResetPolicies(NEVER))
    clock.move(hours=3)
    assert await second_store.due_sessions() == []
    assert await store.due_sessions() == [begun.session.id]


async def test_a_message_is_judged_by_the_policies_of_now_though_nobody_has_dated_its_session_yet(
    store: Store, node: Node, clock: Clock
) -> None:
    follow(store, ResetPolicies(NEVER))
    await say(store, node, key=IDLE)
    clock.move(hours=3)
    follow(store, POLICIES)
    assert (await begin(store, node, key=IDLE)).reset == "idle"


async def test_each_reset_and_each_deferral_is_one_line_in_the_log_whoever_carries_it_out(
    store: Store, node: Node, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    swept, spoken = await say(store, node, key=IDLE), await say(store, node, key="idle:spoken")
    held = await begin(store, node, key="idle:held")
    clock.move(hours=3)
    for _ in range(2):
        await store.reset_session(swept.session.id)
        await store.reset_session(held.session.id)
    await begin(store, node, key="idle:spoken")
    lines = [record.getMessage() for record in caplog.records if "reset" in record.getMessage()]
    assert lines == [
        f"session {swept.session.id} ({IDLE}) was reset (idle): no message for 2 h",
        f"session {held.session.id} (idle:held) is due to be reset (idle); deferred: "
        f"turn {held.turn.id} is running",
        f"session {spoken.session.id} (idle:spoken) was reset (idle): no message for 2 h",
    ]


async def test_results_belong_to_the_session_that_called_unless_that_was_ended_on_purpose(
    store: Store, node: Node, clock: Clock
) -> None:
    ends: dict[str, str] = {"idle:closed": "closed", "idle:new": "new", "idle:idle": "idle"}
    for key, reason in ends.items():
        begun = await begin(store, node, key=key)
        await store.commit_reply(begun.lease, [to_message(calling("a"))])
        await store.end_session(OWNER, begun.session.id, reason)
    clock.move(hours=9)
    resumed = await begin(store, node, to_message(result("a")), key="idle:closed")
    assert (resumed.session.edge, resumed.reset) == (Edge.RESUME, None)
    for key in ("idle:new", "idle:idle"):
        with pytest.raises(ToolCallClosed):
            await begin(store, node, to_message(result("a")), key=key)
        assert (await store.resolve(OWNER, Address(key=key))).tip.ended, "nothing was opened for it"
