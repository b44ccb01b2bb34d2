"""Connectors: one owner of each, messages once in and at least once out, and nothing stored of strangers."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from holdfast.domain.attachments import FileRef
from holdfast.domain.connectors import AT_ONCE as URGENT
from holdfast.domain.connectors import (
    CODE_LIVES,
    LATE_EDIT,
    MAX_ATTEMPTS,
    MOST_PENDING,
    Batch,
    ConnectorClaim,
    ConnectorHealth,
    Gathering,
    Incoming,
    IncomingKind,
    OutgoingKind,
    OutgoingState,
    PairingState,
    SentPart,
)
from holdfast.domain.conversations import Address
from holdfast.domain.ids import new_id
from holdfast.domain.new_messages import tool_result
from holdfast.domain.nodes import Node
from holdfast.domain.quotas import Quotas
from holdfast.domain.recovery import Cause, Origin, RequestToStore, encoded_request
from holdfast.domain.turns import NewResponse, TurnBegun, TurnFailure, TurnStatus
from holdfast.errors import BadInput, Conflict, ConnectorLost, LeaseLost, NotFound, QuotaExceeded
from holdfast.store.store import Store
from holdfast.store.values import Retention
from tests.contract.steps import Clock, begin, calling, limit, new_node, reap, request, say, to_message

NAME = "phone"
ADA = "phone/42"
AT_ONCE = timedelta(0)


def wrote(platform_id: str, text: str = "hello", person: str = "42", **more: object) -> Incoming:
    address = str(more.pop("address", f"dm:{person}"))
    return Incoming(platform_id, address, f"telegram:{address}", person, text, **more)  # type: ignore[arg-type]


@pytest.fixture
async def claim(store: Store, node: Node) -> ConnectorClaim:
    made = await store.claim_connector(NAME, "telegram", node.id)
    assert isinstance(made, ConnectorClaim)
    return made


async def received(store: Store, claim: ConnectorClaim, *events: Incoming, allow: object = ("42",)) -> int:
    return (await store.receive(NAME, events, list(allow), claimed=claim)).stored  # type: ignore[call-overload]


async def taken(store: Store, claim: ConnectorClaim, gather: timedelta = AT_ONCE) -> Batch:
    """The next messages of the first waiting place."""
    (place, _), *_ = await store.waiting_places(NAME)
    batch = await store.take_messages(claim, place, new_id("turn"), "telegram", gather)
    assert isinstance(batch, Batch)
    return batch


async def began(store: Store, node: Node, batch: Batch) -> TurnBegun:
    said = [message.text for message in batch.messages]
    return await begin(
        store, node, *said, key=batch.place.key, owner=batch.place.owner, turn_id=batch.turn_id
    )


async def answered(store: Store, node: Node, batch: Batch, reply: str = "hi") -> TurnBegun:
    begun = await began(store, node, batch)
    await store.commit_reply(begun.lease, [to_message(reply, "assistant")])
    return begun


# --- claims -------------------------------------------------------------------------------------------------


async def test_one_node_runs_a_connector_and_the_next_takes_it_over_when_it_dies(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    other = await new_node(store)
    assert await store.claim_connector(NAME, "telegram", other.id) == node.id
    await received(store, claim, wrote("1"))
    await reap(store, node)
    later = await store.claim_connector(NAME, "telegram", other.id)
    assert isinstance(later, ConnectorClaim) and later.token > claim.token
    with pytest.raises(ConnectorLost):
        await received(store, claim, wrote("2"))
    with pytest.raises(ConnectorLost):
        await store.claim_deliveries(claim)
    assert [message.platform_id for message in (await taken(store, later)).messages] == ["1"]


async def test_a_released_connector_is_free_and_a_late_release_frees_nothing(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    other = await new_node(store)
    assert await store.release_connector(claim)
    assert isinstance(await store.claim_connector(NAME, "telegram", other.id), ConnectorClaim)
    assert not await store.release_connector(claim)
    assert await store.claim_connector(NAME, "telegram", node.id) == other.id


async def test_the_cursor_is_stored_with_the_messages_before_it(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await store.receive(NAME, [wrote("1")], ["42"], claimed=claim, cursor="17")
    again = await store.claim_connector(NAME, "telegram", node.id)
    assert isinstance(again, ConnectorClaim) and again.cursor == "17"


async def test_an_outage_is_news_once_and_shows_since_when(
    store: Store, claim: ConnectorClaim, clock: Clock
) -> None:
    began_at = clock.move(seconds=1)
    assert await store.note_connector(claim, ConnectorHealth.DOWN, "refused")
    clock.move(seconds=60)
    assert not await store.note_connector(claim, ConnectorHealth.DOWN, "refused")
    (state,) = await store.connector_states()
    assert (state.health, state.problem, state.since) == (ConnectorHealth.DOWN, "refused", began_at)
    assert await store.note_connector(claim, ConnectorHealth.UP)


# --- inbox --------------------------------------------------------------------------------------------------


async def test_the_same_update_twice_is_one_message(store: Store, claim: ConnectorClaim) -> None:
    assert await received(store, claim, wrote("1"), wrote("1")) == 1
    assert await received(store, claim, wrote("1")) == 0


async def test_a_message_is_taken_up_again_under_the_same_turn_until_it_is_answered(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    first = await taken(store, claim)
    assert (await taken(store, claim)).turn_id == first.turn_id
    await answered(store, node, first)
    assert await store.waiting_places(NAME) == []
    assert await received(store, claim, wrote("1")) == 0


async def test_messages_are_answered_in_the_platforms_order_one_turn_each(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("2", "second", ordinal=2))
    await received(store, claim, wrote("1", "first", ordinal=1))
    texts = []
    for _ in range(2):
        batch = await taken(store, claim)
        texts.append([message.text for message in batch.messages])
        await answered(store, node, batch)
    assert texts == [["first"], ["second"]]


async def test_a_burst_is_one_turn_once_it_is_over(
    store: Store, node: Node, claim: ConnectorClaim, clock: Clock
) -> None:
    gather = timedelta(seconds=2)
    await received(store, claim, wrote("1", ordinal=1))
    last = clock.move(seconds=1)
    await received(store, claim, wrote("2", ordinal=2))
    (place, _), *_ = await store.waiting_places(NAME)
    waiting = await store.take_messages(claim, place, new_id("turn"), "telegram", gather)
    assert waiting == Gathering(last + gather)
    clock.move(seconds=2)
    batch = await taken(store, claim, gather)
    assert [message.platform_id for message in batch.messages] == ["1", "2"]
    await received(store, claim, wrote("3", ordinal=3))
    assert len((await taken(store, claim, gather)).messages) == 2
    await answered(store, node, batch)
    assert [each.kind for each in await store.claim_deliveries(claim)] == [OutgoingKind.REPLY]


async def test_what_came_while_the_clock_was_ahead_waits_no_longer_when_it_is_set_back(
    store: Store, node: Node, claim: ConnectorClaim, clock: Clock
) -> None:
    clock.move(hours=5)
    await received(store, claim, wrote("1"))
    clock.move(hours=-5)
    ((_, due_at),) = await store.waiting_places(NAME)
    assert due_at <= clock()
    batch = await taken(store, claim, timedelta(seconds=2))
    assert (await taken(store, claim)).turn_id == batch.turn_id, "also if its turn did not begin"
    clock.move(hours=5)
    await answered(store, node, batch)
    clock.move(hours=-5)
    send_at = await store.next_delivery(NAME)
    assert send_at is not None and send_at <= clock()
    assert [out.text for out in await store.claim_deliveries(claim)] == ["hi"]


async def test_what_came_while_the_clock_was_ahead_still_waits_between_its_attempts(
    store: Store, node: Node, claim: ConnectorClaim, clock: Clock
) -> None:
    pause = timedelta(seconds=30)
    clock.move(hours=5)
    await received(store, claim, wrote("1"))
    clock.move(hours=-5)
    await store.postpone_messages(claim, await taken(store, claim), pause, "the model is down")
    ((_, due_at),) = await store.waiting_places(NAME)
    assert due_at == clock() + pause
    clock.move(hours=5)
    await answered(store, node, await taken(store, claim))
    clock.move(hours=-5)
    (out,) = await store.claim_deliveries(claim)
    await store.delivery_failed(claim, out.id, out.attempts, "429", retry_after=pause)
    assert await store.next_delivery(NAME) == clock() + pause
    assert await store.claim_deliveries(claim) == []


async def test_a_command_is_never_joined_to_a_burst(store: Store, claim: ConnectorClaim) -> None:
    await received(store, claim, wrote("1", ordinal=1), wrote("2", "/new", ordinal=2))
    batch = await taken(store, claim, timedelta(seconds=2))
    assert ([message.text for message in batch.messages], batch.command) == (["hello"], None)


@pytest.mark.parametrize("text", [f"/{name}" for name in sorted(URGENT)] + ["/Stop@bot now"])
async def test_a_command_that_acts_at_once_is_found_behind_any_number_of_messages_of_another_place(
    store: Store, claim: ConnectorClaim, text: str
) -> None:
    flood = [wrote(f"a{number}", f"/stopping {number}") for number in range(120)]
    await received(store, claim, *flood, wrote("b", text, "43"), allow=["42", "43"])
    (found,) = await store.urgent_commands(NAME)
    assert (found.place.address, found.messages[0].text) == ("dm:43", text)


async def test_an_edit_counts_until_a_turn_has_the_message_and_is_recorded_after(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1", "helo"))
    await received(store, claim, wrote("1", "hello", kind=IncomingKind.EDIT))
    batch = await taken(store, claim)
    assert batch.messages[0].text == "hello"
    assert await received(store, claim, wrote("1", "bye", kind=IncomingKind.EDIT)) == 0
    assert (await taken(store, claim)).messages[0].text == "hello"


async def test_an_edit_before_its_message_is_that_message_if_it_is_new(
    store: Store, claim: ConnectorClaim, clock: Clock
) -> None:
    edit = wrote("1", "hello", kind=IncomingKind.EDIT, sent_at=clock.now)
    assert await received(store, claim, edit) == 1
    assert await received(store, claim, wrote("1", "helo")) == 0
    old = wrote("0", "hello", kind=IncomingKind.EDIT, sent_at=clock.now - 2 * LATE_EDIT)
    assert await received(store, claim, old) == 0


async def test_a_deleted_message_is_not_answered(store: Store, claim: ConnectorClaim) -> None:
    await received(store, claim, wrote("1"))
    await received(store, claim, wrote("1", kind=IncomingKind.DELETE))
    assert await store.waiting_places(NAME) == []
    assert await received(store, claim, wrote("1")) == 0, "the same update again"
    assert await store.waiting_places(NAME) == []


async def test_a_message_that_a_turn_has_is_answered_though_it_was_deleted_since(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    batch = await taken(store, claim)
    await received(store, claim, wrote("1", kind=IncomingKind.DELETE))
    assert (await taken(store, claim)).turn_id == batch.turn_id
    await answered(store, node, batch)
    assert await store.waiting_places(NAME) == []


async def test_a_deleted_message_is_not_sent_and_not_kept_as_a_dead_letter(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"), wrote("2"))
    conversations = set()
    for refused in (True, False):
        begun = await answered(store, node, await taken(store, claim), "secret")
        conversations.add(begun.turn.conversation_id)
        if refused:
            (out,) = await store.claim_deliveries(claim)
            assert await store.delivery_failed(claim, out.id, 1, "blocked", for_good=True)
    (conversation,) = conversations
    assert [each.public_state for each in (await store.deliveries(None)).items] == ["dead", "pending"]
    for seq in (2, 4):
        await store.delete_message(ADA, conversation, seq)
    assert (await store.deliveries(None)).items == []


async def test_nothing_of_a_stranger_is_stored(store: Store, claim: ConnectorClaim) -> None:
    event = wrote("1", "let me in", "666")
    found = await store.receive(NAME, [event], ["42"], claimed=claim)
    assert (found.stored, found.strangers) == (0, (event,))
    assert await store.waiting_places(NAME) == []
    assert await store.places_of(None) == []


async def test_a_room_on_the_list_lets_everybody_in_it_write(store: Store, claim: ConnectorClaim) -> None:
    event = wrote("1", person="7", address="group:-100", room="-100")
    assert await received(store, claim, event, allow=["-100"]) == 1
    batch = await taken(store, claim)
    assert (batch.place.owner, batch.place.key) == ("phone/-100", "telegram:group:-100")
    assert await received(store, claim, wrote("2", person="7"), allow=["-100"]) == 0


async def test_a_direct_chat_belongs_to_one_person(store: Store, node: Node, claim: ConnectorClaim) -> None:
    everyone = ["*"]
    assert await received(store, claim, wrote("1", address="chat"), allow=everyone) == 1
    others = (
        wrote("2", person="43", address="chat"),
        wrote("3", person="43", room="-100", address="chat"),
    )
    for event in others:
        with pytest.raises(BadInput, match="another person"):
            await store.receive(NAME, [event], everyone)
    await received(store, claim, wrote("4", room="-100", address="group"), allow=everyone)
    with pytest.raises(BadInput, match="another group"):
        await store.receive(NAME, [wrote("5", room="-200", address="group")], everyone)
    assert [each.text for each in (await taken(store, claim)).messages] == ["hello"]
    assert {place.owner for place in await store.places_of(None)} == {ADA, "phone/-100"}


async def test_two_people_with_long_ids_are_two_owners(store: Store, claim: ConnectorClaim) -> None:
    for end in "ab":
        with pytest.raises(BadInput, match="an owner is"):
            await store.receive(NAME, [wrote(end, person="x" * 511 + end, address=f"dm:{end}")], ["*"])
    assert await store.places_of(None) == []


@pytest.mark.parametrize(
    "bad",
    [
        wrote("a\x00b"),
        wrote("a\ud800b", kind=IncomingKind.DELETE),
        wrote("x" * 600),
        wrote("1", person="4\x002", address="dm:42"),
        wrote("1", address="dm:\x00"),
    ],
    ids=["id", "deleted", "long", "person", "address"],
)
async def test_a_message_that_cannot_be_stored_does_not_block_those_after_it(
    store: Store, claim: ConnectorClaim, bad: Incoming
) -> None:
    found = await store.receive(NAME, [bad, wrote("2")], ["*"], claimed=claim, cursor="7")
    assert (found.stored, [each for each, _ in found.refused]) == (1, [bad.platform_id])
    with pytest.raises(BadInput):
        await store.receive(NAME, [bad], ["*"])


async def test_a_message_that_fails_is_tried_again_later_and_then_told(
    store: Store, claim: ConnectorClaim, clock: Clock
) -> None:
    await received(store, claim, wrote("1"))
    batch = await taken(store, claim)
    await store.postpone_messages(claim, batch, timedelta(seconds=5), "model down")
    again = await store.take_messages(claim, batch.place.id, new_id("turn"), "telegram", AT_ONCE)
    assert again == Gathering(clock.now + timedelta(seconds=5))
    clock.move(seconds=5)
    batch = await taken(store, claim)
    assert batch.messages[0].attempts == 1
    assert await store.settle_messages(claim, batch, "I could not answer.", "model down")
    assert not await store.settle_messages(claim, batch, "I could not answer.", "model down")
    (told,) = await store.claim_deliveries(claim)
    assert (told.kind, told.text, told.reply_to) == (OutgoingKind.ANSWER, "I could not answer.", "1")


# --- outbox -------------------------------------------------------------------------------------------------


async def test_a_reply_is_delivered_where_its_message_came_from(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    begun = await answered(store, node, await taken(store, claim), "hi there")
    (out,) = await store.claim_deliveries(claim)
    assert (out.address, out.text, out.turn_id, out.reply_to) == ("dm:42", "hi there", begun.turn.id, "1")
    await store.delivery_sent(claim, out.id, [SentPart("m9", "x")])
    (kept,) = (await store.deliveries(ADA)).items
    assert (kept.state, kept.text, kept.parts) == (OutgoingState.SENT, "", (SentPart("m9", "x"),))
    assert await store.claim_deliveries(claim) == []


async def test_a_turn_elsewhere_in_the_conversation_delivers_nothing_here(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    begun = await answered(store, node, await taken(store, claim))
    await say(store, node, "from the terminal", "hi", id=begun.session.conversation_id, owner=ADA)
    assert len((await store.deliveries(ADA)).items) == 1


async def test_messages_of_a_place_are_sent_in_order_and_others_do_not_wait(
    store: Store, node: Node, claim: ConnectorClaim, clock: Clock
) -> None:
    for number in ("1", "2"):
        await received(store, claim, wrote(number))
        await answered(store, node, await taken(store, claim), f"reply {number}")
    await received(store, claim, wrote("3", person="43"), allow=["43"])
    await answered(store, node, await taken(store, claim), "reply 3")
    first, third = await store.claim_deliveries(claim)
    assert (first.text, third.text) == ("reply 1", "reply 3")
    assert await store.claim_deliveries(claim) == []
    first, third = await store.claim_deliveries(claim, anew=True)
    assert (first.text, third.text) == ("reply 1", "reply 3")
    assert not await store.delivery_failed(claim, first.id, first.attempts, "503")
    assert await store.claim_deliveries(claim) == []
    clock.move(seconds=2)
    (again,) = await store.claim_deliveries(claim)
    assert (again.text, again.attempts) == ("reply 1", 3)
    await store.delivery_sent(claim, again.id, [SentPart("a", "")])
    assert [each.text for each in await store.claim_deliveries(claim)] == ["reply 2"]


async def test_the_next_owner_gets_what_the_last_one_was_sending(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    await answered(store, node, await taken(store, claim))
    (out,) = await store.claim_deliveries(claim)
    await store.note_parts(claim, out.id, [SentPart("m1", "x")])
    later = await store.claim_connector(NAME, "telegram", node.id)
    assert isinstance(later, ConnectorClaim)
    (again,) = await store.claim_deliveries(later)
    assert (again.id, again.parts) == (out.id, (SentPart("m1", "x"),))
    with pytest.raises(ConnectorLost):
        await store.delivery_sent(claim, out.id, [])


async def test_the_platforms_retry_after_is_respected(
    store: Store, node: Node, claim: ConnectorClaim, clock: Clock
) -> None:
    await received(store, claim, wrote("1"))
    await answered(store, node, await taken(store, claim))
    (out,) = await store.claim_deliveries(claim)
    await store.delivery_failed(claim, out.id, 1, "429", retry_after=timedelta(seconds=30))
    assert await store.next_delivery(NAME) == clock.now + timedelta(seconds=30)


async def test_a_message_that_is_never_accepted_is_a_dead_letter_that_can_be_retried(
    store: Store, node: Node, claim: ConnectorClaim, clock: Clock
) -> None:
    await received(store, claim, wrote("1"))
    await answered(store, node, await taken(store, claim))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        (out,) = await store.claim_deliveries(claim)
        assert await store.delivery_failed(claim, out.id, out.attempts, "503") == (attempt == MAX_ATTEMPTS)
        clock.move(hours=1)
    assert await store.claim_deliveries(claim) == []
    (dead,) = (await store.deliveries(None, state="dead")).items
    assert (dead.public_state, dead.error, dead.text) == ("dead", "503", "hi")
    with pytest.raises(NotFound):
        await store.retry_delivery("bob", dead.id)
    assert (await store.retry_delivery(ADA, dead.id)).attempts == 0
    with pytest.raises(Conflict):
        await store.retry_delivery(ADA, dead.id)
    assert [each.id for each in await store.claim_deliveries(claim)] == [dead.id]


async def test_a_growing_reply_is_completed_in_the_same_message(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    batch = await taken(store, claim)
    begun = await began(store, node, batch)
    shown = await store.grow_delivery(claim, batch.place, batch.turn_id, "1")
    assert shown is not None and shown.public_state == "pending"
    await store.note_parts(claim, shown.id, [SentPart("m1", "x")])
    again = await store.grow_delivery(claim, batch.place, batch.turn_id, "1")
    assert again is not None and (again.id, again.parts) == (shown.id, (SentPart("m1", "x"),))
    assert await store.claim_deliveries(claim) == []
    await store.commit_reply(begun.lease, [to_message("whole", "assistant")])
    (out,) = await store.claim_deliveries(claim)
    assert (out.id, out.text, out.parts) == (shown.id, "whole", (SentPart("m1", "x"),))
    assert await store.grow_delivery(claim, batch.place, batch.turn_id, "1") is None


async def test_a_reply_does_not_grow_before_earlier_messages_of_its_place_are_sent(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("m1"), wrote("m2"))
    await answered(store, node, await taken(store, claim), "first")
    second = await taken(store, claim)
    begun = await began(store, node, second)
    assert await store.grow_delivery(claim, second.place, begun.turn.id, "m2") is None
    (first,) = await store.claim_deliveries(claim)
    assert await store.grow_delivery(claim, second.place, begun.turn.id, "m2") is None
    await store.delivery_sent(claim, first.id, [SentPart("p1", "x")])
    assert await store.grow_delivery(claim, second.place, begun.turn.id, "m2") is not None


async def test_a_reply_that_is_not_completed_shows_how_far_it_came(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    batch = await taken(store, claim)
    for parts in ((), (SentPart("m1", "x"),)):
        shown = await store.grow_delivery(claim, batch.place, batch.turn_id, "1")
        assert shown is not None
        if parts:
            await store.note_parts(claim, shown.id, parts)
        await store.stop_growing(claim, shown.id, "so far")
    (out,) = (await store.deliveries(None)).items
    assert (out.state, out.text) == (OutgoingState.PENDING, "so far")
    await store.settle_messages(claim, batch)


async def test_a_reply_whose_commit_did_not_know_the_place_is_delivered_once(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    begun = await answered(store, node, await taken(store, claim))
    for _ in range(2):
        await store.deliver_reply(claim, begun.session.conversation_id, begun.turn.id)
    assert len((await store.deliveries(None)).items) == 1


async def test_a_notice_goes_to_the_places_of_its_conversation_else_home(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    here = (await answered(store, node, await taken(store, claim))).session.conversation_id
    elsewhere = (await say(store, node, key="cli:ada")).session.conversation_id
    for out in await store.claim_deliveries(claim):
        await store.delivery_sent(claim, out.id, [])
    assert await store.set_home("telegram:dm:42")
    notices = [
        await store.add_notice(ADA, here, "reset", "a new session has begun"),
        await store.add_notice("ada", elsewhere, "reset", "another has begun"),
    ]
    for notice in notices:
        (out,) = await store.claim_deliveries(claim)
        assert (out.kind, out.notice_id, out.address) == (OutgoingKind.NOTICE, notice.id, "dm:42")
        await store.delivery_sent(claim, out.id, [])
    assert await store.undelivered(here) == []
    await store.clear_home()
    await store.add_notice("ada", elsewhere, "reset", "and another")
    assert await store.claim_deliveries(claim) == []


async def test_deleting_a_conversation_deletes_its_messages_in_and_out(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("1"))
    begun = await answered(store, node, await taken(store, claim))
    await store.new_link(ADA, begun.session.conversation_id, "ABCD-EFGH")
    await store.delete_conversation(ADA, begun.session.conversation_id)
    assert (await store.deliveries(None)).items == []
    (place,) = await store.places_of(None)
    assert place.conversation_id is None
    await received(store, claim, wrote("2"))
    assert (await answered(store, node, await taken(store, claim))).session.conversation_id != (
        begun.session.conversation_id
    )


# --- pairing ------------------------------------------------------------------------------------------------


async def test_a_stranger_gets_one_code_an_hour_which_lets_them_in_once(
    store: Store, claim: ConnectorClaim, clock: Clock
) -> None:
    event = wrote("1", person="43", name="Bob")
    assert await store.ask_pairing(NAME, event, "AAAA-BBBB")
    assert not await store.ask_pairing(NAME, event, "CCCC-DDDD")
    with pytest.raises(NotFound):
        await store.approve_pairing("CCCC-DDDD")
    clock.now += CODE_LIVES
    with pytest.raises(NotFound):
        await store.approve_pairing("AAAA-BBBB")
    assert await store.ask_pairing(NAME, event, "EEEE-FFFF")
    pairing = await store.approve_pairing("eeee ffff", greeting="Welcome.")
    assert (pairing.owner, pairing.key, pairing.state) == (
        "phone/43",
        "telegram:dm:43",
        PairingState.APPROVED,
    )
    with pytest.raises(NotFound):
        await store.approve_pairing("EEEE-FFFF")
    (greeting,) = await store.claim_deliveries(claim)
    assert (greeting.address, greeting.text) == ("dm:43", "Welcome.")
    assert await received(store, claim, wrote("2", person="43"), allow=[]) == 1


async def test_only_so_many_strangers_have_a_code_at_once(
    store: Store, claim: ConnectorClaim, clock: Clock
) -> None:
    async def asks(person: int) -> bool:
        return await store.ask_pairing(NAME, wrote("1", person=str(person)), f"AAAA-{person:04}")

    assert all([await asks(person) for person in range(MOST_PENDING)])
    assert not await asks(MOST_PENDING)
    clock.now += CODE_LIVES
    assert await asks(MOST_PENDING)
    assert [each.person for each in await store.pairings()] == [str(MOST_PENDING)]


async def test_a_revoked_person_is_a_stranger_who_gets_no_code(store: Store, claim: ConnectorClaim) -> None:
    event = wrote("1", person="43")
    await store.ask_pairing(NAME, event, "AAAA-BBBB")
    pairing = await store.approve_pairing("AAAA-BBBB")
    for _ in range(2):
        assert (await store.revoke_pairing(pairing.id)).state is PairingState.REVOKED
    assert await received(store, claim, wrote("2", person="43"), allow=[]) == 0
    assert not await store.ask_pairing(NAME, event, "CCCC-DDDD")


async def test_a_revoked_person_gets_nothing_more_of_the_conversation(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    """Two people are bound to one owner and get every message; then one of them is revoked."""
    chat = await say(store, node, key="cli:ada", owner="ada")
    conversation, pairings = chat.session.conversation_id, {}
    for person in ("42", "43"):
        await store.ask_pairing(NAME, wrote("0", person=person), f"AAAA-BB{person}")
        pairings[person] = await store.approve_pairing(f"AAAA-BB{person}", "ada", f"phone:{person}")
        await received(store, claim, wrote(f"{person}-1", person=person), allow=[])
        await answered(store, node, await taken(store, claim))
    for place in await store.places_of("ada"):
        await store.new_link("ada", conversation, f"CCCC-{place.id}")
        assert await store.link_place(place.id, f"CCCC-{place.id}", hears_all=True)
    for out in await store.claim_deliveries(claim):
        await store.delivery_sent(claim, out.id, [])
    await say(store, node, "before", "both get it", key="cli:ada", owner="ada")
    await received(store, claim, wrote("43-2", "secret?", person="43"), allow=[])
    await store.revoke_pairing(pairings["43"].id)
    await say(store, node, "after", "one gets it", key="cli:ada", owner="ada")
    unsent = (await store.deliveries(None, state="pending")).items
    assert [(each.address, each.text) for each in unsent] == [
        ("dm:42", "> before\n\nboth get it"),
        ("dm:42", "> after\n\none gets it"),
    ]
    assert await store.waiting_places(NAME) == []
    places = {place.address: place for place in await store.places_of(None)}
    assert places["dm:42"].conversation_id == conversation
    shut = places["dm:43"]
    assert (shut.owner, shut.key, shut.conversation_id, shut.linked) == (
        "phone/43",
        "telegram:dm:43",
        None,
        False,
    )
    assert await store.check() == []


async def test_a_revoked_persons_chat_is_shut_though_its_messages_were_pruned(
    store: Store, node: Node, claim: ConnectorClaim, clock: Clock
) -> None:
    await store.ask_pairing(NAME, wrote("0", person="43"), "AAAA-BBBB")
    pairing = await store.approve_pairing("AAAA-BBBB")
    await received(store, claim, wrote("1", person="43", address="dm:43:thread"), allow=[])
    await answered(store, node, await taken(store, claim))
    clock.move(hours=24)
    await store.prune(Retention(*[timedelta(hours=1)] * 3))
    await store.revoke_pairing(pairing.id)
    assert {place.conversation_id for place in await store.places_of("phone/43")} == {None}


@pytest.mark.parametrize(("allow", "stored"), [(["*"], 0), (["-100"], 0), (["43"], 1)])
async def test_a_revoked_person_is_let_in_only_by_their_own_id(
    store: Store, claim: ConnectorClaim, allow: list[str], stored: int
) -> None:
    await store.ask_pairing(NAME, wrote("1", person="43"), "AAAA-BBBB")
    pairing = await store.approve_pairing("AAAA-BBBB", "ada", "cli:ada")
    await store.revoke_pairing(pairing.id)
    direct = wrote("2", person="43")
    group = wrote("3", person="43", room="-100", address="group:-100")
    assert await received(store, claim, direct, group, allow=allow) == 2 * stored
    assert {place.owner for place in await store.places_of(None)} <= {"phone/43", "phone/-100"}


async def test_a_person_can_be_bound_to_an_existing_conversation(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    old = await say(store, node, key="agent:main:telegram:dm:42", owner="ada")
    await store.ask_pairing(NAME, wrote("1"), "AAAA-BBBB")
    await store.approve_pairing("AAAA-BBBB", "ada", "agent:main:telegram:dm:42")
    await received(store, claim, wrote("2"), allow=[])
    begun = await answered(store, node, await taken(store, claim))
    assert begun.session.conversation_id == old.session.conversation_id


async def test_strangers_in_groups_get_no_code(store: Store, claim: ConnectorClaim) -> None:
    assert not await store.ask_pairing(NAME, wrote("1", room="-100", address="group:-100"), "AAAA-BBBB")


# --- links --------------------------------------------------------------------------------------------------


async def test_two_places_of_one_owner_share_a_conversation_until_one_leaves(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    chat = await say(store, node, key="cli:ada", owner=ADA)
    conversation = chat.session.conversation_id
    await received(store, claim, wrote("1"))
    place = (await answered(store, node, await taken(store, claim))).session.conversation_id
    for out in await store.claim_deliveries(claim):
        await store.delivery_sent(claim, out.id, [])
    await store.new_link(ADA, conversation, "AAAA-BBBB")
    (here,) = await store.places_of(ADA)
    joined = await store.link_place(here.id, "AAAA-BBBB", hears_all=True)
    assert joined is not None and joined.conversation_id == conversation
    assert await store.link_place(here.id, "AAAA-BBBB", hears_all=True) is None
    await say(store, node, "from the terminal", "both hear it", key="cli:ada", owner=ADA)
    (out,) = await store.claim_deliveries(claim)
    assert (out.kind, out.text) == (OutgoingKind.SAID, "> from the terminal\n\nboth hear it")
    await received(store, claim, wrote("2"))
    batch = await taken(store, claim)
    assert batch.place.conversation_id == conversation
    begun = await begin(store, node, "x", id=conversation, owner=ADA, turn_id=batch.turn_id)
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    assert await store.unlink_place(here.id)
    assert not await store.unlink_place(here.id)
    await received(store, claim, wrote("3"))
    assert (await taken(store, claim)).place.conversation_id == place


async def test_a_code_never_links_across_owners(store: Store, node: Node, claim: ConnectorClaim) -> None:
    theirs = (await say(store, node, key="cli:bob", owner="bob")).session.conversation_id
    await store.new_link("bob", theirs, "AAAA-BBBB")
    await received(store, claim, wrote("1"))
    (here,) = await store.places_of(ADA)
    assert await store.link_place(here.id, "AAAA-BBBB", hears_all=False) is None
    with pytest.raises(NotFound):
        await store.new_link(ADA, theirs, "CCCC-DDDD")
    assert (await store.resolve("bob", Address(key="cli:bob"))).conversation.id == theirs


# --- attachments --------------------------------------------------------------------------------------------


async def test_a_file_is_stored_once_counts_and_is_deleted_with_its_conversation(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    file = FileRef("platform-1", "note.ogg", "audio/ogg", 400)
    await received(store, claim, wrote("m1", files=(file,)))
    batch = await taken(store, claim)
    assert batch.messages[0].files == (file,)
    for _ in range(2):
        await store.add_attachment(claim, batch, "m1 0", file, b"OggS" * 100)
    begun = await answered(store, node, batch)
    conversation = begun.turn.conversation_id
    assert list(await store.stored_attachments(begun.turn.id)) == ["m1 0"]
    (found,) = (await store.attachments(ADA, conversation)).items
    assert (found.name, found.mime, found.size) == ("note.ogg", "audio/ogg", 400)
    assert (await store.attachment(ADA, found.id))[1] == b"OggS" * 100
    with pytest.raises(NotFound):
        await store.attachment("phone/43", found.id)
    (usage,) = await store.usage(ADA)
    assert usage.bytes >= 400
    await store.delete_conversation(ADA, conversation)
    with pytest.raises(NotFound):
        await store.attachment(None, found.id)


async def test_a_file_beyond_a_quota_is_refused_and_deleting_frees_its_bytes(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("m1"))
    batch = await taken(store, claim)
    await store.add_attachment(claim, batch, "m1 0", FileRef("f", "a"), b"x" * 600)
    limit(store, Quotas(conversation_bytes=1000))
    with pytest.raises(QuotaExceeded) as refused:
        await store.add_attachment(claim, batch, "m1 1", FileRef("g", "b"), b"x" * 600)
    assert refused.value.setting == "conversation_mb"
    limit(store, Quotas(owner_bytes=1000))
    with pytest.raises(QuotaExceeded):
        await store.add_attachment(claim, batch, "m1 1", FileRef("g", "b"), b"x" * 600)
    begun = await answered(store, node, batch)
    conversation = begun.turn.conversation_id
    assert len((await store.attachments(ADA, conversation)).items) == 1
    with pytest.raises(QuotaExceeded):
        await begin(store, node, "x" * 400, owner=ADA, id=conversation)
    await store.delete_message(ADA, conversation, 1)
    await say(store, node, "x" * 400, owner=ADA, id=conversation)


async def test_the_files_of_a_turn_go_with_its_last_message_of_a_person(
    store: Store, node: Node, claim: ConnectorClaim, clock: Clock
) -> None:
    await received(store, claim, wrote("m1", ordinal=1), wrote("m2", ordinal=2))
    clock.move(seconds=1)
    batch = await taken(store, claim, timedelta(seconds=1))
    await store.add_attachment(claim, batch, "m1 0", FileRef("f", "a"), b"secret")
    conversation = (await answered(store, node, batch)).turn.conversation_id
    other = (await say(store, node, owner=ADA, id=conversation)).turn
    for seq, left in ((3, 1), (1, 1), (other.first_seq, 1), (2, 0)):
        await store.delete_message(ADA, conversation, seq)
        assert len((await store.attachments(ADA, conversation)).items) == left, seq
    assert await store.check() == []


async def test_the_files_of_a_message_that_joins_a_turn_are_that_turns(
    store: Store, node: Node, claim: ConnectorClaim
) -> None:
    await received(store, claim, wrote("m1"))
    begun = await began(store, node, await taken(store, claim))
    await received(store, claim, wrote("m2"))
    ((place, _),) = await store.waiting_places(NAME)
    joins = await store.steering_messages(claim, place, new_id("turn"))
    assert joins is not None
    await store.add_attachment(claim, joins, "m2 0", FileRef("f", "a"), b"x")
    stored = RequestToStore(encoded_request("chat", b"{}"), Origin.CONNECTOR)
    conversation = begun.session.conversation_id
    asked = request(node, "wait", owner=ADA, id=conversation, turn_id=joins.turn_id, stored=stored)
    assert await store.enqueue_turn(asked, most=10, steers=True) is not None
    await store.append(begun.lease, [replace(to_message(calling("c")), inner=True, own_calls=("c",))])
    await store.append(begun.lease, [tool_result("c", "42", inner=True)])
    assert await store.take_steering(begun.lease) is not None
    assert list(await store.stored_attachments(begun.turn.id)) == ["m2 0"]


async def test_a_late_node_stores_no_file(store: Store, node: Node, claim: ConnectorClaim) -> None:
    await received(store, claim, wrote("m1", files=(FileRef("f"),)))
    batch = await taken(store, claim)
    await store.claim_connector(NAME, "telegram", node.id)
    with pytest.raises(ConnectorLost):
        await store.add_attachment(claim, batch, "m1 0", FileRef("f"), b"late")
    assert await store.stored_attachments(batch.turn_id) == {}


# --- events of background responses -------------------------------------------------------------------------


def notifying(**more: object) -> NewResponse:
    return NewResponse(new_id("resp"), b"{}", background=True, webhook="hook", **more)  # type: ignore[arg-type]


async def events(store: Store) -> list[tuple[str, str]]:
    """Type and response of each event in the outbox."""
    found = [each for each in (await store.deliveries(None)).items if each.kind is OutgoingKind.EVENT]
    assert {each.connector for each in found} <= {"hook"}
    bodies = [msgspec.json.decode(each.text) for each in found]
    return [(each["type"], each["data"]["id"]) for each in bodies]


async def test_the_end_of_a_background_response_is_an_event_of_the_same_transaction(
    store: Store, node: Node
) -> None:
    done, failed, cancelled, cut = (notifying() for _ in range(4))
    begun = await begin(store, node, "one", key="k", response=done)
    assert await events(store) == []
    await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    wanted = [("response.completed", done.id)]
    assert await events(store) == wanted
    begun = await begin(store, node, "two", key="k", response=failed)
    await store.settle_turn(begun.lease, TurnFailure(TurnStatus.FAILED, error="no"))
    wanted.append(("response.failed", failed.id))
    begun = await begin(store, node, "three", key="k", response=cancelled)
    await store.cancel_turn(None, begun.turn.id, TurnStatus.CANCELLED, "enough")
    wanted.append(("response.cancelled", cancelled.id))
    begun = await begin(store, node, "four", key="k", response=cut)
    answer = b'{"choices":[{"finish_reason":"length"}]}'
    await store.commit_reply(begun.lease, [to_message("h", "assistant")], answer=answer)
    wanted.append(("response.incomplete", cut.id))
    await say(store, node, key="k", response=NewResponse(new_id("resp"), b"{}", background=True))
    assert await events(store) == wanted


async def test_a_response_that_waits_to_be_taken_up_has_no_event_until_it_is_final(
    store: Store, node: Node
) -> None:
    response = notifying()
    stored = RequestToStore(encoded_request("responses", b"{}"), Origin.BACKGROUND, recover=True)
    begun = await begin(store, node, "one", key="k", response=response, stored=stored)
    await store.cancel_turn(None, begun.turn.id, TurnStatus.INTERRUPTED, "it died", cause=Cause.DEATH)
    assert await events(store) == []
    again = await begin(store, node, resumes_turn=begun.turn.id, stored=stored)
    await store.commit_reply(again.lease, [to_message("hi", "assistant")])
    assert await events(store) == [("response.completed", response.id)]


async def test_a_late_writer_sends_no_event(store: Store, node: Node) -> None:
    begun = await begin(store, node, "one", key="k", response=notifying())
    await store.cancel_turn(None, begun.turn.id, TurnStatus.CANCELLED, "enough")
    with pytest.raises(LeaseLost):
        await store.commit_reply(begun.lease, [to_message("hi", "assistant")])
    assert [kind for kind, _ in await events(store)] == ["response.cancelled"]
