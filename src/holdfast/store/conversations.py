"""Client operations on conversations outside of any turn: create, add messages, set the title, aliases
and metadata, delete.

Adding needs the conversation to be free, like everything that changes its line of sessions; nothing here
waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..domain.conversations import Address, Conversation, check_metadata
from ..domain.events import EventType
from ..domain.ids import check_name, check_text, is_ours
from ..domain.messages import NewMessage, size_of
from ..domain.request_keys import RequestKey
from ..domain.sessions import Session
from ..domain.turns import Lease
from ..errors import BadInput, Conflict, ConversationBusy, LeaseLost, NodeReaped, NotFound, RequestMismatch
from . import processes
from .leases import holds
from .nodes import release_orphaned
from .resets import schedule_reset, session_for, touch
from .resolve import conversation_of, place, session_of
from .rows import ResolvedRow, to_conversation, to_conversation_with_metadata, to_json, to_session_spoken_in
from .sessions import check_quotas, open_conversation, require_node
from .transaction import Q, Transaction
from .values import Page, check_limit


def create(
    tx: Transaction,
    owner: str,
    node_id: str,
    *,
    messages: Sequence[NewMessage] = (),
    metadata: Mapping[str, str] | None = None,
    source: str = "",
    request_key: RequestKey | None = None,
) -> Conversation:
    """A new conversation without a key; its first session is detached and begins with these messages. If a
    request with this `request_key` has created one that still exists: that one. Raises RequestMismatch if
    its body differs."""
    if request_key is not None and (known := _created_by(tx, owner, request_key)) is not None:
        return known
    metadata = check_metadata(metadata or {})
    require_node(tx, node_id)
    held = size_of(messages)
    session = open_conversation(tx, owner, Address(), None, source, copied=len(messages), held=held)
    if metadata:
        tx.run(Q.set_metadata, id=session.conversation_id, owner=owner, metadata=to_json(metadata))
    if messages:
        _store(tx, owner, session.conversation_id, session.id, messages, len(messages))
    if request_key is not None:
        tx.run(
            Q.insert_conversation_request,
            conversation=session.conversation_id,
            owner=owner,
            route=request_key.route,
            key=request_key.key,
            body_hash=request_key.fingerprint,
            now=tx.now,
        )
    return conversation(tx, owner, Address(id=session.conversation_id))


def _created_by(tx: Transaction, owner: str, key: RequestKey) -> Conversation | None:
    row = tx.one(Q.conversation_by_request, owner=owner, route=key.route, key=key.key)
    if row is None:
        return None
    conversation_id, fingerprint = row
    if fingerprint != key.fingerprint:
        raise RequestMismatch(key.key)
    return conversation(tx, owner, Address(id=conversation_id))


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
    return add_beside(tx, owner, conversation_id, node_id, messages, 0)


def add_beside(
    tx: Transaction,
    owner: str,
    conversation_id: str,
    node_id: str,
    messages: Sequence[NewMessage],
    beside: int,
) -> int:
    """`add_messages`; `beside`: bytes of other data that the caller stores with them, which count too."""
    if not messages:
        raise BadInput("there must be at least one message to add")
    require_node(tx, node_id)
    known = freed(tx, owner, conversation_id)
    adds = size_of(messages) + beside
    (held,) = tx.one(Q.conversation_bytes, id=known.id) or (0,)
    check_quotas(tx, owner, adds, known.id, held)
    session = _session_for(tx, known, node_id, messages)
    row = tx.one(Q.add_messages, id=known.id, count=len(messages), bytes=adds)
    assert row is not None  # just checked or made free
    last_seq: int = row[0]
    _store(tx, owner, known.id, session.id, messages, last_seq)
    tx.run(Q.touch_session, id=session.id, now=tx.now, model=None, input_tokens=0, output_tokens=0)
    touch(tx, session.id)
    return last_seq


def add_to_ready(
    tx: Transaction,
    reached: ResolvedRow,
    owner: str,
    node_id: str,
    messages: Sequence[NewMessage],
    *,
    beside: int = 0,
) -> int:
    """`add_beside` for a conversation that was found ready (`is_ready_for`) in this transaction: fewer
    statements, none of which has to be awaited."""
    adds, seen = size_of(messages) + beside, reached.seen
    check_quotas(tx, owner, adds, seen.conversation_id, reached.held)
    if not tx.run(
        Q.number_in_ready,
        id=seen.conversation_id,
        node=node_id,
        last_seq=seen.last_seq,
        count=len(messages),
        bytes=adds,
    ):
        raise NodeReaped(node_id)
    last_seq = seen.last_seq + len(messages)
    _store(tx, owner, seen.conversation_id, reached.tip_id, messages, last_seq)
    touch_ready(tx, reached, len(messages))
    return last_seq


def touch_ready(tx: Transaction, reached: ResolvedRow, added: int = 0) -> None:
    """Record activity now, with so many messages, in the tip of a conversation that was found ready."""
    tx.run(Q.touch_session, id=reached.tip_id, now=tx.now, model=None, input_tokens=0, output_tokens=0)
    if not tx.policies.never:
        schedule_reset(tx, to_session_spoken_in(reached.row, tx.now, None, None, added, None))


def _session_for(
    tx: Transaction, known: Conversation, node_id: str, messages: Sequence[NewMessage]
) -> Session:
    """The open tip, detached if another node writes to it; or the next session of the line."""
    session = session_for(tx, known, session_of(tx, None, known.tip_id), messages, None, "")
    if session.attached and session.node_id != node_id:
        tx.run(Q.detach_session, id=session.id, node=node_id)
        tx.event(EventType.SESSION_DETACHED, session.owner, session.conversation_id, session.id)
    return session


def _store(
    tx: Transaction,
    owner: str,
    conversation_id: str,
    session_id: str,
    messages: Sequence[NewMessage],
    last_seq: int,
) -> None:
    tx.insert_messages(messages, conversation_id, last_seq, session_id, None)
    first = last_seq - len(messages) + 1
    tx.event(EventType.MESSAGES_ADDED, owner, conversation_id, session_id, first=first, last=last_seq)


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


def set_title(tx: Transaction, owner: str | None, conversation_id: str, title: str) -> None:
    """Set a conversation's title. Raises NotFound."""
    check_text("a title", title)
    if tx.one(Q.set_title, id=conversation_id, owner=owner, title=title) is None:
        raise NotFound("conversation", conversation_id)


def suggest_title(tx: Transaction, owner: str, conversation_id: str, title: str) -> bool:
    """Set a conversation's title unless it has one. False: it has, or it was deleted."""
    check_text("a title", title)
    return tx.run(Q.suggest_title, id=conversation_id, owner=owner, title=title) > 0


def add_alias(tx: Transaction, owner: str, alias: str, conversation_id: str) -> None:
    """Add an alias for this conversation. Conflict if the alias is used for another one."""
    check_name("an alias", alias)
    if is_ours(alias):
        raise BadInput(f"{alias!r} has the form of our own ids and cannot be an alias")
    conversation_of(tx, owner, conversation_id)
    row = tx.one(Q.conversation_by_alias, owner=owner, id=alias)
    if row is None:
        tx.run(Q.insert_alias, owner=owner, alias=alias, conversation=conversation_id, now=tx.now)
    elif row[0] != conversation_id:
        raise Conflict(f"the alias {alias!r} already leads to another conversation")


def aliases(tx: Transaction, owner: str | None, conversation_id: str) -> list[str]:
    """The aliases of a conversation, the oldest first. Raises NotFound."""
    conversation_of(tx, owner, conversation_id)
    return [str(row[0]) for row in tx.all(Q.alias_records, conversation=conversation_id)]


def delete_conversation(tx: Transaction, owner: str | None, conversation_id: str) -> int:
    """Cancel running work and delete the conversation completely. Returns its number of messages."""
    conversation = place(tx, owner, Address(id=conversation_id)).conversation
    tx.erased = True
    tx.run(Q.unindex_conversation, conversation=conversation.id)
    processes.forget_conversation(tx, conversation.id)
    tx.run(Q.forget_events, conversation=conversation.id)
    tx.run(Q.forget_side_requests, conversation=conversation.id)
    tx.run(Q.delete_conversation, id=conversation.id)
    tx.event(
        EventType.CONVERSATION_DELETED, conversation.owner, conversation.id, messages=conversation.last_seq
    )
    return conversation.last_seq


def withdraw_refused(tx: Transaction, lease: Lease) -> bool:
    """Delete the conversation that this running turn has begun, with the turn, if nothing else is in it: then
    nothing remains of a request that was refused. False: something is, and nothing was changed. LeaseLost
    writes nothing."""
    if not holds(tx, lease):
        raise LeaseLost(lease.conversation_id, lease.token)
    if tx.one(Q.holds_only_turn, conversation=lease.conversation_id, turn=lease.turn_id) is None:
        return False
    delete_conversation(tx, None, lease.conversation_id)
    return True
