"""The transactions of connectors: who runs each, what came in, and who may write.

A node must hold a connector's claim to receive and to send in its name. Each claim has a higher fencing token
than the one before; a write with an older token raises ConnectorLost and changes nothing. Messages that a
platform pushes to us (webhooks) are stored without a claim: their id alone makes them unique.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from ..domain.attachments import decoded_refs, encoded_refs
from ..domain.connectors import (
    AT_ONCE,
    CODE_LIVES,
    LATE_EDIT,
    MOST_PENDING,
    Batch,
    ConnectorClaim,
    ConnectorHealth,
    ConnectorState,
    Gathering,
    InboxMessage,
    InboxState,
    Incoming,
    IncomingKind,
    LinkCode,
    Pairing,
    PairingState,
    Place,
    PlaceKind,
    Received,
    code_hash,
    command_in,
    gathered,
    is_allowed,
    owner_of,
)
from ..domain.conversations import Address
from ..domain.events import EventType
from ..domain.ids import check_name, cut_name, new_id, storable
from ..errors import BadInput, ConnectorLost, NotFound
from . import deliveries
from .resolve import conversation_of, find
from .rows import MICROSECOND, Row, to_stamp, to_time, to_time_or_none
from .sessions import open_conversation, require_node
from .transaction import Q, Transaction
from .values import check_limit

MOST_AT_ONCE = 100
"""Messages of one place that are looked at, and so the most that one turn answers."""


def to_chat_place(row: Row) -> Place:
    id_, connector, address, kind, owner, key, conversation, linked, hears_all = row
    return Place(
        id_, connector, address, PlaceKind(kind), owner, key, conversation, bool(linked), bool(hears_all)
    )


def to_inbox(row: Row) -> InboxMessage:
    no, platform_id, sender, sender_name, text, state, turn, attempts, received_at, files = row
    return InboxMessage(
        no,
        platform_id,
        sender,
        sender_name,
        text,
        InboxState(state),
        turn,
        attempts,
        to_time(received_at),
        decoded_refs(files),
    )


def to_pairing(row: Row) -> Pairing:
    id_, connector, person, name, address, key, owner, state, created_at, expires_at, decided_at = row
    return Pairing(
        id_,
        connector,
        person,
        name,
        address,
        key,
        owner,
        PairingState(state),
        to_time(created_at),
        to_time_or_none(expires_at),
        to_time_or_none(decided_at),
    )


# --- claims -------------------------------------------------------------------------------------------------


def claim(tx: Transaction, name: str, kind: str, node_id: str) -> ConnectorClaim | str:
    """Claim a connector for this node: the claim, or the id of the present node that runs it. NodeReaped."""
    require_node(tx, node_id)
    check_name("a connector", name)
    tx.run(Q.insert_connector, name=name, kind=kind, now=tx.now)
    row = tx.one(Q.claim_connector, name=name, kind=kind, node=node_id)
    if row is None:
        (holder,) = tx.one(Q.connector_node, name=name) or ("",)
        return str(holder)
    return ConnectorClaim(name, row[0], row[1])


def require_claim(tx: Transaction, claimed: ConnectorClaim) -> None:
    """Raises ConnectorLost if another claim was made since."""
    if tx.one(Q.connector_claim, name=claimed.name, token=claimed.token) is None:
        raise ConnectorLost(claimed.name)


def release(tx: Transaction, claimed: ConnectorClaim) -> bool:
    """Give the claim back. False: it was lost before."""
    return tx.run(Q.release_connector, name=claimed.name, token=claimed.token, now=tx.now) > 0


def note_health(
    tx: Transaction, claimed: ConnectorClaim, health: ConnectorHealth, problem: str | None = None
) -> bool:
    """Record whether the platform can be reached. True: that is news. ConnectorLost writes nothing."""
    require_claim(tx, claimed)
    problem = cut_name(storable(problem)) if problem else None
    return tx.run(Q.note_connector, name=claimed.name, state=health.value, problem=problem, now=tx.now) > 0


def states(tx: Transaction) -> list[ConnectorState]:
    """Every connector that was ever run on this store, by name."""
    return [
        ConnectorState(name, kind, node, ConnectorHealth(state), problem, to_time(since), pending, dead)
        for name, kind, node, state, problem, since, pending, dead in tx.all(Q.connector_states)
    ]


# --- inbox --------------------------------------------------------------------------------------------------


def receive(
    tx: Transaction,
    connector: str,
    events: Sequence[Incoming],
    allow: Collection[str],
    *,
    claimed: ConnectorClaim | None = None,
    cursor: str | None = None,
) -> Received:
    """Store messages of people who may write, each once, and the platform's cursor: one transaction.

    Nothing of a stranger is stored; strangers are returned. An edit replaces the text of a message that no
    turn has yet, a deletion withdraws it; later both are only recorded. One that cannot be stored is returned
    with the reason, so that it does not block the others; without a claim it raises BadInput, for the
    platform that has pushed it. ConnectorLost writes nothing.
    """
    if claimed is not None:
        require_claim(tx, claimed)
    stored, strangers, refused = 0, [], []
    for event in events:
        try:
            outcome = _receive(tx, connector, event, allow)
        except BadInput as error:  # raised before anything of it is written
            if claimed is None:
                raise
            refused.append((event.platform_id, str(error)))
            continue
        if outcome is None:
            strangers.append(event)
        else:
            stored += outcome
    if claimed is not None and cursor is not None:
        tx.run(Q.move_cursor, name=connector, cursor=cursor)
    return Received(stored, tuple(strangers), tuple(refused))


def _receive(tx: Transaction, connector: str, event: Incoming, allow: Collection[str]) -> int | None:
    """Store one update: how many messages are new; None: it is a stranger's message."""
    check_name("a platform's message id", event.platform_id)
    if event.kind is IncomingKind.DELETE:
        if tx.run(Q.withdraw_inbox, connector=connector, platform_id=event.platform_id, now=tx.now):
            tx.erased = True
        return 0
    check_name("a person", event.person)
    pairing = _pairing_of(tx, connector, event.person)
    if not is_allowed(event, allow, pairing.state if pairing is not None else None):
        return None if event.kind is IncomingKind.MESSAGE else 0
    if event.kind is IncomingKind.EDIT and (_edit(tx, connector, event) or _is_old(event, tx.now)):
        return 0
    approved = pairing is not None and pairing.state is PairingState.APPROVED
    return _store(tx, connector, event, pairing if approved else None)


def _edit(tx: Transaction, connector: str, event: Incoming) -> bool:
    """Replace the text of a message, or record the edit. False: the message is unknown."""
    known = {"connector": connector, "platform_id": event.platform_id, "text": event.stored_text}
    if not tx.run(Q.edit_inbox, now=tx.now, **known):
        return False
    tx.erased = True
    return True


def _is_old(event: Incoming, now: int) -> bool:
    """True: an unknown message whose edit does not make it a new one."""
    return event.sent_at is None or to_stamp(event.sent_at) < now - LATE_EDIT // MICROSECOND


def _store(tx: Transaction, connector: str, event: Incoming, pairing: Pairing | None) -> int:
    place = _place_for(tx, connector, event, pairing)
    return tx.run(
        Q.insert_inbox,
        connector=connector,
        platform_id=event.platform_id,
        place=place.id,
        sender=event.person,
        sender_name=cut_name(storable(event.name)) or None,
        text=event.stored_text,
        ordinal=event.ordinal or tx.now,
        edited_at=tx.now if event.kind is IncomingKind.EDIT else None,
        files=encoded_refs(event.files),
        now=tx.now,
    )


def _place_for(tx: Transaction, connector: str, event: Incoming, pairing: Pairing | None) -> Place:
    """The place of a message. Raises BadInput if it is the chat of another person, or of another group."""
    bound = pairing if pairing is not None and event.place_kind is PlaceKind.DIRECT else None
    own = owner_of(connector, event)
    owner = bound.owner if bound and bound.owner else own
    where = {"connector": connector, "address": check_name("a place's address", event.address)}
    row = tx.one(Q.chat_place_at, **where)
    if row is None:
        tx.run(
            Q.insert_chat_place,
            id=new_id("place"),
            kind=event.place_kind.value,
            owner=owner,
            key=bound.key if bound else check_name("a key", event.key),
            now=tx.now,
            **where,
        )
        row = tx.one(Q.chat_place_at, **where)
    assert row is not None
    place = to_chat_place(row)
    if place.kind is not event.place_kind or place.owner not in (owner, own):
        known = "another person" if place.kind is PlaceKind.DIRECT else "another group"
        raise BadInput(
            f"{event.address!r:.80} is known as the chat of {known}; a chat of several people needs a room"
        )
    return place


def waiting_places(tx: Transaction, connector: str, *, limit: int = 1000) -> list[tuple[str, datetime]]:
    """Places with unanswered messages, the longest waiting first, each with when it is due."""
    rows = tx.all(Q.open_inbox_places, connector=connector, now=tx.now, limit=limit)
    return [(place, to_time(due_at)) for place, due_at in rows]


def take(
    tx: Transaction, claimed: ConnectorClaim, place_id: str, turn_id: str, source: str, gather: timedelta
) -> Batch | Gathering | None:
    """The next messages of a place to answer together, under a turn id that stays theirs; None: there are
    none.

    Messages that were taken before and are not finished come first, under their own turn id. The place is
    bound to the conversation that its key leads to, which is opened if it is new: so the reply's commit knows
    where it is to be delivered. ConnectorLost writes nothing.
    """
    require_claim(tx, claimed)
    found = tx.all(Q.open_inbox, connector=claimed.name, place=place_id, limit=MOST_AT_ONCE)
    messages = [to_inbox(row) for row in found]
    row = tx.one(Q.chat_place_by_id, id=place_id)
    if not messages or row is None:
        return None
    place = to_chat_place(row)
    taken = next((each for each in messages if each.state is InboxState.TAKEN), None)
    if taken is not None:
        assert taken.turn_id is not None
        (due_at,) = tx.one(Q.inbox_due, connector=claimed.name, place=place_id, now=tx.now) or (None,)
        if due_at is None:  # it was answered, or deleted with its conversation, since it was read
            return take(tx, claimed, place_id, turn_id, source, gather)
        if due_at > tx.now:
            return Gathering(to_time(due_at))
        again = tuple(each for each in messages if each.turn_id == taken.turn_id)
        return Batch(_bound(tx, place, source), again, taken.turn_id)
    count = gathered(messages, gather, to_time(tx.now))
    if isinstance(count, datetime):
        return Gathering(count)
    batch = Batch(place, tuple(messages[:count]), turn_id)
    if batch.command is not None:
        return Batch(_found(tx, place), batch.messages, turn_id)
    place = _bound(tx, place, source)
    for each in batch.messages:
        tx.run(Q.take_inbox, no=each.no, turn=turn_id, conversation=place.conversation_id)
    return Batch(place, batch.messages, turn_id)


def _lock(tx: Transaction, conversation_id: str) -> bool:
    """Lock a conversation; False: it was deleted."""
    return tx.one(Q.conversation_by_id, id=conversation_id, owner=None) is not None


def _found(tx: Transaction, place: Place) -> Place:
    """The place, bound to its conversation if that exists."""
    if place.linked and place.conversation_id is not None and _lock(tx, place.conversation_id):
        return place
    found = find(tx, place.owner, Address(key=place.key))
    if found is None or found.conversation.id == place.conversation_id:
        return place
    return _bind(tx, place, found.conversation.id)


def _bound(tx: Transaction, place: Place, source: str) -> Place:
    """The place, bound to its conversation."""
    bound = _found(tx, place)
    if bound.conversation_id is not None:
        return bound
    return _bind(
        tx, place, open_conversation(tx, place.owner, Address(key=place.key), None, source).conversation_id
    )


def _bind(
    tx: Transaction,
    place: Place,
    conversation_id: str | None,
    *,
    linked: bool = False,
    hears_all: bool = False,
) -> Place:
    before = _locked(tx, place.id).conversation_id
    if conversation_id is not None:
        _lock(tx, conversation_id)
    tx.run(
        Q.bind_chat_place,
        id=place.id,
        conversation=conversation_id,
        linked=int(linked),
        hears_all=int(hears_all),
    )
    for each in {before, conversation_id} - {None}:
        tx.run(Q.count_chat_places, id=each)
    return Place(
        place.id,
        place.connector,
        place.address,
        place.kind,
        place.owner,
        place.key,
        conversation_id,
        linked,
        hears_all,
    )


def _locked(tx: Transaction, place_id: str) -> Place:
    """This place, locked with the conversation that it is bound to. Raises NotFound."""
    known = place_of(tx, place_id)
    while True:
        if known.conversation_id is not None:
            _lock(tx, known.conversation_id)
        row = tx.one(Q.chat_place_to_bind, id=place_id)
        if row is None:
            raise NotFound("place", place_id)
        found = to_chat_place(row)
        if found.conversation_id in (None, known.conversation_id):
            return found
        known = found


def urgent(tx: Transaction, connector: str) -> list[Batch]:
    """Commands that do not wait for the messages before them, such as `/stop`."""
    found = []
    for *columns, place_id in tx.all(Q.new_commands, connector=connector, limit=MOST_AT_ONCE):
        message = to_inbox(columns)
        command = command_in(message.text)
        if command is not None and command.name in AT_ONCE:
            found.append(Batch(place_of(tx, place_id), (message,), ""))
    return found


def newer(tx: Transaction, connector: str, place_id: str) -> Batch | None:
    """The messages of a place that no turn has yet, commands left out; None: there are none."""
    rows = map(to_inbox, tx.all(Q.open_inbox, connector=connector, place=place_id, limit=MOST_AT_ONCE))
    found = tuple(each for each in rows if each.state is InboxState.NEW and not command_in(each.text))
    return Batch(place_of(tx, place_id), found, "") if found else None


def steering(tx: Transaction, claimed: ConnectorClaim, place_id: str, turn_id: str) -> Batch | None:
    """Take the messages of a place that no turn has yet, up to the first command, under this turn id: they
    are to join the turn that runs there. None: there are none. ConnectorLost writes nothing."""
    require_claim(tx, claimed)
    rows = map(to_inbox, tx.all(Q.open_inbox, connector=claimed.name, place=place_id, limit=MOST_AT_ONCE))
    waiting = [each for each in rows if each.state is InboxState.NEW]
    count = next((at for at, each in enumerate(waiting) if command_in(each.text)), len(waiting))
    if not count:
        return None
    place = place_of(tx, place_id)
    if place.conversation_id is not None and not _lock(tx, place.conversation_id):
        place = place_of(tx, place_id)  # its conversation was deleted since it was read
    for each in waiting[:count]:
        tx.run(Q.take_inbox, no=each.no, turn=turn_id, conversation=place.conversation_id)
    return Batch(place, tuple(waiting[:count]), turn_id)


def assign(tx: Transaction, claimed: ConnectorClaim, batch: Batch, turn_id: str) -> None:
    """Let this turn's reply answer a command. ConnectorLost writes nothing."""
    require_claim(tx, claimed)
    for each in batch.messages:
        tx.run(Q.assign_inbox, no=each.no, turn=turn_id, conversation=batch.place.conversation_id)


def settle(
    tx: Transaction,
    claimed: ConnectorClaim,
    batch: Batch,
    answer: str | None = None,
    error: str | None = None,
) -> bool:
    """Finish messages without a turn's reply: as failed if there is an error, else as done. The answer, if
    any, is delivered to their place in the same transaction. False: they were finished before; ConnectorLost
    writes nothing."""
    require_claim(tx, claimed)
    state = InboxState.FAILED if error else InboxState.DONE
    changed = [
        tx.run(Q.settle_inbox, no=each.no, state=state.value, error=error and storable(error))
        for each in batch.messages
    ]
    if any(changed) and answer:
        deliveries.add_answer(tx, batch.place, answer, batch.messages[-1].platform_id)
    return any(changed)


def postpone(
    tx: Transaction, claimed: ConnectorClaim, batch: Batch, pause: timedelta, error: str | None = None
) -> None:
    """Try these messages again after this pause. It counts as a failed attempt if there is an error.
    ConnectorLost writes nothing."""
    require_claim(tx, claimed)
    for each in batch.messages:
        again_at = tx.now + pause // MICROSECOND
        values = {"again_at": again_at, "error": error and storable(error), "count": int(error is not None)}
        tx.run(Q.postpone_inbox, no=each.no, now=tx.now, **values)


# --- places -------------------------------------------------------------------------------------------------


def place_of(tx: Transaction, place_id: str) -> Place:
    """This place. Raises NotFound."""
    row = tx.one(Q.chat_place_by_id, id=place_id)
    if row is None:
        raise NotFound("place", place_id)
    return to_chat_place(row)


def places_of(tx: Transaction, owner: str | None) -> list[Place]:
    """The places of one owner, or of all."""
    return [to_chat_place(row) for row in tx.all(Q.chat_places_of_owner, owner=owner)]


def set_home(tx: Transaction, key: str) -> bool:
    """Make the place with this session key, or address, the one that gets notices of conversations without
    a place. False: no message has come from there yet."""
    tx.run(Q.clear_home)
    return tx.run(Q.set_home, key=key) > 0


def clear_home(tx: Transaction) -> None:
    """No place gets notices of conversations without a place."""
    tx.run(Q.clear_home)


def new_link(tx: Transaction, owner: str | None, conversation_id: str, code: str) -> LinkCode:
    """Let a place of the same owner join this conversation by this code, once, within an hour. Raises
    NotFound."""
    conversation = conversation_of(tx, owner, conversation_id)
    expires_at = tx.now + CODE_LIVES // MICROSECOND
    tx.run(Q.drop_expired_link_codes, now=tx.now)
    tx.run(
        Q.insert_link_code,
        code_hash=code_hash(code),
        owner=conversation.owner,
        conversation=conversation.id,
        expires_at=expires_at,
    )
    return LinkCode(code, conversation.id, to_time(expires_at))


def link(tx: Transaction, place_id: str, code: str, *, hears_all: bool) -> Place | None:
    """Join a place to the conversation of a code of the same owner; None: no such code, or another
    owner's."""
    place = _locked(tx, place_id)
    row = tx.one(Q.use_link_code, code_hash=code_hash(code), owner=place.owner, now=tx.now)
    if row is None:
        return None
    conversation_of(tx, place.owner, row[0])
    tx.event(EventType.PLACE_LINKED, place.owner, row[0], place=place.id, connector=place.connector)
    return _bind(tx, place, row[0], linked=True, hears_all=hears_all)


def unlink(tx: Transaction, place_id: str) -> bool:
    """Let a place lead to its own conversation again. False: it was not linked."""
    place = _locked(tx, place_id)
    if not place.linked:
        return False
    if place.conversation_id is not None:
        tx.event(
            EventType.PLACE_UNLINKED,
            place.owner,
            place.conversation_id,
            place=place.id,
            connector=place.connector,
        )
    _bind(tx, place, None)
    return True


# --- pairings -----------------------------------------------------------------------------------------------


def ask_pairing(tx: Transaction, connector: str, event: Incoming, code: str) -> bool:
    """Give a stranger in a direct chat this code. False: the person has asked within the hour or was
    refused, or too many others have. Nothing of the message is stored."""
    if event.place_kind is not PlaceKind.DIRECT:
        return False
    tx.run(Q.drop_expired_pairings, connector=connector, now=tx.now)
    (pending,) = tx.one(Q.pending_pairings, connector=connector, now=tx.now) or (0,)
    if pending >= MOST_PENDING:
        return False
    return (
        tx.run(
            Q.insert_pairing,
            id=new_id("pair"),
            connector=connector,
            person=check_name("a person", event.person),
            name=cut_name(storable(event.name)) or None,
            address=event.address,
            key=event.key,
            code_hash=code_hash(code),
            expires_at=tx.now + CODE_LIVES // MICROSECOND,
            now=tx.now,
        )
        > 0
    )


def approve(
    tx: Transaction, code: str, owner: str | None = None, key: str | None = None, greeting: str | None = None
) -> Pairing:
    """Let the person with this code write. `owner` and `key` bind the person to an existing owner and
    session key. The greeting is delivered where the person asked. Raises NotFound for an unknown, used or
    expired code."""
    row = tx.one(Q.pairing_by_code, code_hash=code_hash(code), now=tx.now)
    if row is None:
        raise NotFound("pairing code", code)
    pairing = to_pairing(row)
    owner = check_name("an owner", owner or cut_name(f"{pairing.connector}/{pairing.person}"))
    key = check_name("a key", key or pairing.key)
    if not tx.run(Q.approve_pairing, id=pairing.id, owner=owner, key=key, now=tx.now):
        raise NotFound("pairing code", code)  # used or revoked since it was read
    place = tx.one(Q.chat_place_at, connector=pairing.connector, address=pairing.address)
    if place is None:
        tx.run(
            Q.insert_chat_place,
            id=new_id("place"),
            connector=pairing.connector,
            address=pairing.address,
            kind=PlaceKind.DIRECT.value,
            owner=owner,
            key=key,
            now=tx.now,
        )
        place = tx.one(Q.chat_place_at, connector=pairing.connector, address=pairing.address)
    assert place is not None
    found = to_chat_place(place)
    if (found.owner, found.key) != (owner, key):
        tx.run(Q.own_chat_place, id=found.id, owner=owner, key=key)
        found = _bind(tx, found, None)
    if greeting:
        deliveries.add_answer(tx, place_of(tx, found.id), greeting, None)
    tx.event(EventType.PAIRING_APPROVED, owner, pairing=pairing.id, connector=pairing.connector)
    return pairing_of(tx, pairing.id)


def revoke(tx: Transaction, pairing_id: str) -> Pairing:
    """Refuse a person from now on, whatever was approved before. What they wrote and no turn has yet is
    withdrawn. Their chats belong to no conversation any more: no notice and no message of another place is
    sent there. Idempotent. Raises NotFound."""
    connector = pairing_of(tx, pairing_id).connector
    (kind,) = tx.one(Q.connector_kind, name=connector) or (connector,)
    changed = tx.run(Q.revoke_pairing, id=pairing_id, now=tx.now)
    pairing = pairing_of(tx, pairing_id)
    if changed:
        _shut_out(tx, pairing, kind)
        tx.event(EventType.PAIRING_REVOKED, pairing.owner, pairing=pairing.id, connector=pairing.connector)
    return pairing


def _shut_out(tx: Transaction, pairing: Pairing, kind: str) -> None:
    who = {"connector": pairing.connector, "person": pairing.person}
    tx.erased = True
    tx.run(Q.withdraw_inbox_of_person, **who, now=tx.now)
    own = cut_name(f"{pairing.connector}/{pairing.person}")
    for row in tx.all(Q.chat_places_of_person, **who, address=pairing.address, owner=own):
        place = to_chat_place(row)
        if place.conversation_id is not None:
            _lock(tx, place.conversation_id)
        tx.run(Q.drop_unsent_of_others, place=place.id)
        if place.owner != own:
            tx.run(Q.own_chat_place, id=place.id, owner=own, key=cut_name(f"{kind}:{place.address}"))
        _bind(tx, place, None)


def pairing_of(tx: Transaction, pairing_id: str) -> Pairing:
    """This pairing. Raises NotFound."""
    row = tx.one(Q.pairing_by_id, id=pairing_id)
    if row is None:
        raise NotFound("pairing", pairing_id)
    return to_pairing(row)


def pairings(tx: Transaction, state: PairingState | None = None, *, limit: int = 1000) -> list[Pairing]:
    """People who may write, have asked to, or were refused; the oldest first."""
    check_limit(limit)
    return [to_pairing(row) for row in tx.all(Q.pairings_of, state=state and state.value, limit=limit)]


def _pairing_of(tx: Transaction, connector: str, person: str) -> Pairing | None:
    row = tx.one(Q.pairing_of_person, connector=connector, person=person)
    return None if row is None else to_pairing(row)
