"""Nodes: join, heartbeat, leave; and what is released when one is found dead."""

import asyncio
from dataclasses import replace

import pytest

from holdfast.domain.contexts import OUTCOME_UNKNOWN
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.messages import MessageStatus
from holdfast.domain.nodes import Liveness, Node, NodeKind
from holdfast.domain.pages import why_gone
from holdfast.domain.sessions import Edge
from holdfast.domain.turns import TurnStatus
from holdfast.errors import BadInput, HoldfastError, NodeReaped
from holdfast.os_support import identity
from holdfast.store.store import Store
from holdfast.store.transaction import Q, Transaction
from tests.contract.steps import (
    OWNER,
    Clock,
    all_events,
    begin,
    calling,
    context_of,
    draft,
    messages,
    new_node,
    reap,
    result,
    say,
    sweep,
    to_message,
    unchanged,
)


async def known(store: Store, node: Node) -> Node:
    (found,) = [other for other in await store.nodes(gone=True) if other.id == node.id]
    return found


async def test_a_joined_node_is_known_to_everyone(store: Store, second_store: Store, clock: Clock) -> None:
    node = Node(new_id("node"), NodeKind.SERVER, identity(), version="1.2.3")
    await store.join(node)
    (found,) = await second_store.nodes()
    assert found == replace(node, beat=0, started_at=clock.now, heartbeat_at=clock.now)
    assert not found.gone


async def test_a_reaped_node_keeps_the_evidence_and_one_that_left_has_none(store: Store, node: Node) -> None:
    other = await new_node(store)
    assert await store.reap(node.id, node.beat, "no heartbeat for 90 s")
    await store.leave(other.id, "closed")
    assert why_gone(await known(store, node)) == "reaped: no heartbeat for 90 s"
    assert why_gone(await known(store, other)) == "left cleanly"
    assert (await known(store, other)).reaped_why == ""


async def test_running_turns_are_counted_by_node(store: Store, node: Node) -> None:
    other = await new_node(store)
    first = await begin(store, node)
    await begin(store, node)
    await begin(store, other)
    await new_node(store)
    assert await store.turns_by_node() == {node.id: 2, other.id: 1}
    await store.commit_reply(first.lease)
    assert await store.turns_by_node() == {node.id: 1, other.id: 1}


async def test_the_lock_of_a_replaced_incarnation_is_released(store: Store, node: Node) -> None:
    assert await store.reap(node.id, node.beat, "it hung")
    assert (await store.probe([node]))[node.id][0] is Liveness.ALIVE, "this process still holds its lock"
    again = Node(new_id("node"), node.kind, identity())
    await store.join(again, replaces=node.id)
    assert (await store.probe([again]))[again.id][0] is Liveness.ALIVE
    async with asyncio.timeout(60):
        while (found := (await store.probe([node]))[node.id])[0] is Liveness.ALIVE:
            assert found[1]
            await asyncio.sleep(0.05)


async def test_a_lock_is_kept_while_its_successor_cannot_join(
    store: Store, node: Node, second_node: Node
) -> None:
    with pytest.raises(HoldfastError):
        await store.join(second_node, replaces=node.id)
    assert (await store.probe([node]))[node.id][0] is Liveness.ALIVE


@pytest.mark.timeout(3, method="signal")
async def test_a_node_id_joins_once(store: Store, node: Node) -> None:
    """An incarnation's id is never used again; saying so must not take for ever."""
    async with unchanged(store):
        with pytest.raises(HoldfastError):
            await store.join(node)


async def test_a_beat_moves_the_counter_and_the_time_and_nothing_else(
    store: Store, node: Node, clock: Clock
) -> None:
    session = await store.session(OWNER, (await say(store, node, attached=True)).session.id)
    at = clock.move(seconds=15)
    assert (await store.beat(node.id)).leases == {}
    found = await known(store, node)
    assert (found.beat, found.heartbeat_at) == (1, at)
    after = await store.session(OWNER, session.id)
    assert after.last_heartbeat_at == at
    assert replace(after, last_heartbeat_at=None) == replace(session, last_heartbeat_at=None)


async def test_a_beat_tells_what_the_node_holds(store: Store, node: Node) -> None:
    first, second = await begin(store, node), await begin(store, node)
    await begin(store, await new_node(store))
    held = await store.beat(node.id)
    assert held.leases == {
        first.session.conversation_id: first.turn.id,
        second.session.conversation_id: second.turn.id,
    }
    await store.commit_reply(first.lease)
    assert (await store.beat(node.id)).leases == {second.session.conversation_id: second.turn.id}


@pytest.mark.parametrize("how", ["reaped", "left", "never joined"])
async def test_a_beat_of_a_node_that_is_gone_says_so(store: Store, how: str) -> None:
    node = Node(new_id("node"), NodeKind.LIBRARY, identity())
    if how != "never joined":
        await store.join(node)
    if how == "reaped":
        await reap(store, node)
    if how == "left":
        await store.leave(node.id, "closed")
    async with unchanged(store):
        with pytest.raises(NodeReaped) as gone:
            await store.beat(node.id)
    assert gone.value.node_id == node.id


async def test_a_node_that_leaves_brings_everything_to_rest(store: Store, node: Node, clock: Clock) -> None:
    attached = (await say(store, node, attached=True)).session
    running = await begin(store, node, attached=True)
    await store.append_draft(running.lease, draft(0, "I was"))
    detached = await begin(store, node)
    other = await new_node(store)
    others = (await say(store, other, attached=True)).session
    at = clock.move(seconds=5)
    await store.leave(node.id, "completed")

    assert (await known(store, node)).left_at == at
    assert [present.id for present in await store.nodes()] == [other.id]
    assert (await store.session(OWNER, attached.id)).end_reason == "completed"
    assert (await store.session(OWNER, running.session.id)).end_reason == "completed"
    for begun in (running, detached):
        assert (await store.turn(OWNER, begun.turn.id)).status is TurnStatus.INTERRUPTED
        assert (await store.resolve(OWNER, Address(id=begun.session.id))).conversation.holder is None
    assert (await messages(store, running.session.conversation_id))[-1].status is MessageStatus.INTERRUPTED
    assert not (await store.session(OWNER, detached.session.id)).ended
    assert not (await store.session(OWNER, others.id)).ended
    left = await store.leftovers()
    assert (left.nodes, left.conversations, left.sessions) == ([], [], [])


async def test_leaving_twice_changes_nothing(store: Store, node: Node) -> None:
    await store.leave(node.id, "closed")
    async with unchanged(store):
        await store.leave(node.id, "closed")
        await store.leave(new_id("node"), "closed")


async def test_leaving_with_an_unknown_reason_is_refused_and_the_node_lives_on(
    store: Store, node: Node
) -> None:
    await say(store, node, attached=True)
    running = await begin(store, node)
    async with unchanged(store):
        with pytest.raises(BadInput):
            await store.leave(node.id, "because")
    assert (await store.probe([node]))[node.id][0] is Liveness.ALIVE
    await store.beat(node.id)
    await store.commit_reply(running.lease)


# --- alive or dead ---------------------------------------------------------------------------------


async def test_a_node_of_a_living_process_is_alive_for_everyone(
    store: Store, node: Node, second_store: Store
) -> None:
    for by in (store, second_store):
        liveness, why = (await by.probe([node]))[node.id]
        assert liveness is Liveness.ALIVE
        assert why


async def test_a_node_whose_process_is_gone_without_a_word_is_dead(
    store: Store, second_store: Store, second_node: Node
) -> None:
    """A file's lock says so at once; one that hangs on a connection after a while, since those can be cut."""
    await second_store.close()
    async with asyncio.timeout(60):
        while (found := (await store.probe(await store.nodes()))[second_node.id])[0] is not Liveness.DEAD:
            assert found[0] is Liveness.UNKNOWN
            await asyncio.sleep(0.05)
    assert found[1]


async def test_what_cannot_be_told_is_unknown_not_dead(store: Store) -> None:
    elsewhere = replace(
        identity(), host="elsewhere", boot_id="another", pid_ns="another", pid=1, machine="another"
    )
    node = Node(new_id("node"), NodeKind.SERVER, elsewhere)
    assert (await store.probe([node]))[node.id][0] is Liveness.UNKNOWN
    assert await store.probe([]) == {}


# --- reaping ---------------------------------------------------------------------------------------


async def test_reaping_is_guarded_by_the_beat_that_was_seen(
    store: Store, node: Node, second_store: Store, clock: Clock
) -> None:
    seen = await known(second_store, node)
    await store.beat(node.id)
    async with unchanged(store):
        assert not await second_store.reap(node.id, seen.beat, "it looked dead")
    at = clock.move(seconds=1)
    assert await second_store.reap(node.id, seen.beat + 1, "it is dead")
    assert (await known(store, node)).reaped_at == at
    assert node.id not in [present.id for present in await store.nodes()]
    async with unchanged(store):
        assert not await second_store.reap(node.id, seen.beat + 1, "it is dead")
        assert not await second_store.reap(new_id("node"), 0, "never was")


async def test_a_node_that_left_is_not_reaped(store: Store, node: Node) -> None:
    await store.leave(node.id, "closed")
    async with unchanged(store):
        assert not await store.reap(node.id, 0, "it is dead")


async def test_what_a_dead_node_left_is_found_and_settled_once(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    idle = (await say(second_store, second_node, attached=True)).session
    running = await begin(second_store, second_node, attached=True)
    detached = await begin(second_store, second_node)
    free = (await say(second_store, second_node)).session
    mine = await begin(store, node, attached=True)

    left = await store.leftovers()
    assert (left.nodes, left.conversations, left.sessions) == ([], [], [])
    await reap(store, second_node)
    left = await store.leftovers()
    assert left.nodes == [second_node.id]
    assert set(left.conversations) == {running.session.conversation_id, detached.session.conversation_id}
    assert set(left.sessions) == {idle.id, running.session.id}

    assert not await store.settle_node(second_node.id)
    for conversation_id in left.conversations:
        assert await store.settle_conversation(conversation_id)
    for session_id in left.sessions:
        assert await store.reap_session(session_id)
    assert await store.settle_node(second_node.id)
    async with unchanged(store):
        for conversation_id in left.conversations:
            assert not await store.settle_conversation(conversation_id)
        for session_id in left.sessions:
            assert not await store.reap_session(session_id)
    after = await store.leftovers()
    assert (after.nodes, after.conversations, after.sessions) == ([], [], [])

    for begun in (running, detached):
        assert (await store.turn(OWNER, begun.turn.id)).status is TurnStatus.INTERRUPTED
        conversation = (await store.resolve(OWNER, Address(id=begun.session.id))).conversation
        assert conversation.holder is None
        assert conversation.token > begun.lease.token
    for session_id in (idle.id, running.session.id):
        assert (await store.session(OWNER, session_id)).end_reason == "reaped"
    for session_id in (detached.session.id, free.id, mine.session.id):
        assert not (await store.session(OWNER, session_id)).ended
    await store.commit_reply(mine.lease)


async def test_leftovers_tell_of_named_nodes_too(store: Store, node: Node) -> None:
    begun = await begin(store, node, attached=True)
    left = await store.leftovers(also=[node.id])
    assert (left.nodes, left.conversations, left.sessions) == (
        [node.id],
        [begun.session.conversation_id],
        [begun.session.id],
    )


async def test_what_a_living_node_holds_is_not_settled(store: Store, node: Node, second_store: Store) -> None:
    begun = await begin(store, node, attached=True)
    async with unchanged(store):
        assert not await second_store.settle_conversation(begun.session.conversation_id)
        assert not await second_store.reap_session(begun.session.id)
        assert not await second_store.settle_node(node.id)
    await store.commit_reply(begun.lease)
    assert not await second_store.reap_session(begun.session.id)


async def test_settling_what_does_not_exist_is_nothing_to_do(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    await store.delete_conversation(OWNER, session.conversation_id)
    async with unchanged(store):
        assert not await store.settle_conversation(session.conversation_id)
        assert not await store.reap_session(session.id)
        assert not await store.settle_node(new_id("node"))


async def test_a_reaper_killed_half_way_is_followed_by_the_next(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    for _ in range(3):
        await begin(second_store, second_node, attached=True)
    await reap(store, second_node)
    await store.settle_conversation((await store.leftovers()).conversations[0])
    await sweep(store)
    left = await store.leftovers()
    assert (left.nodes, left.conversations, left.sessions) == ([], [], [])


async def test_reaping_never_counts_as_activity(
    store: Store, second_store: Store, second_node: Node, clock: Clock
) -> None:
    begun = await begin(second_store, second_node, attached=True)
    await second_store.append_draft(begun.lease, draft(0, "I was"))
    before = (await store.session(OWNER, begun.session.id)).last_activity_at
    clock.move(hours=30)
    await reap(store, second_node)
    await sweep(store)
    after = await store.session(OWNER, begun.session.id)
    assert after.ended_at == clock.now
    assert after.last_activity_at == before


async def test_open_calls_of_a_dead_node_are_closed_as_outcome_unknown(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    begun = await begin(second_store, second_node, "look")
    await second_store.append(begun.lease, [to_message(calling("a", "b")), to_message(result("b"))])
    await second_store.append_draft(begun.lease, draft(0, "Meanwhile"))
    await reap(store, second_node)
    await sweep(store)
    stored = [message.content() for message in await messages(store, begun.session.conversation_id)]
    assert stored[2:] == [
        result("b"),
        result("a", OUTCOME_UNKNOWN),
        {"role": "assistant", "content": "Meanwhile"},
    ]
    assert (await store.context(OWNER, begun.session.id)).awaited == ()
    assert (await begin(store, node, "go on", id=begun.session.id)).session.id == begun.session.id


async def test_a_reaped_session_goes_on_with_the_next_message(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    before = (await say(second_store, second_node, key="cli:ada", attached=True)).session
    await reap(store, second_node)
    await sweep(store)
    after = (await say(store, node, "back", "welcome", key="cli:ada")).session
    assert (after.edge, after.parent_id) == (Edge.RESUME, before.id)
    assert await context_of(store, after.id) == ["hello", "hi", "back", "welcome"]


@pytest.mark.parametrize("verb", ["begin_turn", "open_session"])
async def test_what_a_gone_node_left_counts_as_ended_before_any_sweep(
    store: Store, node: Node, second_store: Store, second_node: Node, verb: str
) -> None:
    before = await begin(second_store, second_node, key="cli:ada", attached=True)
    await second_store.append_draft(before.lease, draft(0, "I was"))
    await reap(store, second_node)
    if verb == "begin_turn":
        after = (await begin(store, node, key="cli:ada")).session
    else:
        after = await store.open_session(OWNER, Address(key="cli:ada"), node.id)
    assert (after.edge, after.parent_id) == (Edge.RESUME, before.session.id)
    assert (await store.session(OWNER, before.session.id)).end_reason == "reaped"
    assert (await store.turn(OWNER, before.turn.id)).status is TurnStatus.INTERRUPTED
    await sweep(store)
    assert not (await store.session(OWNER, after.id)).ended


async def test_a_node_that_was_taken_for_dead_goes_on_as_a_new_incarnation(
    store: Store, node: Node, second_store: Store
) -> None:
    """`holdfast chat` stopped with Ctrl-Z overnight: reaped, then simply continued."""
    session = (await say(store, node, key="cli:ada", attached=True)).session
    await reap(second_store, node)
    await sweep(second_store)
    with pytest.raises(NodeReaped):
        await store.beat(node.id)
    anew = await new_node(store)
    after = (await say(store, anew, "still there?", key="cli:ada", attached=True)).session
    assert (after.parent_id, after.node_id) == (session.id, anew.id)


# --- attached and detached -------------------------------------------------------------------------


async def test_another_nodes_turn_detaches_a_session(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    session = (await say(store, node, key="cli:ada", attached=True)).session
    begun = await begin(second_store, second_node, key="cli:ada", attached=True)
    assert begun.session.id == session.id
    assert (begun.session.attached, begun.session.node_id) == (False, None)
    await second_store.commit_reply(begun.lease)
    (event,) = [event for event in await all_events(store) if event.type == "session.detached"]
    assert event.session_id == session.id
    await reap(second_store, node)
    await sweep(second_store)
    assert not (await second_store.session(OWNER, session.id)).ended


async def test_a_nodes_own_turns_leave_its_session_attached(store: Store, node: Node) -> None:
    session = (await say(store, node, key="cli:ada", attached=True)).session
    again = await say(store, node, key="cli:ada")
    assert again.session.id == session.id
    assert (await store.session(OWNER, session.id)).node_id == node.id


async def test_looking_at_a_session_does_not_detach_it(store: Store, node: Node, second_store: Store) -> None:
    session = (await say(store, node, key="cli:ada", attached=True)).session
    other = await new_node(second_store)
    opened = await second_store.open_session(OWNER, Address(key="cli:ada"), other.id)
    assert (opened.id, opened.attached, opened.node_id) == (session.id, True, node.id)


async def test_the_doctor_finds_a_message_that_was_written_after_its_session_ended(
    store: Store, node: Node
) -> None:
    begun = await begin(store, node)

    def end_it(tx: Transaction) -> int:
        return tx.run(Q.end_session, id=begun.session.id, reason="closed", now=tx.now)

    assert await store._write(end_it) == 1
    assert await store.check() == []
    await store.commit_reply(begun.lease, [to_message("too late", "assistant")])
    (found,) = await store.check()
    assert "after its last" in found.invariant and found.examples == [begun.session.id]
    assert await store.delete_conversation(None, begun.session.conversation_id) == 2
