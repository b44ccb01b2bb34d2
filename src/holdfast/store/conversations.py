"""Client operations on conversations outside of any turn: create, add messages, set metadata, delete a part
of a message.

Adding needs the conversation to be free, like everything that changes its line of sessions; nothing here
waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..domain.conversations import Address, Conversation, check_metadata
from ..domain.events import EventType
from ..domain.messages import NewMessage, size_of
from ..domain.sessions import Session
from ..errors import BadInput, ConversationBusy, NodeReaped, NotFound
from .resets import schedule_reset, touch
from .resolve import ResolvedRow, conversation_of, place, session_of
from .rows import to_conversation, to_conversation_with_metadata, to_json, to_session_spoken_in
from .sessions import check_quotas, open_conversation, release_orphaned, require_node
from .transaction import Q, Transaction
from .turns import session_for
from .values import Page, check_limit


def create(
    tx: Transaction,
    owner: str,
    node_id: str,
    *,
    messages: Sequence[NewMessage] = (),
    metadata: Mapping[str, str] | None = None,
    source: str = "",
) -> Conversation:
    """A new conversation without a key; its first session is detached and begins with these messages."""
    metadata = check_metadata(metadata or {})
    require_node(tx, node_id)
    held = size_of(messages)
    session = open_conversation(tx, owner, Address(), None, source, copied=len(messages), held=held)
    if metadata:
        tx.run(Q.set_metadata, id=session.conversation_id, owner=owner, metadata=to_json(metadata))
    if messages:
        _store(tx, session, messages, len(messages))
    return conversation(tx, owner, Address(id=session.conversation_id))


def freed(tx: Transaction, owner: str, conversation_id: str) -> Conversation:
    """The conversation, locked, without the turn of a node that is gone. ConversationBusy while a turn of a
    living node holds it, or a turn waits in it to be retried."""
    known = conversation_of(tx, owner, conversation_id)
    if known.holder is not None:
        if tx.one(Q.holder_is_gone, id=known.id) is None:
            raise ConversationBusy(known.id, known.holder, known.turn_id)
        release_orphaned(tx, known.id)
        known = conversation_of(tx, owner, known.id)
    if known.turn_id is not None and tx.one(Q.is_waiting, id=known.turn_id):
        raise ConversationBusy(known.id, None, known.turn_id)
    return known


def add_messages(
    tx: Transaction, owner: str, conversation_id: str, node_id: str, messages: Sequence[NewMessage]
) -> int:
    """Append a client's messages outside of any turn, to the session that the next message goes to;
    returns the last seq. Counts as activity. ConversationBusy, having written nothing, while a turn holds
    the conversation."""
    if not messages:
        raise BadInput("there must be at least one message to add")
    require_node(tx, node_id)
    known = freed(tx, owner, conversation_id)
    adds = size_of(messages)
    (held,) = tx.one(Q.conversation_bytes, id=known.id) or (0,)
    check_quotas(tx, owner, adds, known.id, held)
    session = _session_for(tx, known, node_id, messages)
    row = tx.one(Q.add_messages, id=known.id, count=len(messages), bytes=adds)
    assert row is not None  # just checked or made free
    last_seq: int = row[0]
    _store(tx, session, messages, last_seq)
    tx.run(Q.touch_session, id=session.id, now=tx.now, model=None, input_tokens=0, output_tokens=0)
    touch(tx, session.id)
    return last_seq


def add_to_ready(
    tx: Transaction, reached: ResolvedRow, owner: str, node_id: str, messages: Sequence[NewMessage]
) -> int:
    """The same for a conversation that was found ready (`is_ready_for`) in this transaction: fewer
    statements, none of which has to be awaited."""
    adds, seen = size_of(messages), reached.seen
    check_quotas(tx, owner, adds, seen.conversation_id, reached.held)
    session = to_session_spoken_in(reached.row, tx.now, None, None, len(messages), None)
    if not tx.run(
        Q.number_in_ready,
        id=seen.conversation_id,
        node=node_id,
        last_seq=seen.last_seq,
        count=len(messages),
        bytes=adds,
    ):
        raise NodeReaped(node_id)
    _store(tx, session, messages, seen.last_seq + len(messages))
    _touch(tx, session)
    return seen.last_seq + len(messages)


def touch_ready(tx: Transaction, reached: ResolvedRow) -> None:
    """Record activity now in the tip of a conversation that was found ready."""
    _touch(tx, to_session_spoken_in(reached.row, tx.now, None, None, 0, None))


def _touch(tx: Transaction, session: Session) -> None:
    """The same for a session whose value already has it."""
    tx.run(Q.touch_session, id=session.id, now=tx.now, model=None, input_tokens=0, output_tokens=0)
    if not tx.policies.never:
        schedule_reset(tx, session)


def _session_for(
    tx: Transaction, known: Conversation, node_id: str, messages: Sequence[NewMessage]
) -> Session:
    """The open tip, detached if another node writes to it; or the next session of the line."""
    session = session_for(tx, known, session_of(tx, None, known.tip_id), messages, None, "")
    if session.attached and session.node_id != node_id:
        tx.run(Q.detach_session, id=session.id, node=node_id)
        tx.event(EventType.SESSION_DETACHED, session.owner, session.conversation_id, session.id)
    return session


def _store(tx: Transaction, session: Session, messages: Sequence[NewMessage], last_seq: int) -> None:
    tx.insert_messages(messages, session.conversation_id, last_seq, session.id, None)
    tx.event(
        EventType.MESSAGES_ADDED,
        session.owner,
        session.conversation_id,
        session.id,
        first=last_seq - len(messages) + 1,
        last=last_seq,
    )


def set_metadata(
    tx: Transaction, owner: str | None, conversation_id: str, metadata: Mapping[str, str]
) -> None:
    """Replace a conversation's metadata."""
    noted = to_json(check_metadata(metadata)) if metadata else None
    if tx.one(Q.set_metadata, id=conversation_id, owner=owner, metadata=noted) is None:
        raise NotFound("conversation", conversation_id)


_ABOVE_ALL = 2**62


def conversation(tx: Transaction, owner: str | None, address: Address) -> Conversation:
    """The conversation that a name resolves to, with its metadata. Opens nothing."""
    row = tx.one(Q.conversation_with_metadata, id=place(tx, owner, address).conversation.id)
    assert row is not None  # read before in this same snapshot
    return to_conversation_with_metadata(row)


def page(
    tx: Transaction, owner: str | None, *, after: str | None = None, limit: int = 20
) -> Page[Conversation]:
    """A page of conversations with their metadata, the newest first, after the conversation `after`."""
    check_limit(limit)
    below = _ABOVE_ALL
    if after is not None:
        first = tx.one(Q.first_session, conversation=after, owner=owner)
        if first is None:
            raise NotFound("conversation", after)
        (below,) = first
    if owner is None:
        rows = tx.all(Q.conversations_of_all, below=below, limit=limit + 1)
    else:
        rows = tx.all(Q.conversations_of_owner, owner=owner, below=below, limit=limit + 1)
    return Page([to_conversation_with_metadata(row) for row in rows[:limit]], len(rows) > limit)


def with_history(
    tx: Transaction, owner: str, history: bytes, *, forked_from: str | None = None
) -> list[Conversation]:
    """Free conversations whose whole visible history has this fingerprint chain, two at most: among those
    begun without a name, or among the forks of `forked_from`."""
    if forked_from is None:
        rows = tx.all(Q.conversations_with_history, owner=owner, history=history)
    else:
        rows = tx.all(Q.forks_with_history, owner=owner, history=history, conversation=forked_from)
    return [to_conversation(row) for row in rows]
