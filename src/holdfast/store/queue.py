"""Queued turns: accepted while their conversation is busy, begun in order when it is free.

A queued turn is a row of `turns` with its stored request; its messages are kept beside it and get numbers
when it begins. All of it is written by one transaction, so it survives a crash, and any server begins it. A
turn that would begin in a conversation with a queue waits for the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ..domain.conversations import Address
from ..domain.events import EventType
from ..domain.messages import NewMessage, size_of
from ..domain.new_messages import new_message
from ..domain.queue import QueuedTurn, Steered
from ..domain.turns import (
    Lease,
    Turn,
    TurnOutcome,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
)
from ..errors import BadInput, Conflict, NotFound, QueueFull
from .leases import spoken_in, waits_for
from .nodes import release_orphaned
from .request_keys import insert_key, known_request
from .resets import session_for_turn
from .resolve import conversation_of, lookup, session_of
from .responses import insert_response
from .rows import Row, to_turn
from .sessions import check_quotas, insert_alias, require_node
from .transaction import Q, Transaction
from .turn_ends import end_queued, withdraw_queue
from .turns import append, start

MOST_LISTED = 1000


def enqueue(tx: Transaction, request: TurnRequest, *, most: int, steers: bool = False) -> QueuedTurn | None:
    """Store a request as a queued turn of its conversation, the last in order. None, having written nothing,
    if it need not wait (the conversation is free, or unknown) or is known already: then begin it.

    Raises QueueFull if `most` turns are queued there, and what `begin_turn` raises.
    """
    if not request.messages or request.branch is not None or request.regenerates:
        raise BadInput("only a request that adds messages to a conversation can be queued")
    require_node(tx, request.node_id)
    if isinstance(known_request(tx, request), Turn):
        return None
    reached = lookup(tx, request.owner, request.address)
    if reached is None:
        return None
    place = reached.place()
    conversation = place.conversation
    waits = waits_for(tx, conversation)
    queue = tx.all(Q.queue_of, conversation=conversation.id)
    if waits is None and not queue:
        return None
    if len(queue) >= most:
        raise QueueFull(conversation.id, most)
    _check_quotas(tx, request.owner, conversation.id, queue, request.messages, reached.held)
    behind = queue[-1][0] if queue else waits.turn_id if waits else None
    tx.run(
        Q.insert_queued_turn,
        id=request.turn_id,
        conversation=conversation.id,
        session=place.tip.id,
        owner=request.owner,
        node=request.node_id,
        model=request.model,
        response_id=request.response.id if request.response else None,
        delivery=request.delivery,
        stored=request.stored.request,
        origin=request.stored.origin.value,
        recover=request.stored.recover,
        why=f"It is queued after turn {behind}." if behind else "It is queued.",
        now=tx.now,
    )
    tx.run(
        Q.insert_queued,
        turn=request.turn_id,
        steers=int(steers),
        source=request.source,
        messages=_encoded(request.messages),
    )
    tx.run(Q.count_queued, id=conversation.id, more=1)
    insert_key(tx, request)
    if request.alias is not None:
        insert_alias(tx, request.owner, request.alias, conversation.id)
    if request.response is not None:
        insert_response(tx, request, request.response)
    position = len(queue) + 1
    tx.event(
        EventType.TURN_QUEUED,
        request.owner,
        conversation.id,
        place.tip.id,
        request.turn_id,
        position=position,
        behind=behind,
    )
    turn = _turn(tx, request.owner, request.turn_id)
    return QueuedTurn(turn, request.messages, position, steers, behind)


def _check_quotas(
    tx: Transaction,
    owner: str,
    conversation_id: str,
    queue: Sequence[Row],
    messages: Sequence[NewMessage],
    held: int,
    edits: str | None = None,
) -> None:
    """Raises QuotaExceeded if these messages may not be queued, beside what is stored and queued already,
    `edits` excepted: what is queued is stored later without a check."""
    sizes = {turn_id: len(stored) for turn_id, _, _, stored in queue}
    replaced = sizes.pop(edits, 0) if edits is not None else 0
    check_quotas(tx, owner, size_of(messages), conversation_id, held + sum(sizes.values()))
    if tx.quotas.owner_bytes:
        (stored,) = tx.one(Q.owner_bytes, owner=owner) or (0,)
        (queued,) = tx.one(Q.queued_bytes, owner=owner) or (0,)
        tx.quotas.check_owner_bytes(owner, stored + queued - replaced, size_of(messages))


def begin_queued(tx: Transaction, request: TurnRequest) -> TurnOutcome:
    """Begin the queued turn `request.turn_id` if it is the first of its queue and its conversation is free;
    with `collects`, the messages of the turns queued after it join it. TurnWaits: not yet. TurnRepeated: it
    has begun, has joined another turn (which is returned), or was withdrawn."""
    turn = _turn(tx, request.owner, request.turn_id)
    if turn.status is not TurnStatus.QUEUED:
        turn = joined_to(tx, turn)
        return TurnRepeated(turn, session_of(tx, None, turn.session_id))
    reached = lookup(tx, request.owner, Address(id=turn.conversation_id))
    assert reached is not None
    place = reached.place()
    waits = waits_for(tx, place.conversation)
    if waits is not None:
        return waits
    queue = tx.all(Q.queue_of, conversation=turn.conversation_id)
    if queue[0][0] != turn.id:
        return TurnWaits(turn.conversation_id, "", queue[0][0])
    if release_orphaned(tx, turn.conversation_id):
        reached = lookup(tx, request.owner, Address(id=turn.conversation_id))
        assert reached is not None
        place = reached.place()
        if waits := waits_for(tx, place.conversation):  # the orphaned turn is covered: it comes first
            return waits
    joining = _joining(tx, turn, queue[1:]) if request.collects else []
    messages = tuple(
        message for row in (queue[0], *(row for _, row in joining)) for message in _decoded(row[3])
    )
    request = replace(
        request, messages=messages, source=queue[0][2], model=turn.model, request_key=None, response=None
    )
    session = session_for_turn(tx, request, place.conversation, place.tip)
    begun = start(tx, request, spoken_in(tx, request, session), place.conversation.token, None, None)
    tx.run(Q.drop_queued, turn=turn.id)
    tx.run(Q.count_queued, id=turn.conversation_id, more=-1)
    for other, _ in joining:
        end_queued(tx, other, TurnStatus.COMPLETED, f"Its messages joined turn {turn.id}.", turn.id)
    if turn.response_id is not None:
        tx.run(Q.set_brought, id=turn.response_id, more=len(messages))
    lease = replace(begun.lease, notifies=turn.response_id)
    return replace(begun, turn=_turn(tx, request.owner, turn.id), lease=lease)


def _joining(tx: Transaction, first: Turn, rows: Sequence[Row]) -> list[tuple[Turn, Row]]:
    """The queued turns right after `first` whose messages it can take: of the same model. A response has its
    own object, so its turn neither joins another nor takes others in."""
    found: list[tuple[Turn, Row]] = []
    for row in rows:
        turn = _turn(tx, None, row[0])
        if turn.model != first.model or turn.response_id or first.response_id:
            break
        found.append((turn, row))
    return found


def has_steering(tx: Transaction, conversation_id: str) -> bool:
    """True: queued messages may join the running turn of this conversation."""
    return bool(tx.all(Q.steering_turns, conversation=conversation_id))


def take_steering(tx: Transaction, lease: Lease) -> Steered | None:
    """Append the messages of queued turns that steer to the running turn, in order; None: there are none.
    Those turns have ended as joined. LeaseLost writes nothing."""
    conversation_of(tx, None, lease.conversation_id)
    rows = tx.all(Q.steering_turns, conversation=lease.conversation_id)
    if not rows:
        return None
    joining = [(_turn(tx, None, turn_id), _decoded(stored)) for turn_id, stored in rows]
    messages = [message for _, brought in joining for message in brought]
    last_seq = append(tx, lease, messages)
    tx.run(Q.touch_revision, id=lease.conversation_id)
    first_seq = last_seq - len(messages) + 1
    for turn, brought in joining:
        why = f"Its messages joined turn {lease.turn_id}."
        end_queued(tx, turn, TurnStatus.COMPLETED, why, lease.turn_id, first_seq)
        first_seq += len(brought)
    return Steered(tuple(row[0] for row in rows), last_seq)


def withdraw(
    tx: Transaction,
    owner: str | None,
    turn_id: str,
    why: str,
    *,
    status: TurnStatus = TurnStatus.CANCELLED,
) -> bool:
    """Take a turn out of its queue; it ends as cancelled, or failed. False if it is not queued (any more).
    Raises NotFound."""
    turn = _turn(tx, owner, turn_id)
    if turn.status is not TurnStatus.QUEUED:
        return False
    end_queued(tx, turn, status, why)
    return True


def withdraw_all(tx: Transaction, owner: str | None, conversation_id: str, why: str) -> int:
    """Withdraw every queued turn of this conversation; returns how many. Raises NotFound."""
    conversation_of(tx, owner, conversation_id)
    return withdraw_queue(tx, conversation_id, why)


def edit(tx: Transaction, owner: str | None, turn_id: str, messages: Sequence[NewMessage]) -> QueuedTurn:
    """Replace the messages of a queued turn; it keeps its place. Raises Conflict, having changed nothing, if
    it is not queued (any more), and NotFound."""
    if not messages:
        raise BadInput("a turn needs at least one message")
    turn = _turn(tx, owner, turn_id)
    if turn.status is not TurnStatus.QUEUED:
        raise Conflict(f"turn {turn_id} is {turn.status.value}; only a queued turn can be edited")
    (held,) = tx.one(Q.conversation_bytes, id=turn.conversation_id) or (0,)
    queue = tx.all(Q.queue_of, conversation=turn.conversation_id)
    _check_quotas(tx, turn.owner, turn.conversation_id, queue, messages, held, edits=turn_id)
    tx.erased = True
    tx.run(Q.edit_queued, turn=turn_id, messages=_encoded(messages))
    if turn.response_id is not None:
        tx.run(Q.set_brought, id=turn.response_id, more=len(messages))
    tx.event(EventType.TURN_EDITED, turn.owner, turn.conversation_id, turn.session_id, turn.id)
    return next(each for each in queue_of(tx, owner, turn.conversation_id) if each.turn.id == turn_id)


def queue_of(tx: Transaction, owner: str | None, conversation_id: str) -> list[QueuedTurn]:
    """The queued turns of a conversation, in order. Raises NotFound."""
    conversation = conversation_of(tx, owner, conversation_id)
    found: list[QueuedTurn] = []
    behind = conversation.turn_id
    for turn_id, steers, _, stored in tx.all(Q.queue_of, conversation=conversation_id):
        turn = _turn(tx, None, turn_id)
        found.append(QueuedTurn(turn, _decoded(stored), len(found) + 1, bool(steers), behind))
        behind = turn_id
    return found


def heads(tx: Transaction, *, limit: int = 100) -> list[Turn]:
    """Queued turns that can begin now: the first of each conversation that is free, the oldest of each owner
    before the next of any. Cost depends on what is queued."""
    return [_turn(tx, None, row[0]) for row in tx.all(Q.queue_heads, limit=limit)]


def count(tx: Transaction) -> int:
    """How many turns are queued, in all conversations."""
    (number,) = tx.one(Q.count_all_queued) or (0,)
    return int(number)


def all_queued(tx: Transaction, owner: str | None, *, limit: int = MOST_LISTED) -> list[Turn]:
    """Queued turns of all conversations, the oldest first."""
    return [to_turn(row) for row in tx.all(Q.queued_turns, owner=owner, limit=limit)]


def joined_to(tx: Transaction, turn: Turn) -> Turn:
    """The turn that this one's messages joined, or itself."""
    return turn if turn.joined is None else _turn(tx, None, turn.joined)


def _turn(tx: Transaction, owner: str | None, turn_id: str) -> Turn:
    row = tx.one(Q.turn_by_id, id=turn_id, owner=owner)
    if row is None:
        raise NotFound("turn", turn_id)
    return to_turn(row)


def _encoded(messages: Sequence[NewMessage]) -> bytes:
    return msgspec.json.encode([msgspec.Raw(message.body) for message in messages])


def _decoded(stored: bytes) -> tuple[NewMessage, ...]:
    values: list[Any] = msgspec.json.decode(stored)
    return tuple(new_message(value) for value in values)
