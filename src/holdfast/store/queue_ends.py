"""Ends queued turns that never begin: withdrawn, or joined to another turn."""

from __future__ import annotations

from ..domain.events import EventType
from ..domain.turns import Turn, TurnStatus, check_step
from .deliveries import add_response_event
from .rows import to_turn
from .transaction import Q, Transaction


def end_queued(
    tx: Transaction,
    turn: Turn,
    status: TurnStatus,
    why: str,
    joined: str | None = None,
    first_seq: int = 0,
) -> None:
    """Take a queued turn out of its queue. `joined`: the turn that its messages have joined, from `first_seq`
    on."""
    check_step(turn.id, turn.status, status)
    tx.run(
        Q.end_queued_turn,
        id=turn.id,
        status=status.value,
        why=why,
        joined=joined,
        first_seq=first_seq,
        now=tx.now,
    )
    tx.run(Q.drop_queued, turn=turn.id)
    tx.run(Q.count_queued, id=turn.conversation_id, more=-1)
    where = (turn.owner, turn.conversation_id, turn.session_id, turn.id)
    if joined is not None:
        tx.run(Q.join_inbox, turn=turn.id, joined=joined)
        tx.run(Q.join_attachments, turn=turn.id, joined=joined)
        tx.event(EventType.TURN_JOINED, *where, joined=joined)
        return
    if turn.response_id is not None:
        add_response_event(tx, turn.response_id, status)
    if status is TurnStatus.FAILED:
        tx.event(EventType.TURN_FAILED, *where, code="not_begun")
    else:
        tx.event(EventType.TURN_CANCELLED, *where, seq=None, why=why)


def withdraw_queue(tx: Transaction, conversation_id: str, why: str) -> int:
    """Withdraw every queued turn of a conversation; returns how many."""
    rows = tx.all(Q.queue_of, conversation=conversation_id)
    for turn_id, *_ in rows:
        row = tx.one(Q.turn_by_id, id=turn_id, owner=None)
        assert row is not None
        end_queued(tx, to_turn(row), TurnStatus.CANCELLED, why)
    return len(rows)
