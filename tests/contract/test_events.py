"""Events: everything that happened, in order, and never message text."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import msgspec
from msgspec import Raw

from holdfast.domain.api_keys import Scope, new_key
from holdfast.domain.compaction import Claim, CompactionFailure, CompactionStats, Trigger
from holdfast.domain.connectors import ConnectorClaim, Incoming
from holdfast.domain.conversations import Address
from holdfast.domain.drafts import Draft
from holdfast.domain.events import EVENT_MEANINGS, Event
from holdfast.domain.nodes import Node
from holdfast.domain.processes import ProcessState
from holdfast.domain.recovery import Cause, Origin, RequestToStore
from holdfast.domain.request_keys import RequestKey
from holdfast.domain.turns import TurnFailure, TurnStatus
from holdfast.domain.views import Range, Summary, View
from holdfast.os_support import identity
from holdfast.store.store import Store
from tests.contract.steps import (
    OTHER,
    OWNER,
    Clock,
    all_events,
    begin,
    calling,
    draft,
    ended,
    new_node,
    reap,
    request,
    result,
    say,
    sweep,
    to_message,
)
from tests.contract.test_importing import part, session
from tests.contract.test_importing import said as was_said
from tests.contract.test_processes import add as add_process

CANARY = "heliotrope"


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


async def test_a_turn_leaves_its_events_in_the_order_they_happened(
    store: Store, node: Node, clock: Clock
) -> None:
    begun = await begin(store, node, key="telegram:dm:42")
    at = clock.move(seconds=1)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    session = begun.session
    told = await store.events(owner=OWNER)
    assert types(told) == ["conversation.opened", "session.opened", "turn.started", "turn.completed"]
    opened, began, started, completed = told
    assert opened.data == {"key": "telegram:dm:42", "source": "telegram"}
    assert began.data == {
        "edge": None,
        "parent": None,
        "attached": False,
        "source": "telegram",
        "reset": None,
    }
    assert started.data == {"seq": 1, "node": node.id}
    assert completed.data == {"seq": 2}
    assert completed.at == at
    assert {event.conversation_id for event in told} == {session.conversation_id}
    assert [event.session_id for event in told] == [None, session.id, session.id, session.id]
    assert [event.turn_id for event in told] == [None, None, begun.turn.id, begun.turn.id]


async def test_nodes_leave_events_that_are_nobodys(store: Store, node: Node) -> None:
    second = await new_node(store)
    await store.leave(second.id, "closed")
    third = await new_node(store)
    await reap(store, third)
    told = await store.events(owner=None)
    assert types(told) == ["node.joined", "node.joined", "node.left", "node.joined", "node.reaped"]
    assert told[0].data == {
        "node": node.id,
        "kind": "library",
        "host": node.identity.host,
        "pid": node.identity.pid,
    }
    assert told[2].data == {"node": second.id}
    assert told[4].data == {"node": third.id, "why": "its test said so"}
    assert await store.events(owner=OWNER) == []


async def test_events_are_read_from_a_cursor_without_gap_or_repetition(store: Store, node: Node) -> None:
    for _ in range(5):
        await say(store, node)
    whole = await all_events(store)
    assert [event.id for event in whole] == sorted({event.id for event in whole})
    for limit in (1, 3, 7, 100):
        told: list[Event] = []
        while page := await store.events(owner=None, after=told[-1].id if told else 0, limit=limit):
            assert len(page) <= limit
            told += page
        assert told == whole
    assert await store.events(owner=None, after=whole[-1].id) == []


async def test_events_are_their_owners(store: Store, node: Node) -> None:
    mine = (await say(store, node)).session.conversation_id
    theirs = (await say(store, node, owner=OTHER)).session.conversation_id
    assert {event.conversation_id for event in await store.events(owner=OWNER)} == {mine}
    assert {event.conversation_id for event in await store.events(owner=OTHER)} == {theirs}
    assert await store.events(owner=OWNER, conversation_id=theirs) == []
    assert len(await store.events(owner=OTHER, conversation_id=theirs)) == 4
    assert len(await store.events(owner=None, conversation_id=theirs)) == 4


async def test_a_conversations_events_have_a_cursor_too(store: Store, node: Node) -> None:
    session = (await say(store, node)).session
    await say(store, node)
    whole = await store.events(owner=OWNER, conversation_id=session.conversation_id)
    assert len(whole) == 4
    rest = await store.events(
        owner=OWNER, conversation_id=session.conversation_id, after=whole[1].id, limit=1
    )
    assert rest == whole[2:3]


async def test_a_reader_that_follows_misses_nothing_of_many_writers(
    store: Store, node: Node, second_store: Store, second_node: Node
) -> None:
    async def speak(by: Store, who: Node) -> None:
        for _ in range(10):
            await say(by, who)

    async def follow() -> list[Event]:
        told: list[Event] = []
        while len(told) < 2 + 20 * 4:
            since = store.version()
            page = await store.events(owner=None, after=told[-1].id if told else 0, limit=9)
            told += page
            if not page:
                await store.changed(since, 5)
        return told

    async with asyncio.timeout(60):
        told, _, _ = await asyncio.gather(follow(), speak(store, node), speak(second_store, second_node))
    assert told == await all_events(store)


async def test_what_was_deleted_leaves_no_gap_in_the_order(store: Store, node: Node) -> None:
    first = (await say(store, node)).session
    last = (await all_events(store))[-1].id
    await store.delete_conversation(OWNER, first.conversation_id)
    told = await store.events(owner=None, after=last)
    assert types(told) == ["conversation.deleted"]
    assert told[0].id > last


async def connected(store: Store, node: Node) -> None:
    """A person is paired, linked and refused again, and a reply to them is given up and retried."""
    claim = await store.claim_connector("phone", "telegram", node.id)
    assert isinstance(claim, ConnectorClaim)
    wrote = Incoming("1", "dm:42", "telegram:dm:42", "42", CANARY)
    assert await store.ask_pairing("phone", wrote, CANARY)
    pairing = await store.approve_pairing(CANARY, OWNER, greeting=CANARY)
    assert (await store.receive("phone", [wrote], [], claimed=claim)).stored == 1
    (out,) = await store.claim_deliveries(claim)
    assert await store.delivery_failed(claim, out.id, 1, CANARY, for_good=True)
    await store.retry_delivery(None, out.id)
    (place,) = await store.places_of(OWNER)
    chat = await say(store, node, CANARY, CANARY, key="linked")
    await store.new_link(OWNER, chat.session.conversation_id, CANARY)
    assert await store.link_place(place.id, CANARY, hears_all=True)
    assert await store.unlink_place(place.id)
    await store.revoke_pairing(pairing.id)


async def test_no_event_holds_what_was_said(
    store: Store, node: Node, second_store: Store, second_node: Node, clock: Clock
) -> None:
    """Everything that can happen does, with a canary in every message; no event may sing of it."""
    key = RequestKey("/r", "k", b"h")
    begun = await begin(store, node, CANARY, key="cli:ada", request_key=key, attached=True)
    await store.append(begun.lease, [to_message(calling("a", content=CANARY))])
    await store.append(begun.lease, [to_message(result("a", CANARY))])
    await store.append_draft(begun.lease, Draft(0, 1, CANARY.encode(), {"content": CANARY}))
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.INTERRUPTED, error="it stopped"))
    again = await begin(second_store, second_node, CANARY, key="cli:ada", request_key=key)
    await second_store.commit_reply(again.lease, [to_message(CANARY, "assistant")])
    conversation = again.session.conversation_id
    for status in (TurnStatus.FAILED, TurnStatus.CANCELLED):
        more = await begin(store, node, CANARY, key="cli:ada")
        await store.append_draft(more.lease, draft(0, CANARY))
        assert await store.cancel_turn(OWNER, more.turn.id, status, "somebody said stop")
    waiting = await begin(store, node, CANARY, key="waiting", stored=RequestToStore(CANARY.encode()))
    refused = TurnFailure(TurnStatus.FAILED, error=CANARY, cause=Cause.MODEL)
    await store.settle_turn(waiting.lease, refused)
    assert await store.give_up_turn(waiting.turn.id, "Given up.")
    await store.exclude(OWNER, conversation, [1], "wrong")
    await store.delete_message(OWNER, conversation, 2)
    made = await store.create_conversation(
        OWNER, node.id, messages=[to_message(calling("a", content=CANARY))], metadata={CANARY: CANARY}
    )
    await store.reduce_message(OWNER, made.id, 1, to_message(calling("a")))
    assert await store.remove_last(OWNER, made.id, 1)
    busy = await begin(store, node, CANARY, key="busy")
    for steers in (False, True):
        wanted = replace(
            request(node, CANARY, key="busy"), stored=RequestToStore(b"{}", Origin.QUEUED, recover=True)
        )
        waits = await store.enqueue_turn(wanted, most=2, steers=steers)
        assert waits is not None
        await store.edit_queued(OWNER, waits.turn.id, [to_message(CANARY)])
    await store.take_steering(busy.lease)
    await store.withdraw_queue(OWNER, busy.session.conversation_id, "enough")
    await store.commit_reply(busy.lease, [to_message(CANARY, "assistant")])
    await store.rewind(OWNER, conversation, 3)
    fork = await store.fork(OWNER, again.session.id, node.id)
    await store.end_session(OWNER, again.session.id, "new")
    await store.resume_session(OWNER, again.session.id, node.id)
    dropped = await ended(store, node, "completed", key="dropped")
    await store.delete_conversation(OWNER, dropped.conversation_id)
    attached = await begin(second_store, second_node, CANARY, key="attached", attached=True)
    await second_store.append_draft(attached.lease, draft(0, CANARY))
    await reap(store, second_node)
    await sweep(store)
    await store.open_session(OWNER, Address(id=attached.session.id), node.id)
    api_key, token = new_key(OWNER, Scope.CHAT, (), store.now())
    await store.add_key(api_key, token.hash)
    await store.revoke_key(api_key.id, OWNER)
    await store.note_reading(OWNER, api_key.id, again.session)
    await store.note_side_request(OWNER, again.session.conversation_id, "title", {"model": "m"})
    long = await begin(store, node, CANARY, key="long")
    await store.commit_reply(long.lease, [to_message(CANARY, "assistant")])
    for failure in (CompactionFailure.BUSY, CompactionFailure.SUMMARY_FAILED, None):
        claim = await store.claim_compaction(
            long.session.id, node.id, timedelta(1), why=Trigger.BY_HAND, tokens=9, window=9
        )
        assert isinstance(claim, Claim)
        if failure is not None:
            assert await store.give_up_compaction(claim, failure, Trigger.BY_HAND)
        else:
            view, facts = View((Summary(CANARY, 1, 2), Range(3))), CompactionStats(Trigger.BY_HAND, 9, 1, 2)
            await store.compact(claim, view, (await store.outline(None, long.session.id)).revision, facts)
    idle = await begin(store, node, CANARY, key="idle:1")
    await store.commit_reply(idle.lease, [to_message(calling("a", content=CANARY))])
    clock.move(hours=3)
    await store.reset_session(idle.session.id)  # the call is awaited
    clock.move(hours=2)
    await store.reset_session(idle.session.id)
    for end in (ProcessState.EXITED, ProcessState.LOST):
        process = await add_process(store, node, fork.id, command=CANARY)
        await store.process_started(process.id, replace(identity(), pid=552), shim_pid=551, shim_start="1")
        await store.pin_process(OWNER, process.id, store.now())
        await store.request_stop(OWNER, process.id, "enough")
        assert await store.claim_process(process.id, (await new_node(store)).id, node.id)
        await store.end_process(process.id, end, exit_code=0 if end is ProcessState.EXITED else None)
    past = session()
    body = Raw(msgspec.json.encode({"role": "user", "content": CANARY}))
    await store.import_part(part(past, was_said(1, past.id, body=body), title=CANARY))
    flushed = await say(store, node, CANARY, CANARY, CANARY, CANARY, key="flushed")
    await store.end_session(OWNER, flushed.session.id, "new")
    await store.skip_flush(OWNER, flushed.session.id, CANARY)
    await store.retry_flush(OWNER, flushed.session.id)
    for settle in ("fail", "bury", "finish"):
        claimed = await store.claim_flushes(node.id, together=100, per_minute=100)
        flush = next(each for each in claimed if each.session_id == flushed.session.id)
        if settle == "finish":
            await store.finish_flush(flush, CANARY)
        else:
            await store.fail_flush(flush, CANARY, timedelta() if settle == "fail" else None)
        if settle == "bury":
            await store.retry_flush(OWNER, flushed.session.id)
    (memory,) = (await store.memories(OWNER)).items
    await store.edit_memory(OWNER, memory.id, f"{CANARY} again")
    await store.forget_memory(OWNER, memory.id)
    await store.note_suspected_window(begun.session, "a-model", reported=1, given=2, reports=3, window=8192)
    await connected(store, node)
    await store.leave(node.id, "closed")

    told = await all_events(store)
    assert CANARY.encode() not in msgspec.json.encode(told)
    assert set(types(told)) == set(EVENT_MEANINGS)
    assert len(await store.search(OWNER, CANARY)) > 5
    assert fork.conversation_id in {event.conversation_id for event in told}
