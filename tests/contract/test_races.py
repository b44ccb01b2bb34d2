"""Two nodes do the same thing, or things that exclude each other, at the same moment.

The second must see what the first has done, not the state before. Each race is run a number of times, in both
orders; the invariants are checked afterwards as after every test. What a second node sees of a single lost
race is in the other files.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.recovery import Origin, RequestToStore, encoded_request
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.sessions import EndReason
from holdfast.domain.turns import (
    TurnBegun,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
)
from holdfast.errors import Conflict, ConversationBusy, HoldfastError, LeaseLost, NodeReaped, NotFound
from holdfast.store.store import Store
from tests.contract.steps import (
    OWNER,
    all_events,
    all_sessions,
    begin,
    calling,
    contents,
    draft,
    messages,
    new_node,
    reap,
    request,
    say,
    sweep,
    to_message,
)

ROUNDS = 12


async def race(*runners: Awaitable[Any]) -> list[Any]:
    """All at once; of each, what it gave or why it refused."""
    outcomes = await asyncio.gather(*runners, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, HoldfastError):
            raise outcome
    return outcomes


def kinds(outcomes: Sequence[Any]) -> list[str]:
    return sorted(type(outcome).__name__ for outcome in outcomes)


async def test_a_new_key_is_one_conversation_whoever_is_first(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for number in range(ROUNDS):
        key = f"cli:{number}"
        outcomes = await race(
            store.begin_turn(request(node, "kelp", key=key)),
            second_store.begin_turn(request(second_node, "tide", key=key)),
        )
        assert kinds(outcomes) == ["TurnBegun", "TurnWaits"]
    assert len(await all_sessions(store)) == ROUNDS


async def test_an_alias_and_a_fork_to_a_key_are_given_once(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    first = (await say(store, node)).session
    second = (await say(store, node)).session
    for number in range(ROUNDS):
        outcomes = await race(
            store.add_alias(OWNER, f"alias {number}", first.conversation_id),
            second_store.add_alias(OWNER, f"alias {number}", second.conversation_id),
        )
        assert kinds(outcomes) == ["Conflict", "NoneType"]
        outcomes = await race(
            store.fork(OWNER, first.id, node.id, key=f"fork:{number}"),
            second_store.fork(OWNER, first.id, second_node.id, key=f"fork:{number}"),
        )
        assert kinds(outcomes) == ["Conflict", "Session"]


async def test_a_request_key_is_one_turn_whoever_is_asked(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for number in range(ROUNDS):
        key = RequestKey("chat", f"request {number}", b"x" * 32)
        outcomes = await race(
            store.begin_turn(request(node, "kelp", request_key=key)),
            second_store.begin_turn(request(second_node, "kelp", request_key=key)),
        )
        assert kinds(outcomes) == ["TurnBegun", "TurnRepeated"]
        (begun,) = [outcome for outcome in outcomes if isinstance(outcome, TurnBegun)]
        (repeated,) = [outcome for outcome in outcomes if isinstance(outcome, TurnRepeated)]
        assert repeated.turn.id == begun.turn.id
    assert len(await all_sessions(store)) == ROUNDS


async def test_a_free_conversation_is_taken_by_one(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = (await say(store, node, key="cli:ada")).session
    for _ in range(ROUNDS):
        outcomes = await race(
            store.begin_turn(request(node, "kelp", key="cli:ada")),
            second_store.begin_turn(request(second_node, "tide", id=session.id)),
        )
        assert kinds(outcomes) == ["TurnBegun", "TurnWaits"]
        (begun,) = [outcome for outcome in outcomes if isinstance(outcome, TurnBegun)]
        (waits,) = [outcome for outcome in outcomes if isinstance(outcome, TurnWaits)]
        assert waits.turn_id == begun.turn.id
        await store.commit_reply(begun.lease, [to_message("hi", "assistant")])


def _stored() -> RequestToStore:
    return RequestToStore(encoded_request("chat", b"{}"), Origin.BACKGROUND, recover=True)


async def _waiting(store: Store, by: Store) -> TurnBegun:
    """A turn whose node has died: it is due to be taken up."""
    dead = await new_node(store)
    begun = await begin(store, dead, "hello", stored=_stored())
    await reap(by, dead)
    await sweep(by)
    return begun


def _claim(node: Node, begun: TurnBegun) -> TurnRequest:
    return request(node, answer_existing=True, resumes_turn=begun.turn.id, by_recovery=True)


async def test_a_waiting_turn_is_taken_up_by_one(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for _ in range(ROUNDS):
        begun = await _waiting(store, second_store)
        outcomes = await race(
            store.begin_turn(_claim(node, begun)),
            second_store.begin_turn(_claim(second_node, begun)),
            store.begin_turn(_claim(node, begun)),
        )
        (taken,) = [outcome for outcome in outcomes if isinstance(outcome, TurnBegun)]
        assert kinds(outcomes) == ["TurnBegun", "TurnRepeated", "TurnRepeated"]
        # Whoever has read it as due, and is late, does not take up what was answered meanwhile.
        answered = store.commit_reply(taken.lease, [to_message("hi", "assistant")])
        late = await race(
            answered,
            second_store.begin_turn(_claim(second_node, begun)),
            second_store.begin_turn(_claim(second_node, begun)),
        )
        assert [each for each in late if isinstance(each, TurnBegun | HoldfastError)] == []
        turn = await store.turn(OWNER, begun.turn.id)
        assert (turn.status, turn.attempt, turn.recovery.all_tries) == (TurnStatus.COMPLETED, 2, 2)
        said = [
            each for each in await messages(store, begun.turn.conversation_id) if each.role == "assistant"
        ]
        assert len(said) == 1


async def test_a_waiting_turn_that_is_cancelled_stays_cancelled(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for number in range(ROUNDS):
        begun = await _waiting(store, second_store)
        cancel = store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "stop")
        claim = second_store.begin_turn(_claim(second_node, begun))
        both = (cancel, claim) if number % 2 else (claim, cancel)
        outcomes = await race(*both)
        assert True in outcomes
        taken = [outcome for outcome in outcomes if isinstance(outcome, TurnBegun)]
        for each in taken:
            with pytest.raises(LeaseLost):
                await second_store.commit_reply(each.lease, [to_message("late", "assistant")])
        turn = await store.turn(OWNER, begun.turn.id)
        assert (turn.status, turn.waits) == (TurnStatus.CANCELLED, False)
        assert turn.attempt == 1 + len(taken)


async def test_a_waiting_turn_is_given_up_or_taken_up_but_not_both(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for number in range(ROUNDS):
        begun = await _waiting(store, second_store)
        ends = store.give_up_turn(begun.turn.id, "Given up: enough.")
        claim = second_store.begin_turn(_claim(second_node, begun))
        outcomes = await race(*((ends, claim) if number % 2 else (claim, ends)))
        taken = [outcome for outcome in outcomes if isinstance(outcome, TurnBegun)]
        assert (True in outcomes) is not bool(taken)
        for each in taken:
            await second_store.commit_reply(each.lease, [to_message("hi", "assistant")])
        turn = await store.turn(OWNER, begun.turn.id)
        assert turn.status is (TurnStatus.COMPLETED if taken else TurnStatus.FAILED)


async def test_nothing_is_written_behind_a_turn_that_was_ended_by_others(
    store: Store, node: Node, second_store: Store
) -> None:
    for number in range(ROUNDS):
        begun = await begin(store, node, "kelp")
        lease = begun.lease
        writes = (
            store.append(lease, [to_message("tide", "assistant")]),
            store.append(lease, [to_message(calling("a"), "assistant")]),
            store.append_draft(lease, draft(0, "half")),
            store.commit_reply(lease, [to_message("whole", "assistant")]),
        )
        write, cancel = await race(
            writes[number % 4],
            second_store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "said stop"),
        )
        for unused in (each for place, each in enumerate(writes) if place != number % 4):
            unused.close()
        said = [message.content() for message in await messages(store, begun.session.conversation_id)]
        turn = await store.turn(OWNER, begun.turn.id)
        if isinstance(write, LeaseLost):
            assert cancel is True
            assert [message["content"] for message in said] == ["kelp"]
        elif number % 4 == 0:
            assert [message["content"] for message in said] == ["kelp", "tide"]
        elif number % 4 == 1:  # a call that was made is closed, never left open
            assert [message["role"] for message in said] == ["user", "assistant", "tool"]
        elif number % 4 == 2:  # a checkpoint that was taken is part of what is left
            assert [message["content"] for message in said] == ["kelp", "half"]
        else:
            assert cancel is False
            assert turn.status is TurnStatus.COMPLETED
        assert turn.status is not TurnStatus.RUNNING


async def test_a_session_is_reset_or_spoken_in_but_not_both(
    store: Store, node: Node, second_store: Store, clock: Any
) -> None:
    for number in range(ROUNDS):
        key = f"idle:{number}"
        before = (await say(store, node, key=key)).session
        clock.move(hours=3)
        outcome, _ = await race(
            store.begin_turn(request(node, "again", key=key)), second_store.reset_session(before.id)
        )
        assert isinstance(outcome, TurnBegun)
        old = await store.session(OWNER, before.id)
        assert (old.end_reason, outcome.session.id != before.id) == (EndReason.IDLE, True)
        told = [event for event in await all_events(store) if event.session_id == before.id]
        assert [event.type for event in told].count("session.reset") == 1
        await store.commit_reply(outcome.lease, [to_message("hi", "assistant")])
    assert len((await store.notices(OWNER, limit=100)).items) == ROUNDS


async def test_a_session_ends_once_and_only_while_nobody_speaks(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for number in range(ROUNDS):
        key = f"cli:{number}"
        session = (await say(store, node, key=key)).session
        ended, begun, resumed = await race(
            store.end_session(OWNER, session.id, "closed"),
            second_store.begin_turn(request(second_node, "again", key=key)),
            store.resume_session(OWNER, session.id, node.id),
        )
        assert ended is True or isinstance(ended, ConversationBusy)
        assert isinstance(begun, TurnBegun)
        assert isinstance(resumed, ConversationBusy) or resumed.conversation_id == session.conversation_id
        line = await store.line(OWNER, session.conversation_id)
        assert [each.ordinal for each in line] == list(range(1, len(line) + 1))


async def test_a_node_that_is_reaped_takes_no_lease_that_nobody_settles(
    store: Store, second_store: Store
) -> None:
    for number in range(ROUNDS):
        doomed = await new_node(store)
        (known,) = [each for each in await store.nodes() if each.id == doomed.id]
        begun, opened, reaped = await race(
            store.begin_turn(request(doomed, "kelp", key=f"a:{number}")),
            store.open_session(OWNER, Address(key=f"b:{number}"), doomed.id, attached=True),
            second_store.reap(doomed.id, known.beat, "its test said so"),
        )
        assert reaped is True
        assert isinstance(begun, TurnBegun | NodeReaped)
        await sweep(second_store)  # settles the node, or fails: something names it still
        if isinstance(begun, TurnBegun):
            assert (await store.turn(OWNER, begun.turn.id)).status is TurnStatus.INTERRUPTED
        if not isinstance(opened, NodeReaped):
            assert (await store.session(OWNER, opened.id)).end_reason == EndReason.REAPED


async def test_what_a_dead_node_left_is_settled_once(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for number in range(ROUNDS):
        doomed = await new_node(store)
        begun = await begin(store, doomed, "kelp", key=f"cli:{number}", attached=True)
        (known,) = [each for each in await store.nodes() if each.id == doomed.id]
        assert kinds(
            await race(*(by.reap(doomed.id, known.beat, "gone") for by in (store, second_store)))
        ) == ["bool", "bool"]
        conversation = begun.session.conversation_id
        settled = await race(
            store.settle_conversation(conversation),
            second_store.settle_conversation(conversation),
            second_store.begin_turn(request(second_node, "again", key=f"cli:{number}")),
        )
        assert settled.count(True) <= 1
        assert isinstance(settled[2], TurnBegun)
        told = [event.type for event in await all_events(store) if event.turn_id == begun.turn.id]
        assert told == ["turn.started", "turn.interrupted"]


async def test_notices_processes_and_deliveries_are_claimed_by_one(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = (await say(store, node)).session
    for number in range(40):
        await store.add_notice(OWNER, session.conversation_id, "note", f"notice {number}")
    sent: list[str] = []
    while True:
        claimed = await asyncio.gather(
            *(
                by.claim_notices(5, timedelta(minutes=1), timedelta(days=1))
                for by in (store, second_store, store, second_store)
            )
        )
        got = [notice.id for each in claimed for notice, _ in each.notices]
        if not got:
            break
        sent += got
    assert len(sent) == len(set(sent)) == 40


async def test_flushes_are_claimed_once_by_all_nodes_together(
    store: Store, node: Node, second_store: Store, second_node: Node, clock: Any
) -> None:
    sessions = []
    for number in range(8):
        await say(store, node, key=f"cli:{number}")
        sessions.append((await say(store, node, key=f"cli:{number}")).session)
        await store.end_session(OWNER, sessions[-1].id, "new")
    claimed = await asyncio.gather(
        *(
            by.claim_flushes(who.id, together=5, per_minute=100)
            for by, who in ((store, node), (second_store, second_node)) * 3
        )
    )
    taken = [flush.session_id for each in claimed for flush in each]
    assert len(taken) == len(set(taken)) == 5


async def test_a_flush_is_claimed_or_taken_over_by_who_resumes_but_not_both(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for number in range(ROUNDS):
        key = f"cli:{number}"
        await say(store, node, key=key)
        session = (await say(store, node, key=key)).session
        await store.end_session(OWNER, session.id, "new")
        claimed, resumed = await race(
            second_store.claim_flushes(second_node.id, together=100, per_minute=1000),
            store.resume_session(OWNER, session.id, node.id),
        )
        ours = [flush for flush in claimed if flush.session_id == session.id]
        state = (await store.flush(OWNER, session.id)).state.value
        assert state == ("running" if ours else "taken")
        assert not isinstance(resumed, HoldfastError)


async def test_a_conversation_is_deleted_whole_whatever_is_done_in_it(
    store: Store, node: Node, second_store: Store
) -> None:
    for number in range(ROUNDS):
        begun = await begin(store, node, "kelp", key=f"cli:{number}")
        conversation = begun.session.conversation_id
        other = (
            store.append(begun.lease, [to_message("tide", "assistant")]),
            store.commit_reply(begun.lease, [to_message("tide", "assistant")]),
            store.append_draft(begun.lease, draft(0, "half")),
            store.add_notice(OWNER, conversation, "note", "text"),
        )
        _, wrote = await race(second_store.delete_conversation(OWNER, conversation), other[number % 4])
        for unused in (each for place, each in enumerate(other) if place != number % 4):
            unused.close()
        assert not isinstance(wrote, HoldfastError) or isinstance(wrote, LeaseLost | NotFound | Conflict)
        told = [event.type for event in await all_events(store) if event.conversation_id == conversation]
        assert told == ["conversation.deleted"]
    assert await store.search(OWNER, "kelp") == await store.search(OWNER, "tide") == []


async def test_deleted_text_is_not_indexed_by_whoever_was_at_it(
    store: Store, node: Node, second_store: Store
) -> None:
    store.start_indexing()
    second_store.start_indexing()
    begun = await begin(store, node, "kelp 0")
    conversation = begun.session.conversation_id
    for number in range(1, 60):
        await store.append(begun.lease, [to_message(f"kelp {number}", "assistant")])
        await race(
            second_store.delete_message(OWNER, conversation, number),
            second_store.search(OWNER, f'"kelp {number - 1}"'),
        )
        assert await store.search(OWNER, f'"kelp {number - 1}"') == []
    assert [hit.message.seq for hit in await second_store.search(OWNER, "kelp")] == [60]


@pytest.mark.parametrize("writers", [4])
async def test_who_follows_the_events_of_many_writers_misses_none(
    store: Store, node: Node, second_store: Store, second_node: Node, writers: int
) -> None:
    done = asyncio.Event()

    async def speak(by: Store, who: Node, name: str) -> None:
        for _ in range(10):
            await say(by, who, key=f"cli:{name}")

    async def follow(by: Store) -> list[int]:
        seen: list[int] = []
        while True:
            last = done.is_set()
            bounds = await by.event_bounds()
            page = await by.events(owner=None, after=seen[-1] if seen else 0)
            assert not seen or not page or page[0].id > seen[-1]
            seen += [event.id for event in page]
            assert not seen or bounds[1] <= seen[-1]  # none up to the newest appeared only later
            if last and not page:
                return seen

    following = [asyncio.create_task(follow(by)) for by in (store, second_store)]
    await asyncio.gather(
        *(
            speak(by, who, f"{which} {number}")
            for which, (by, who) in enumerate([(store, node), (second_store, second_node)])
            for number in range(writers)
        )
    )
    done.set()
    told = [event.id for event in await all_events(store)]
    assert [await each for each in following] == [told, told]


async def test_numbers_stay_gap_free_while_many_speak_in_one_conversation(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    async def speak(by: Store, who: Node, name: str) -> int:
        spoken = 0
        while spoken < 5:
            version = by.version()
            outcome = await by.begin_turn(request(who, f"{name} {spoken}", key="cli:ada"))
            if isinstance(outcome, TurnWaits):
                await by.changed(version, 0.5)
                continue
            assert isinstance(outcome, TurnBegun)
            await by.append(outcome.lease, [to_message("a", "assistant"), to_message("b", "assistant")])
            await by.commit_reply(outcome.lease, [to_message("c", "assistant")])
            spoken += 1
        return spoken

    await asyncio.gather(
        *(speak(by, who, f"{who.id}") for by, who in ((store, node), (second_store, second_node)) * 2)
    )
    place = await store.resolve(OWNER, Address(key="cli:ada"))
    said = await contents(store, place.conversation.id)
    assert len(said) == place.conversation.last_seq == 80
    assert all(said[start + 1 : start + 4] == ["a", "b", "c"] for start in range(0, 80, 4))
