"""The lease of a turn: who waits for it, taking it, and writing under it.

Every statement here names the fencing token. A node that lost its lease changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..domain.conversations import Conversation
from ..domain.messages import NewMessage, size_of
from ..domain.notices import Notice
from ..domain.sessions import Session
from ..domain.turns import (
    Lease,
    Turn,
    TurnRequest,
    TurnWaits,
)
from ..errors import LeaseLost, NodeReaped
from .rows import Row, to_time
from .transaction import Q, Transaction


def waits_for(tx: Transaction, conversation: Conversation, resumed: str | None = None) -> TurnWaits | None:
    """The wait outcome, if a node that is not gone holds this conversation, or if a turn other than `resumed`
    waits in it to be retried."""
    if conversation.holder is None:
        waiting = conversation.turn_id
        if waiting is None or waiting == resumed or tx.one(Q.is_waiting, id=waiting) is None:
            return None
        return TurnWaits(conversation.id, "", waiting)
    if tx.one(Q.holder_is_gone, id=conversation.id) is not None:
        return None
    return TurnWaits(conversation.id, conversation.holder, conversation.turn_id)


def spoken_in(tx: Transaction, request: TurnRequest, session: Session, known: Turn | None = None) -> Session:
    """The session's state once the turn has begun; a resumed turn (`known`) has stored its messages
    before."""
    return replace(
        session,
        last_activity_at=to_time(tx.now),
        last_seq=session.last_seq + (0 if known else len(request.messages)),
        running_turn=known.id if known else request.turn_id,
        running_node=request.node_id,
        model=request.model or session.model,
    )


def take_lease(
    tx: Transaction,
    request: TurnRequest,
    turn_id: str,
    session: Session,
    token: int,
    messages: Sequence[NewMessage] = (),
) -> None:
    changed = tx.run(
        Q.take_lease,
        id=session.conversation_id,
        node=request.node_id,
        turn=turn_id,
        token=token,
        count=len(messages),
        bytes=size_of(messages),
    )
    if not changed:  # the caller has read it as free, under this token, in this same transaction
        raise NodeReaped(request.node_id)


def new_lease(
    request: TurnRequest,
    turn_id: str,
    session: Session,
    token: int,
    notifies: str | None,
    notices: Sequence[Notice],
) -> Lease:
    return Lease(
        session.conversation_id,
        session.id,
        turn_id,
        request.node_id,
        token,
        request.api_key,
        notifies,
        carries_notices=bool(notices),
    )


def write_under(
    tx: Transaction, lease: Lease, statement: str, messages: Sequence[NewMessage], **more: Any
) -> Row:
    """Number and store messages by a statement guarded by the lease; returns its row, which begins with the
    conversation's last seq."""
    row = tx.one(
        statement,
        id=lease.conversation_id,
        token=lease.token,
        node=lease.node_id,
        count=len(messages),
        bytes=size_of(messages),
        **more,
    )
    if row is None:
        raise LeaseLost(lease.conversation_id, lease.token)
    tx.insert_messages(messages, lease.conversation_id, row[0], lease.session_id, lease.turn_id)
    return row


def holds(tx: Transaction, lease: Lease) -> bool:
    """True: this lease is still the conversation's."""
    row = tx.one(Q.holds_lease, conversation=lease.conversation_id, token=lease.token, node=lease.node_id)
    return row is not None
