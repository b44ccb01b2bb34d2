"""Leases and their fencing tokens: a late writer has written nothing."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.domain.conversations import Address
from holdfast.domain.nodes import Node
from holdfast.domain.turns import Lease, TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import LeaseLost
from holdfast.store.store import Store
from tests.contract.steps import (
    OWNER,
    begin,
    contents,
    context_of,
    draft,
    messages,
    new_node,
    reap,
    request,
    say,
    to_message,
    unchanged,
)

Writing = Callable[[Store, Lease], Awaitable[object]]

WRITINGS: dict[str, Writing] = {
    "append": lambda store, lease: store.append(lease, [to_message("late", "assistant")]),
    "append nothing": lambda store, lease: store.append(lease, []),
    "append_draft": lambda store, lease: store.append_draft(lease, draft(7, "late")),
    "commit_reply": lambda store, lease: store.commit_reply(lease, [to_message("late", "assistant")]),
    "settle_turn": lambda store, lease: store.settle_turn(
        lease, TurnFailure(TurnStatus.FAILED, (to_message("late", "assistant"),))
    ),
}


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_late_holder_cannot_write_after_takeover(
    store: Store, node: Node, second_store: Store, second_node: Node, writing: str
) -> None:
    late = await begin(store, node, "first")
    await reap(second_store, node)
    taken = await begin(second_store, second_node, "second", id=late.session.id)
    async with unchanged(second_store):
        with pytest.raises(LeaseLost) as lost:
            await WRITINGS[writing](store, late.lease)
    assert (lost.value.conversation_id, lost.value.token) == (late.lease.conversation_id, late.lease.token)
    await second_store.commit_reply(taken.lease, [to_message("answer", "assistant")])
    assert await contents(store, late.session.conversation_id) == ["first", "second", "answer"]


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_reaped_holder_cannot_write_once_its_turn_is_settled(
    store: Store, node: Node, second_store: Store, writing: str
) -> None:
    late = await begin(store, node)
    await reap(second_store, node)
    assert await second_store.settle_conversation(late.session.conversation_id)
    async with unchanged(second_store):
        with pytest.raises(LeaseLost):
            await WRITINGS[writing](store, late.lease)


@pytest.mark.parametrize("writing", WRITINGS)
async def test_a_lease_is_its_nodes_alone(store: Store, node: Node, writing: str) -> None:
    begun = await begin(store, node)
    other = await new_node(store)
    lease = begun.lease
    forged = [
        Lease(lease.conversation_id, lease.session_id, lease.turn_id, other.id, lease.token),
        Lease(lease.conversation_id, lease.session_id, lease.turn_id, node.id, lease.token + 1),
        Lease(lease.conversation_id, lease.session_id, lease.turn_id, node.id, lease.token - 1),
    ]
    async with unchanged(store):
        for wrong in forged:
            with pytest.raises(LeaseLost):
                await WRITINGS[writing](store, wrong)
    await store.commit_reply(lease)


@pytest.mark.parametrize("writing", WRITINGS)
async def test_an_earlier_turns_lease_does_not_serve_the_same_nodes_next(
    store: Store, node: Node, writing: str
) -> None:
    earlier = await say(store, node)
    running = await begin(store, node, id=earlier.session.id)
    async with unchanged(store):
        with pytest.raises(LeaseLost):
            await WRITINGS[writing](store, earlier.lease)
    await store.commit_reply(running.lease)


async def test_tokens_rise_and_are_never_handed_out_twice(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    tokens = []
    for number in range(6):
        by, who = (store, node) if number % 2 else (second_store, second_node)
        begun = await begin(by, who, key="cli:ada")
        tokens.append(begun.lease.token)
        if number % 3 == 0:
            await by.commit_reply(begun.lease)
        elif number % 3 == 1:
            await by.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED))
        else:
            await store.cancel_turn(OWNER, begun.turn.id, TurnStatus.CANCELLED, "stop")
    await begin(second_store, second_node, key="cli:ada")
    await reap(store, second_node)
    tokens.append((await begin(store, node, key="cli:ada")).lease.token)
    assert tokens == sorted(set(tokens))
    assert (await store.resolve(OWNER, Address(key="cli:ada"))).conversation.token == tokens[-1]


async def test_a_holder_that_was_reaped_but_not_settled_is_taken_over_at_once(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    late = await begin(store, node, "first")
    await store.append_draft(late.lease, draft(0, "I was"))
    await reap(second_store, node)
    taken = await begin(second_store, second_node, "second", id=late.session.id)
    assert (await store.turn(OWNER, late.turn.id)).status is TurnStatus.INTERRUPTED
    assert taken.session.id == late.session.id
    assert await contents(store, late.session.conversation_id) == ["first", "I was", "second"]


async def test_a_holder_that_still_beats_is_never_taken_over(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    begun = await begin(store, node)
    (known,) = [known for known in await second_store.nodes() if known.id == node.id]
    await store.beat(node.id)
    assert not await second_store.reap(node.id, known.beat, "it looked dead")
    assert not await second_store.settle_conversation(begun.session.conversation_id)
    assert not isinstance(await second_store.begin_turn(request(second_node, id=begun.session.id)), TurnBegun)
    await store.commit_reply(begun.lease)


async def test_two_stores_on_one_conversation_take_turns(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = (await say(store, node, "0", "0!")).session

    async def speak(by: Store, who: Node, name: str) -> None:
        for number in range(5):
            said = f"{name}{number}"
            while True:
                since = by.version()
                outcome = await by.begin_turn(request(who, said, id=session.id))
                if isinstance(outcome, TurnBegun):
                    break
                await by.changed(since, 5)
            context = await context_of(by, session.id)
            assert context[-1] == said
            await by.append(outcome.lease, [to_message(f"{said}?", "assistant")])
            await by.commit_reply(outcome.lease, [to_message(f"{said}!", "assistant")])

    async with asyncio.timeout(60):
        await asyncio.gather(speak(store, node, "a"), speak(second_store, second_node, "b"))
    told = await contents(store, session.conversation_id)
    assert len(told) == 2 + 2 * 5 * 3
    for start in range(2, len(told), 3):
        said = told[start]
        assert told[start : start + 3] == [said, f"{said}?", f"{said}!"]
    assert [m.seq for m in await messages(store, session.conversation_id)] == list(range(1, len(told) + 1))


async def test_many_appends_at_once_keep_their_order_and_leave_no_gap(store: Store, node: Node) -> None:
    begun = await begin(store, node, "0")
    numbers = await asyncio.gather(
        *(store.append(begun.lease, [to_message(str(n), "assistant")]) for n in range(1, 41))
    )
    assert numbers == list(range(2, 42))
    assert await contents(store, begun.session.conversation_id) == [str(n) for n in range(41)]
