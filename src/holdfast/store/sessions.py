"""Transactions that open, end and resume sessions. `session_lists` reads them."""

from __future__ import annotations

from datetime import datetime

from ..domain.conversations import Address, Conversation
from ..domain.events import EventType
from ..domain.ids import check_name, new_id, source_of_key
from ..domain.resets import due
from ..domain.sessions import Edge, EndReason, Opening, Session, check_end, opening_from
from ..domain.turns import TurnRequest, TurnStatus
from ..domain.views import View
from ..errors import ConversationBusy, NodeReaped
from . import flushes
from .resolve import conversation_of, session_of
from .rows import to_stamp, to_time, to_time_or_none, to_turn
from .transaction import Q, Transaction
from .turn_ends import end_waiting, withdraw_queue


def require_node(tx: Transaction, node_id: str) -> None:
    if tx.one(Q.node_is_present, id=node_id) is None:
        raise NodeReaped(node_id)


def check_quotas(
    tx: Transaction, owner: str, added: int, conversation_id: str | None = None, used: int = 0
) -> None:
    """Raises QuotaExceeded if `added` bytes may not be stored; without a `conversation_id`: in a new one.

    Exact for a conversation on both engines: its row is locked, or there is one writer. Exact for an owner on
    SQLite, where one transaction writes at a time. On PostgreSQL, turns of one owner that begin at the same
    moment in different conversations do not see each other, so together they may exceed the owner's limit; a
    lock per owner would make them wait for each other.
    """
    quotas = tx.quotas
    quotas.check_conversation(conversation_id, used, added)
    if conversation_id is None and quotas.owner_conversations:
        (count,) = tx.one(Q.owner_conversations, owner=owner) or (0,)
        quotas.check_owner_conversations(owner, count)
    if quotas.owner_bytes:
        (held,) = tx.one(Q.owner_bytes, owner=owner) or (0,)
        quotas.check_owner_bytes(owner, held, added)


def open_conversation(
    tx: Transaction,
    owner: str,
    address: Address,
    node_id: str | None,
    source: str,
    *,
    forked_from: Session | None = None,
    view: View | None = None,
    copied: int = 0,
    held: int = 0,
    adds: int = 0,
    edge: Edge | None = None,
    anonymous: bool = False,
    begins: TurnRequest | None = None,
) -> Session:
    """Insert a conversation and its first session, attached to `node_id` if given. `copied` messages, of
    `held` bytes, are stored next, and `adds` bytes by a turn that begins in it. `begins`: the turn that
    begins now; its lease is taken with token 1 and its messages are counted, but not stored. Raises
    QuotaExceeded or NodeReaped, having changed nothing."""
    check_quotas(tx, owner, held + adds)
    check_name("an owner", owner)
    if begins is not None:
        require_node(tx, begins.node_id)
        copied, held = len(begins.messages), adds
    conversation_id, session_id = new_id("conv"), new_id("sess")
    source = check_name("a source", source or source_of_key(address.key))
    tx.run(
        Q.insert_conversation,
        id=conversation_id,
        owner=owner,
        key=address.key,
        title=forked_from.title if forked_from and edge is not Edge.SUBAGENT else None,
        source=source,
        tip=session_id,
        last_seq=copied,
        bytes=held,
        forked_from=forked_from.id if forked_from else None,
        anonymous=anonymous,
        now=tx.now,
        token=1 if begins else 0,
        holder=begins.node_id if begins else None,
        turn=begins.turn_id if begins else None,
    )
    if address.id is not None:
        tx.run(Q.insert_alias, owner=owner, alias=address.id, conversation=conversation_id, now=tx.now)
    if forked_from is None or edge is Edge.SUBAGENT:
        tx.event(EventType.CONVERSATION_OPENED, owner, conversation_id, key=address.key, source=source)
    opening = Opening(edge, forked_from.id if forked_from else None, view or View.fresh(0))
    model = begins.model if begins else None
    due_at = _insert_session(
        tx, session_id, conversation_id, owner, 1, opening, node_id, source, 1, model=model
    )
    if begins is None or node_id is not None or forked_from is not None:
        return session_of(tx, owner, session_id)
    now = to_time(tx.now)
    return Session(  # as `session_of` would read it
        session_id,
        conversation_id,
        owner,
        address.key,
        None,
        source,
        attached=False,
        node_id=None,
        edge=None,
        parent_id=None,
        tip_id=session_id,
        ordinal=1,
        opened_at=now,
        last_activity_at=now,
        next_due_at=to_time_or_none(due_at),
        ended_at=None,
        end_reason=None,
        model=model,
        view=opening.view,
        first_seq=1,
        last_seq=copied,
        running_turn=begins.turn_id,
        running_node=begins.node_id,
        fresh_since=now,
    )


def insert_alias(tx: Transaction, owner: str, alias: str, conversation_id: str) -> None:
    """Give a conversation a further name, unless another one of this owner has it."""
    alias = check_name("an alias", alias)
    tx.run(Q.insert_free_alias, owner=owner, alias=alias, conversation=conversation_id, now=tx.now)


def continue_conversation(
    tx: Transaction,
    conversation: Conversation,
    opening: Opening,
    node_id: str | None,
    source: str,
    *,
    fresh_by: str | None = None,
    on_purpose: bool = False,
) -> Session:
    """Open the next session of a conversation's line: fresh after a reset, or continued, `on_purpose` or
    because of a new message."""
    session_id = new_id("sess")
    row = tx.one(Q.newest_ordinal, conversation=conversation.id)
    assert row is not None
    goes_on = opening.edge in (Edge.RESUME, Edge.COMPACTION) and opening.parent_id is not None
    before = session_of(tx, None, opening.parent_id) if goes_on and opening.parent_id else None
    _insert_session(
        tx,
        session_id,
        conversation.id,
        conversation.owner,
        row[0] + 1,
        opening,
        node_id,
        source,
        conversation.last_seq + 1,
        before=before,
        since=to_time(tx.now) if before is None or on_purpose else before.since,
        fresh_by=fresh_by,
    )
    tx.run(Q.set_tip, id=conversation.id, tip=session_id)
    if before is not None and opening.edge is not None:
        flushes.carry_on(tx, before, session_id, opening.edge)
    return session_of(tx, None, session_id)


def _insert_session(
    tx: Transaction,
    session_id: str,
    conversation_id: str,
    owner: str,
    ordinal: int,
    opening: Opening,
    node_id: str | None,
    source: str,
    first_seq: int,
    *,
    before: Session | None = None,
    since: datetime | None = None,
    fresh_by: str | None = None,
    model: str | None = None,
) -> int | None:
    """Insert a session; returns when it is due to be reset."""
    # Continuing is not activity: the reset timer is unchanged.
    last_activity_at = to_stamp(before.last_activity_at) if before else tx.now
    since = since or to_time(tx.now)
    due_at = next_due(tx, source, since, to_time(last_activity_at))
    tx.run(
        Q.insert_session,
        id=session_id,
        conversation=conversation_id,
        owner=owner,
        ordinal=ordinal,
        edge=opening.edge.value if opening.edge else None,
        parent=opening.parent_id,
        source=source,
        attached=node_id is not None,
        node=node_id,
        now=tx.now,
        last_activity_at=last_activity_at,
        next_due_at=due_at,
        dated_by=tx.policies.stamp,
        fresh_by=fresh_by,
        fresh_since=to_stamp(since),
        first_seq=first_seq,
        view=opening.view.encode(),
        model=model,
    )
    tx.event(
        EventType.SESSION_OPENED,
        owner,
        conversation_id,
        session_id,
        edge=opening.edge.value if opening.edge else None,
        parent=opening.parent_id,
        attached=node_id is not None,
        source=source,
        reset=fresh_by,
    )
    return due_at


def next_due(tx: Transaction, source: str, since: datetime, last_activity_at: datetime) -> int | None:
    """The stamp at which a session with these dates is to be reset; None: never."""
    policy = tx.policies.of(source)
    wanted = None if policy.never else due(policy, since, last_activity_at)
    return to_stamp(wanted.at) if wanted else None


def write_end(tx: Transaction, session: Session, reason: str) -> None:
    """End an open session, with its event and flush. The caller has checked that no other turn holds it."""
    check_end(session, reason)
    tx.run(Q.end_session, id=session.id, reason=reason, now=tx.now)
    flushes.schedule(tx, session, reason)
    tx.event(EventType.SESSION_ENDED, session.owner, session.conversation_id, session.id, reason=reason)


def end_session(tx: Transaction, owner: str | None, session_id: str, reason: str) -> bool:
    """End an open session; False if it had already ended. ConversationBusy while a turn holds it."""
    session = session_of(tx, owner, session_id)
    if session.ended:
        return False
    check_end(session, reason)
    conversation = conversation_of(tx, owner, session.conversation_id)
    if conversation.holder is None:
        withdraw_waiting(tx, conversation, "its session was ended")
    else:
        require_free(conversation)
    withdraw_queue(tx, conversation.id, "its session was ended")
    write_end(tx, session, reason)
    return True


def withdraw_waiting(tx: Transaction, conversation: Conversation, why: str) -> None:
    """Withdraw the turn that waits in this conversation to be retried, if one does."""
    row = tx.one(Q.turn_by_id, id=conversation.turn_id, owner=None) if conversation.turn_id else None
    turn = to_turn(row) if row is not None else None
    if turn is not None and turn.waits:
        end_waiting(tx, turn, TurnStatus.INTERRUPTED, why)


def require_free(conversation: Conversation) -> None:
    """Raise while a turn holds the conversation, or waits in it: its line of sessions must not change
    then."""
    if conversation.holder is not None or conversation.turn_id is not None:
        raise ConversationBusy(conversation.id, conversation.holder, conversation.turn_id)


def resume_session(
    tx: Transaction, owner: str, session_id: str, node_id: str, *, attached: bool = False
) -> Session:
    """Resume that exact session: an open tip ends as `new`, and a session with its view opens."""
    require_node(tx, node_id)
    session = session_of(tx, owner, session_id)
    conversation = conversation_of(tx, owner, session.conversation_id)
    if session.id == conversation.tip_id and not session.ended:
        return session
    require_free(conversation)
    tip = session_of(tx, owner, conversation.tip_id)
    if not tip.ended:
        write_end(tx, tip, EndReason.NEW)
    opening = opening_from(session, conversation.last_seq)
    attached_to = node_id if attached else None
    return continue_conversation(tx, conversation, opening, attached_to, session.source, on_purpose=True)
