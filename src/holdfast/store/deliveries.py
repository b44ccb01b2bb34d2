"""The transactions of the outbox: what goes out to messaging platforms.

A reply's delivery is written in the transaction that commits the reply; a notice's in the one that adds the
notice. In one place messages are sent in the order of their rows: what comes later waits until the one before
is sent or given up. Delivery is at least once. After a crash the parts that the platform has accepted are
known, except the one that was being sent; so at most that one is sent twice, and none where the platform
deduplicates by our key.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from ..domain.connectors import (
    MAX_ATTEMPTS,
    ConnectorClaim,
    InboxState,
    Outgoing,
    OutgoingKind,
    OutgoingState,
    Place,
    PlaceKind,
    SentPart,
    pause_after,
)
from ..domain.events import EventType
from ..domain.ids import cut_name, new_id, storable
from ..domain.messages import Message, MessageStatus, text_of
from ..domain.responses import finish_reason, response_event, response_status
from ..domain.turns import TurnStatus
from ..errors import Conflict, ConnectorLost, NotFound
from . import messages
from .rows import MICROSECOND, Row, to_json, to_time, to_time_or_none
from .transaction import Q, Transaction
from .values import Page, check_limit

NO_TEXT = "(The reply has no text.)"


def to_outgoing(row: Row) -> Outgoing:
    (
        no, id_, connector, address, owner, conversation, key, kind, turn, notice, text, reply_to, parts,
        state, attempts, error, created_at, due_at, sent_at,
    ) = row  # fmt: skip
    return Outgoing(
        no,
        id_,
        connector,
        address,
        owner,
        conversation,
        key,
        OutgoingKind(kind),
        turn,
        notice,
        text,
        reply_to,
        tuple(SentPart(*part) for part in msgspec.json.decode(parts)),
        OutgoingState(state),
        attempts,
        error,
        to_time(created_at),
        to_time(due_at),
        to_time_or_none(sent_at),
    )


def _place(row: Row) -> Place:
    id_, connector, address, kind, owner, key, conversation, linked, hears_all = row
    return Place(
        id_, connector, address, PlaceKind(kind), owner, key, conversation, bool(linked), bool(hears_all)
    )


# --- adding -------------------------------------------------------------------------------------------------


def add_reply(tx: Transaction, conversation_id: str, turn_id: str) -> None:
    """Deliver a turn's reply to the place that its messages came from, and the turn's messages to the places
    that get everything; finish those messages. Idempotent. Runs in the transaction that commits the reply."""
    said = messages.of_turn(tx, turn_id)
    reply = _replied(said) or NO_TEXT
    asked = tx.all(Q.inbox_of_turn, turn=turn_id)
    origin = tx.one(Q.inbox_place_of_turn, turn=turn_id) if asked else None
    places = {
        place.id: place
        for place in map(_place, tx.all(Q.chat_places_of_conversation, conversation=conversation_id))
    }
    if origin is not None:
        places.setdefault(origin[0], _place(origin))
    for place in places.values():
        if origin is not None and place.id == origin[0]:
            _add(
                tx, place, conversation_id, OutgoingKind.REPLY, reply, turn_id=turn_id, reply_to=asked[-1][1]
            )
        elif place.hears_all:
            both = "\n\n".join(filter(None, (_quoted(said), reply)))
            _add(tx, place, conversation_id, OutgoingKind.SAID, both, turn_id=turn_id)
    if asked:
        tx.run(Q.settle_inbox_of_turn, turn=turn_id, state=InboxState.DONE.value, error=None)


def _replied(said: Sequence[Message]) -> str:
    texts = [
        text_of(each.shown().get("content"))
        for each in said
        if each.role == "assistant" and not each.inner and each.status is not MessageStatus.INTERRUPTED
    ]
    return "\n\n".join(filter(None, texts))


def _quoted(said: Sequence[Message]) -> str:
    texts = [text_of(each.shown().get("content")) for each in said if each.role == "user"]
    return "\n".join(f"> {line}" for text in texts for line in text.splitlines())


def _add(
    tx: Transaction,
    place: Place,
    conversation_id: str | None,
    kind: OutgoingKind,
    text: str,
    *,
    turn_id: str | None = None,
    reply_to: str | None = None,
) -> None:
    text = storable(text)
    if turn_id is not None and tx.run(
        Q.complete_delivery, turn=turn_id, place=place.id, kind=kind.value, text=text, now=tx.now
    ):
        return
    tx.run(
        Q.insert_delivery,
        id=new_id("dlv"),
        connector=place.connector,
        place=place.id,
        owner=place.owner,
        conversation=conversation_id,
        kind=kind.value,
        turn=turn_id,
        notice=None,
        text=text,
        reply_to=reply_to,
        now=tx.now,
    )


def add_answer(tx: Transaction, place: Place, text: str, reply_to: str | None) -> None:
    """Deliver a sentence that is part of no conversation: the answer to a command, or why there is no
    reply."""
    _add(tx, place, place.conversation_id, OutgoingKind.ANSWER, text, reply_to=reply_to)


def add_notice(tx: Transaction, conversation_id: str, notice_id: str, text: str) -> None:
    """Deliver a notice to the places of its conversation, or to the home place if it has none."""
    tx.run(Q.deliver_to_places, id=notice_id, conversation=conversation_id, text=text, now=tx.now)


def add_response_event(
    tx: Transaction,
    response_id: str,
    status: TurnStatus,
    *,
    answer: bytes | None = None,
    is_fault: bool = False,
) -> None:
    """Notify the webhook that the response's key named, if it did, that its turn ended with this status.
    Runs in the transaction that ends the turn. Events of one owner are sent in order."""
    row = tx.one(Q.webhook_of_response, id=response_id)
    if row is None:
        return
    connector, owner, conversation = row
    # No connector can have a name with a slash, so no message that comes in reaches this place.
    where = {"connector": f"{connector}/events", "address": owner}
    place = {**where, "id": new_id("place"), "kind": PlaceKind.DIRECT.value, "key": f"{connector}/events"}
    tx.run(Q.insert_chat_place, owner=owner, now=tx.now, **place)
    found = tx.one(Q.chat_place_at, **where)
    assert found is not None
    ended = response_status(status, finish_reason(answer), is_fault=is_fault)
    event = response_event(new_id("evt"), response_id, ended, to_time(tx.now))
    tx.run(
        Q.insert_delivery,
        id=new_id("dlv"),
        connector=connector,
        place=found[0],
        owner=owner,
        conversation=conversation,
        kind=OutgoingKind.EVENT.value,
        turn=None,
        notice=None,
        text=event,
        reply_to=None,
        now=tx.now,
    )


def deliver_reply(tx: Transaction, claimed: ConnectorClaim, conversation_id: str, turn_id: str) -> None:
    """Deliver the reply of a completed turn whose commit did not know of its place. Idempotent.
    ConnectorLost writes nothing."""
    _require(tx, claimed)
    if tx.one(Q.conversation_by_id, id=conversation_id, owner=None) is not None:  # locks it
        add_reply(tx, conversation_id, turn_id)


def _require(tx: Transaction, claimed: ConnectorClaim) -> None:
    if tx.one(Q.connector_claim, name=claimed.name, token=claimed.token) is None:
        raise ConnectorLost(claimed.name)


# --- a reply that is being written --------------------------------------------------------------------------


def grow(
    tx: Transaction, claimed: ConnectorClaim, place: Place, turn_id: str, reply_to: str | None
) -> Outgoing | None:
    """The delivery of a reply that is being written, so that its first part can be sent already; the one
    of an earlier attempt if there is one. None: the reply is whole, or earlier messages are not sent to the
    place yet. ConnectorLost writes nothing."""
    _require(tx, claimed)
    if tx.one(Q.has_pending, connector=place.connector, place=place.id) is not None:
        return None
    tx.run(
        Q.insert_growing,
        id=new_id("dlv"),
        connector=place.connector,
        place=place.id,
        owner=place.owner,
        conversation=place.conversation_id,
        turn=turn_id,
        reply_to=reply_to,
        now=tx.now,
    )
    row = tx.one(Q.growing_of_turn, turn=turn_id, place=place.id)
    return None if row is None else to_outgoing(row)


def stop_growing(tx: Transaction, claimed: ConnectorClaim, delivery_id: str, text: str) -> None:
    """End the delivery of a reply that will not be completed: it shows this text. One of which the
    platform has seen nothing is deleted. ConnectorLost writes nothing."""
    _require(tx, claimed)
    row = tx.one(Q.delivery_by_id, id=delivery_id, owner=None)
    if row is not None and to_outgoing(row).parts:
        tx.run(Q.end_growing, id=delivery_id, text=storable(text), now=tx.now)
    else:
        tx.run(Q.drop_growing, id=delivery_id)


# --- sending ------------------------------------------------------------------------------------------------


def claim(tx: Transaction, claimed: ConnectorClaim, *, anew: bool = False, limit: int = 50) -> list[Outgoing]:
    """What is to be sent now, at most one message of each place. This claim gets none of them again until
    it is noted as sent or failed, unless `anew` says that none is being sent any more; the next claim of the
    connector gets them at once. ConnectorLost writes nothing."""
    _require(tx, claimed)
    token = 0 if anew else claimed.token  # 0 is no claim's
    numbers = tx.all(Q.due_deliveries, connector=claimed.name, token=token, now=tx.now, limit=limit)
    found = []
    for (no,) in numbers:
        tx.run(Q.claim_delivery, no=no, token=claimed.token)
        row = tx.one(Q.delivery_by_number, no=no)
        if row is not None:  # else it was deleted with its conversation
            found.append(to_outgoing(row))
    return found


def next_due(tx: Transaction, connector: str) -> datetime | None:
    """When the next message of a connector is to be sent; None: there is none."""
    (due_at,) = tx.one(Q.next_delivery_due, connector=connector, now=tx.now) or (None,)
    return to_time_or_none(due_at)


def note_parts(tx: Transaction, claimed: ConnectorClaim, delivery_id: str, parts: Sequence[SentPart]) -> bool:
    """Record the parts that the platform has accepted so far. False: the message was deleted with its
    conversation. ConnectorLost writes nothing."""
    _require(tx, claimed)
    return tx.run(Q.note_parts, id=delivery_id, parts=_encoded(parts)) > 0


def sent(tx: Transaction, claimed: ConnectorClaim, delivery_id: str, parts: Sequence[SentPart]) -> None:
    """Mark a message as sent, with the platform's ids; a notice counts as delivered. ConnectorLost writes
    nothing."""
    _require(tx, claimed)
    row = tx.one(Q.delivery_sent, id=delivery_id, parts=_encoded(parts), now=tx.now)
    if row is not None and row[0] is not None:
        tx.run(Q.deliver_notice, id=row[0], owner=None, now=tx.now)


def failed(
    tx: Transaction,
    claimed: ConnectorClaim,
    delivery_id: str,
    attempts: int,
    error: str,
    *,
    retry_after: timedelta | None = None,
    for_good: bool = False,
) -> bool:
    """Requeue a message that the platform did not accept, or give it up: `for_good`, or after
    MAX_ATTEMPTS. True: it is a dead letter now. ConnectorLost writes nothing."""
    _require(tx, claimed)
    dead = for_good or attempts >= MAX_ATTEMPTS
    again_at = tx.now + pause_after(attempts, retry_after) // MICROSECOND
    state = OutgoingState.DEAD if dead else OutgoingState.PENDING
    error = cut_name(storable(error)) or "unknown"
    row = tx.one(
        Q.delivery_failed, id=delivery_id, state=state.value, again_at=again_at, error=error, now=tx.now
    )
    if row is None or not dead:
        return False
    owner, conversation, tried, kind, place = row
    if kind != OutgoingKind.NOTICE:
        text = f"A message could not be delivered and was given up: {error}"
        tx.run(Q.report_dead, id=delivery_id, conversation=conversation, place=place, text=text, now=tx.now)
    tx.event(
        EventType.DELIVERY_DEAD,
        owner,
        conversation,
        delivery=delivery_id,
        connector=claimed.name,
        attempts=tried,
    )
    return True


def retry(tx: Transaction, owner: str | None, delivery_id: str) -> Outgoing:
    """Send a dead letter again, with all its attempts. Raises NotFound, and Conflict if it is not dead."""
    found = delivery_of(tx, owner, delivery_id)
    if not tx.run(Q.retry_delivery, id=delivery_id, now=tx.now):
        raise Conflict(f"delivery {delivery_id} is {found.public_state}; only a dead one can be retried")
    tx.event(
        EventType.DELIVERY_RETRIED,
        found.owner,
        found.conversation_id,
        delivery=found.id,
        connector=found.connector,
    )
    return delivery_of(tx, owner, delivery_id)


# --- reading ------------------------------------------------------------------------------------------------


def delivery_of(tx: Transaction, owner: str | None, delivery_id: str) -> Outgoing:
    """This delivery. Raises NotFound."""
    row = tx.one(Q.delivery_by_id, id=delivery_id, owner=owner)
    if row is None:
        raise NotFound("delivery", delivery_id)
    return to_outgoing(row)


def page(
    tx: Transaction,
    owner: str | None,
    *,
    state: str | None = None,
    after: str | None = None,
    limit: int = 20,
) -> Page[Outgoing]:
    """A page of deliveries, oldest first, after the delivery `after`; `state`: pending, sent or dead."""
    check_limit(limit)
    values = {"after": delivery_of(tx, owner, after).no if after else 0, "state": state, "limit": limit + 1}
    if owner is None:
        rows = tx.all(Q.deliveries_of_all, **values)
    else:
        rows = tx.all(Q.deliveries_of_owner, owner=owner, **values)
    return Page([to_outgoing(row) for row in rows[:limit]], len(rows) > limit)


def _encoded(parts: Sequence[SentPart]) -> str:
    return to_json([[part.platform_id, part.digest] for part in parts])
