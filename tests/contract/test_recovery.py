"""What is stored to finish a turn: its request, its attempts, and when it is taken up again."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.messages import NewMessage
from holdfast.domain.nodes import Node
from holdfast.domain.recovery import (
    REQUEST_KEPT,
    Cause,
    Origin,
    Recovery,
    RequestToStore,
    decoded_request,
    encoded_request,
)
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.resets import Decision
from holdfast.domain.turns import (
    TurnBegun,
    TurnFailure,
    TurnOutdated,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
)
from holdfast.errors import Conflict, ConversationBusy, LeaseLost, NotFound, TurnSuperseded
from holdfast.settings import Settings
from holdfast.store.store import Store
from holdfast.wiring import retention_of
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    calling,
    new_node,
    reap,
    request,
    result,
    sweep,
    to_message,
)

SYSTEM = b'{"role":"system","content":"be brief"}'
REQUEST = encoded_request("chat", b'{"temperature":0.5}', (SYSTEM,), "key_1")
COVERED = RequestToStore(REQUEST, Origin.BACKGROUND, recover=True)


# --- the request -----------------------------------------------------------------------------------------


async def test_the_request_is_stored_with_the_turn_and_can_be_read_by_any_node(
    store: Store, node: Node, second_store: Store
) -> None:
    begun = await begin(store, node, "hello", stored=COVERED)
    stored = await second_store.stored_request(OWNER, begun.turn.id)
    assert stored is not None
    found = decoded_request(stored)
    assert (found.surface, found.fields(), found.key_id) == ("chat", {"temperature": 0.5}, "key_1")
    assert found.first_messages() == (SYSTEM,)
    turn = await second_store.turn(OWNER, begun.turn.id)
    assert turn == begun.turn
    assert (turn.recovery.origin, turn.recovery.recover, turn.recovery.tries) == (Origin.BACKGROUND, True, 1)
    with pytest.raises(NotFound):
        await store.stored_request(OTHER, begun.turn.id)


async def test_the_request_is_deleted_when_the_turn_completes(store: Store, node: Node) -> None:
    begun = await begin(store, node, "hello", stored=COVERED)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    assert await store.stored_request(OWNER, begun.turn.id) is None


async def test_the_request_is_deleted_when_the_turn_is_cancelled(store: Store, node: Node) -> None:
    begun = await begin(store, node, "hello", stored=COVERED)
    assert await store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "a person cancelled it")
    assert await store.stored_request(OWNER, begun.turn.id) is None


@pytest.mark.parametrize("status", [TurnStatus.FAILED, TurnStatus.INTERRUPTED])
async def test_the_request_of_a_turn_without_an_answer_is_kept_for_a_day(
    store: Store, node: Node, clock: Clock, status: TurnStatus
) -> None:
    begun = await begin(store, node, "hello", stored=RequestToStore(REQUEST, Origin.FOREGROUND))
    await store.settle_turn(begun.lease, TurnFailure(status, error="no"))
    keep = retention_of(Settings())
    clock.move(seconds=REQUEST_KEPT.total_seconds() - 1)
    assert (await store.prune(keep)).stored_requests == 0
    assert await store.stored_request(OWNER, begun.turn.id) == REQUEST
    clock.move(seconds=2)
    assert (await store.prune(keep)).stored_requests == 1
    assert await store.stored_request(OWNER, begun.turn.id) is None


async def test_a_resumed_turn_has_its_first_request(store: Store, node: Node) -> None:
    begun = await begin(store, node, "hello", stored=RequestToStore(REQUEST, Origin.FOREGROUND))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
    again = await store.begin_turn(
        request(node, answer_existing=True, resumes_turn=begun.turn.id, stored=RequestToStore(b"{}"))
    )
    assert isinstance(again, TurnBegun)
    assert again.request == REQUEST
    assert await store.stored_request(OWNER, begun.turn.id) == REQUEST
    assert (again.turn.attempt, again.turn.recovery.tries, again.turn.recovery.all_tries) == (2, 2, 2)
    assert await store.turn(OWNER, begun.turn.id) == again.turn


# --- waiting ---------------------------------------------------------------------------------------------


async def _orphan(store: Store, second_store: Store, **more: Any) -> TurnBegun:
    """A covered turn whose node has died, as the sweep of another node leaves it."""
    dead = await new_node(store)
    begun = await begin(store, dead, "hello", stored=more.pop("stored", COVERED), **more)
    await reap(second_store, dead)
    await sweep(second_store)
    return begun


def _resuming(node: Node, turn: TurnBegun, **more: Any) -> TurnRequest:
    return request(node, answer_existing=True, resumes_turn=turn.turn.id, by_recovery=True, **more)


async def test_a_covered_turn_of_a_dead_node_waits_and_is_seen_as_running(
    store: Store, second_store: Store, clock: Clock
) -> None:
    begun = await _orphan(store, second_store)
    turn = await store.turn(OWNER, begun.turn.id)
    assert (turn.status, turn.shown_status) == (TurnStatus.INTERRUPTED, TurnStatus.RUNNING)
    assert (turn.recovery.due_at, turn.recovery.cause) == (clock.now, Cause.DEATH)
    assert [each.id for each in await store.due_turns()] == [turn.id]
    assert await store.count_waiting() == 1
    types = [event.type for event in await all_events(store)]
    assert types.count("turn.waiting") == 1
    assert "turn.interrupted" not in types
    assert await store.check() == []


@pytest.mark.parametrize("recover", [True, False])
@pytest.mark.parametrize("reaped", [False, True])
async def test_ending_a_turn_that_no_task_runs_is_no_activity(
    store: Store, second_store: Store, node: Node, clock: Clock, recover: bool, reaped: bool
) -> None:
    """Its node finds it by its heartbeat; another node may have reaped that one meanwhile."""
    begun = await begin(store, node, "hello", stored=RequestToStore(REQUEST, Origin.BACKGROUND, recover))
    before = (await store.session(OWNER, begun.session.id)).last_activity_at
    clock.move(hours=30)
    if reaped:
        await reap(second_store, node)
    why = "no task was running it"
    assert await store.cancel_turn(None, begun.turn.id, TurnStatus.INTERRUPTED, why, cause=Cause.DEATH)
    assert (await store.session(OWNER, begun.session.id)).last_activity_at == before
    assert (await store.turn(OWNER, begun.turn.id)).waits is recover


async def test_cancelling_a_waiting_turn_is_activity(store: Store, second_store: Store, clock: Clock) -> None:
    begun = await _orphan(store, second_store)
    clock.move(hours=30)
    assert await store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "stop")
    assert (await store.session(OWNER, begun.session.id)).last_activity_at == clock.now


async def test_a_turn_that_is_not_covered_stays_interrupted(store: Store, second_store: Store) -> None:
    begun = await _orphan(store, second_store, stored=RequestToStore(REQUEST, Origin.FOREGROUND))
    turn = await store.turn(OWNER, begun.turn.id)
    assert turn.shown_status is TurnStatus.INTERRUPTED
    assert await store.due_turns() == []
    assert turn.why == "its node is gone"


async def test_one_of_two_nodes_takes_it_up_under_a_higher_token(
    store: Store, second_store: Store, node: Node
) -> None:
    begun = await _orphan(store, second_store)
    first = await store.begin_turn(_resuming(node, begun))
    second = await second_store.begin_turn(_resuming(node, begun))
    assert isinstance(first, TurnBegun)
    assert first.lease.token > begun.lease.token
    assert isinstance(second, TurnRepeated)
    with pytest.raises(LeaseLost):
        await store.append(begun.lease, [to_message("late", "assistant")])
    taken = [event for event in await all_events(store) if event.type == "turn.taken_up"]
    assert [(each.data["by"], each.data["attempts"]) for each in taken] == [("recovery", 2)]
    await store.commit_reply(first.lease, [to_message("hi", "assistant")])
    again = await store.begin_turn(_resuming(node, begun))
    assert isinstance(again, TurnRepeated)
    assert await store.check() == []


async def test_a_turn_is_not_taken_up_before_it_is_due(
    store: Store, second_store: Store, node: Node, clock: Clock
) -> None:
    begun = await begin(store, node, "hello", stored=COVERED)
    refusal = TurnFailure(
        TurnStatus.FAILED, error="overloaded", cause=Cause.MODEL, delay=timedelta(seconds=30)
    )
    await store.settle_turn(begun.lease, refusal)
    assert await store.due_turns() == []
    assert isinstance(await store.begin_turn(_resuming(node, begun)), TurnOutdated)
    clock.move(seconds=30)
    assert [each.id for each in await store.due_turns()] == [begun.turn.id]
    assert isinstance(await store.begin_turn(_resuming(node, begun)), TurnBegun)


async def test_a_waiting_turn_is_due_when_the_clock_was_set_back(
    store: Store, second_store: Store, node: Node, clock: Clock
) -> None:
    begun = await _orphan(store, second_store)
    clock.move(seconds=-7200)
    assert [each.id for each in await store.due_turns()] == [begun.turn.id]
    assert isinstance(await store.begin_turn(_resuming(node, begun)), TurnBegun)


async def test_a_newer_request_waits_for_the_waiting_turn(
    store: Store, second_store: Store, node: Node
) -> None:
    begun = await _orphan(store, second_store, key="k")
    waits = await store.begin_turn(request(node, "and?", key="k"))
    assert waits == TurnWaits(begun.turn.conversation_id, "", begun.turn.id)
    with pytest.raises(ConversationBusy, match=f"turn {begun.turn.id} .* waits for a retry"):
        await store.add_messages(OWNER, begun.turn.conversation_id, node.id, [to_message("x")])
    with pytest.raises(ConversationBusy):
        await store.remove_last(OWNER, begun.turn.conversation_id, 1)


async def test_a_newer_request_waits_for_an_orphaned_turn_that_no_sweep_has_seen(
    store: Store, second_store: Store, node: Node
) -> None:
    dead = await new_node(store)
    begun = await begin(store, dead, "hello", stored=COVERED, key="k")
    queued = await store.enqueue_turn(request(node, "later", key="k", stored=COVERED), most=16)
    assert queued is not None
    await reap(second_store, dead)
    with pytest.raises(ConversationBusy):
        await store.add_messages(OWNER, begun.turn.conversation_id, node.id, [to_message("x")])
    waits = TurnWaits(begun.turn.conversation_id, "", begun.turn.id)
    starting = TurnRequest(queued.turn.id, OWNER, node.id, Address(), (), starts_queued=True)
    assert await store.begin_turn(starting) == waits
    assert await second_store.begin_turn(request(node, "and?", key="k", overtakes=True)) == waits
    assert [each.id for each in await store.due_turns()] == [begun.turn.id]
    assert await store.check() == []


async def test_a_request_that_finds_an_orphaned_turn_waits_for_it(
    store: Store, second_store: Store, node: Node
) -> None:
    dead = await new_node(store)
    begun = await begin(store, dead, "hello", stored=COVERED, key="k")
    await reap(second_store, dead)
    waits = await store.begin_turn(request(node, "and?", key="k"))
    assert waits == TurnWaits(begun.turn.conversation_id, "", begun.turn.id)
    assert isinstance(await store.begin_turn(_resuming(node, begun)), TurnBegun)
    assert await store.check() == []


async def test_a_queued_turn_that_was_overtaken_is_the_newest_once_it_has_begun(
    store: Store, second_store: Store, node: Node
) -> None:
    first = await begin(store, node, "one", key="k")
    queued = await store.enqueue_turn(request(node, "two", key="k", stored=COVERED), most=16)
    assert queued is not None
    await store.commit_reply(first.lease, [to_message("fine", "assistant")])
    three = await begin(store, node, "three", key="k", overtakes=True)
    await store.commit_reply(three.lease, [to_message("fine", "assistant")])
    dead = await new_node(store)
    starting = TurnRequest(queued.turn.id, OWNER, dead.id, Address(), (), starts_queued=True)
    begun = await store.begin_turn(starting)
    assert isinstance(begun, TurnBegun)
    await reap(second_store, dead)
    await sweep(second_store)
    assert await store.check() == []
    assert isinstance(await store.begin_turn(_resuming(node, begun)), TurnBegun)


async def test_a_turn_that_was_withdrawn_from_the_queue_is_not_newer_than_the_waiting_one(
    store: Store, second_store: Store, node: Node
) -> None:
    begun = await _orphan(store, second_store, key="k")
    queued = await store.enqueue_turn(request(node, "two", key="k", stored=COVERED), most=16)
    assert queued is not None
    assert await store.withdraw_queued(OWNER, queued.turn.id, "a person withdrew it")
    assert await store.check() == []
    assert isinstance(await store.begin_turn(_resuming(node, begun)), TurnBegun)


async def test_a_retry_by_key_takes_it_up_at_once(store: Store, second_store: Store, node: Node) -> None:
    key = RequestKey("r", "k1", b"h" * 32)
    begun = await _orphan(store, second_store, request_key=key)
    again = await store.begin_turn(request(node, "hello", request_key=key))
    assert isinstance(again, TurnBegun)
    assert (again.turn.id, again.taken_up) == (begun.turn.id, True)


@pytest.mark.parametrize("status", [TurnStatus.CANCELLED, TurnStatus.INTERRUPTED])
async def test_cancelling_withdraws_it_and_frees_the_conversation(
    store: Store, second_store: Store, node: Node, status: TurnStatus
) -> None:
    begun = await _orphan(store, second_store, key="k")
    assert await store.cancel_turn(OWNER, begun.turn.id, status, "a person cancelled it")
    turn = await store.turn(OWNER, begun.turn.id)
    assert (turn.shown_status, turn.why) == (status, "a person cancelled it")
    kept = await store.stored_request(OWNER, begun.turn.id)
    assert (kept is None) == (status is TurnStatus.CANCELLED)
    assert isinstance(await store.begin_turn(request(node, "next", key="k")), TurnBegun)
    assert await store.count_waiting() == 0
    assert await store.check() == []


async def test_ending_the_session_withdraws_it(store: Store, second_store: Store, node: Node) -> None:
    begun = await _orphan(store, second_store, key="k")
    assert await store.end_session(OWNER, begun.session.id, "closed")
    assert (await store.turn(OWNER, begun.turn.id)).shown_status is TurnStatus.INTERRUPTED
    assert await store.check() == []


async def test_deleting_the_conversation_deletes_it(store: Store, second_store: Store) -> None:
    begun = await _orphan(store, second_store)
    await store.delete_conversation(OWNER, begun.turn.conversation_id)
    assert await store.due_turns() == []


async def test_giving_up_fails_it_with_the_sentence(store: Store, second_store: Store, node: Node) -> None:
    begun = await _orphan(store, second_store, key="k")
    assert await store.give_up_turn(begun.turn.id, "Given up after 5 attempts.")
    assert not await store.give_up_turn(begun.turn.id, "again")
    turn = await store.turn(OWNER, begun.turn.id)
    assert (turn.status, turn.error, turn.why) == (TurnStatus.FAILED, *["Given up after 5 attempts."] * 2)
    types = [event.type for event in await all_events(store)]
    assert types[-2:] == ["turn.given_up", "turn.failed"]
    assert await store.check() == []
    retried = await store.begin_turn(request(node, answer_existing=True, resumes_turn=turn.id))
    assert isinstance(retried, TurnBegun)  # a person may try once more
    assert retried.request == REQUEST


async def test_deaths_are_counted_and_stops_are_not(
    store: Store, second_store: Store, clock: Clock, node: Node
) -> None:
    begun = await _orphan(store, second_store)
    waits = []
    for _ in range(4):
        clock.move(seconds=60)
        dead = await new_node(store)
        await store.begin_turn(_resuming(dead, begun))
        await reap(second_store, dead)
        await sweep(second_store)
        recovery = (await store.turn(None, begun.turn.id)).recovery
        assert recovery.due_at is not None
        waits.append((recovery.tries, (recovery.due_at - clock.now).total_seconds()))
    assert waits == [(2, 2), (3, 4), (4, 8), (5, 10)]
    clock.move(seconds=60)
    taken = await store.begin_turn(_resuming(node, begun))
    assert isinstance(taken, TurnBegun)
    await store.settle_turn(taken.lease, TurnFailure(TurnStatus.INTERRUPTED, cause=Cause.STOP))
    recovery = (await store.turn(None, begun.turn.id)).recovery
    assert (recovery.tries, recovery.all_tries, recovery.stops, recovery.due_at) == (5, 5, 1, clock.now)


async def test_a_stored_tool_result_renews_the_attempts_and_a_call_alone_does_not(
    store: Store, second_store: Store, clock: Clock
) -> None:
    begun = await _orphan(store, second_store)

    async def attempt(*said: NewMessage) -> Recovery:
        clock.move(seconds=60)
        dead = await new_node(store)
        taken = await store.begin_turn(_resuming(dead, begun))
        assert isinstance(taken, TurnBegun)
        for each in said:
            await store.append(taken.lease, [each])
        await reap(second_store, dead)
        await sweep(second_store)
        return (await store.turn(None, begun.turn.id)).recovery

    call = replace(to_message(calling("c1"), "assistant"), own_calls=("c1",), inner=True)
    assert (await attempt(call)).tries == 2  # the tool that kills its server has no result
    assert (await attempt()).tries == 3  # and neither has the result "outcome unknown" counted
    call = replace(to_message(calling("c2"), "assistant"), own_calls=("c2",), inner=True)
    done = await attempt(call, replace(to_message(result("c2")), inner=True))
    assert (done.tries, done.all_tries) == (1, 4)


async def test_refusals_are_counted_from_the_first_and_hold_no_lease(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await begin(store, node, "hello", stored=COVERED)
    first_at = clock.now
    for number in (1, 2, 3):
        refusal = TurnFailure(TurnStatus.FAILED, error="503", cause=Cause.MODEL, delay=timedelta(seconds=1))
        await store.settle_turn(begun.lease, refusal)
        recovery = (await store.turn(None, begun.turn.id)).recovery
        assert (recovery.refusals, recovery.refused_since, recovery.tries) == (number, first_at, 0)
        assert (await store.resolve(OWNER, Address(id=begun.session.id))).conversation.holder is None
        clock.move(seconds=1)
        taken = await store.begin_turn(_resuming(node, begun))
        assert isinstance(taken, TurnBegun)
        begun = taken


async def test_a_waiting_turn_defers_a_reset_for_a_bounded_time(
    store: Store, second_store: Store, clock: Clock
) -> None:
    begun = await _orphan(store, second_store, source="idle")
    clock.move(hours=2)
    judged = await store.judge_session(OWNER, begun.session.id)
    assert judged.verdict.decision is Decision.DEFERRED
    assert any("waits for a retry" in each.message for each in judged.verdict.reasons)
    clock.move(hours=3)
    assert (await store.judge_session(OWNER, begun.session.id)).verdict.decision is Decision.DUE


async def test_refusals_of_the_model_do_not_put_off_a_reset_for_longer(
    store: Store, node: Node, clock: Clock
) -> None:
    """Neither a retry by a server nor its refusal is activity: else each attempt would restart the limit."""
    begun = await begin(store, node, "hello", source="idle", stored=COVERED)
    spoken_at = begun.session.last_activity_at
    refusal = TurnFailure(TurnStatus.FAILED, error="503", cause=Cause.MODEL, delay=timedelta(hours=1))
    for _ in range(3):
        await store.settle_turn(begun.lease, refusal)
        assert (await store.session(OWNER, begun.session.id)).last_activity_at == spoken_at
        clock.move(hours=1)
        taken = await store.begin_turn(_resuming(node, begun))
        assert isinstance(taken, TurnBegun)
        begun = taken
        assert (await store.session(OWNER, begun.session.id)).last_activity_at == spoken_at
    await store.settle_turn(begun.lease, refusal)
    clock.move(hours=1)
    found = await store.reset_session(begun.session.id)
    assert found is not None and found.decision is Decision.DUE
    assert (await store.session(OWNER, begun.session.id)).end_reason == "idle"
    taken = await store.begin_turn(_resuming(node, begun))  # it is answered all the same, in a fresh session
    assert isinstance(taken, TurnBegun)
    await store.commit_reply(taken.lease, [to_message("hi", "assistant")])
    assert (await store.session(OWNER, taken.session.id)).last_activity_at == clock.now
    assert await store.check() == []


async def test_a_retry_by_hand_is_due_at_once_whatever_was_used_up(
    store: Store, second_store: Store, node: Node
) -> None:
    begun = await _orphan(store, second_store, key="k")
    await store.give_up_turn(begun.turn.id, "Given up.")
    turn = await store.retry_turn(OWNER, begun.turn.id)
    assert (turn.shown_status, turn.recovery.cause) == (TurnStatus.RUNNING, Cause.RETRY)
    assert [each.id for each in await store.due_turns()] == [turn.id]
    assert isinstance(await store.begin_turn(request(node, "next", key="k")), TurnWaits)
    assert await store.check() == []
    taken = await store.begin_turn(_resuming(node, begun))
    assert isinstance(taken, TurnBegun)
    assert [each.id for each in await store.running_turns(OWNER)] == [turn.id]
    with pytest.raises(Conflict, match="is running"):
        await store.retry_turn(OWNER, turn.id)
    await store.commit_reply(taken.lease, [to_message("hi", "assistant")])
    with pytest.raises(Conflict, match="is completed"):
        await store.retry_turn(OWNER, turn.id)


async def test_only_the_newest_turn_whose_request_is_kept_is_retried(store: Store, node: Node) -> None:
    begun = await begin(store, node, "hello", key="k")
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
    with pytest.raises(Conflict, match="no longer kept"):
        await store.retry_turn(OWNER, begun.turn.id)
    await begin(store, node, "again", key="k")
    with pytest.raises(TurnSuperseded):
        await store.retry_turn(OWNER, begun.turn.id)
