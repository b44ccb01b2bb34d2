"""Forks: conversations that begin with a copy of a session's context and of its files."""

from __future__ import annotations

from ..domain.conversations import Address
from ..domain.events import EventType
from ..domain.ids import new_id
from ..domain.sessions import Edge, Session
from ..domain.views import View, plan_copy
from ..errors import BadInput, Conflict
from .resolve import conversation_of, find, session_of
from .rows import to_session
from .sessions import open_conversation, require_node
from .transaction import Q, Transaction


def fork(
    tx: Transaction,
    owner: str,
    session_id: str,
    node_id: str,
    *,
    up_to: int | None = None,
    key: str | None = None,
    attached: bool = False,
) -> Session:
    """Open a new conversation that begins with a copy of that session's context (up to a seq)."""
    return fork_for(tx, owner, session_id, node_id, up_to, key, attached, adds=0)


def fork_for(
    tx: Transaction,
    owner: str,
    session_id: str,
    node_id: str,
    up_to: int | None,
    key: str | None,
    attached: bool,
    *,
    adds: int,
) -> Session:
    """The same, for messages of `adds` bytes that this transaction stores next: they count for its quota."""
    require_node(tx, node_id)
    source = session_of(tx, owner, session_id)
    last_seq = source.last_seq if up_to is None else up_to
    if not 0 <= last_seq <= source.last_seq:
        raise BadInput(f"cannot fork at message {up_to}: {session_id} has messages up to {source.last_seq}")
    if up_to is not None and tx.one(Q.is_rewound, conversation=source.conversation_id, seq=up_to):
        raise Conflict(
            f"message {up_to} of {session_id} was left by a rewind; rewind to it first, or fork elsewhere"
        )
    if last_seq < source.last_seq:
        conversation_id, end = source.conversation_id, source.last_seq
        row = tx.one(Q.last_own_result, conversation=conversation_id, seq=last_seq, last=end)
        assert row is not None
        last_seq = row[0]
    address = Address(key=key)
    if key is not None and find(tx, owner, address) is not None:
        raise Conflict(f"the key {key!r} already leads to a conversation; fork to another key or to none")

    def counted(first: int, last: int) -> tuple[int, int]:
        row = tx.one(Q.count_copied, conversation=source.conversation_id, first=first, last=last)
        return (int(row[0]), int(row[1])) if row else (0, 0)

    copy = plan_copy(view_at(tx, source, last_seq), last_seq, lambda first, last: counted(first, last)[0])
    spans = [counted(first, last) for first, last in copy.ranges]
    files = {
        file: (size, origin)
        for first, last in copy.ranges
        for file, size, origin in tx.all(
            Q.files_of_span, conversation=source.conversation_id, first=first, last=last
        )
    }
    copied = sum(count for count, _ in spans)
    held = sum(size for _, size in spans) + sum(size for size, _ in files.values())
    opened = open_conversation(
        tx,
        owner,
        address,
        node_id if attached else None,
        source.source,
        forked_from=source,
        view=copy.view,
        copied=copied,
        held=held,
        adds=adds,
        edge=Edge.FORK,
    )
    offset = 0
    for first, last in copy.ranges:
        offset += tx.run(
            Q.copy_messages,
            target=opened.conversation_id,
            session=opened.id,
            conversation=source.conversation_id,
            first=first,
            last=last,
            offset=offset,
        )
    for file, (_, origin) in files.items():
        conversation_id, id_ = opened.conversation_id, new_id("att")
        tx.run(Q.copy_attachment, id=id_, conversation=conversation_id, origin=origin, copied=file)
    tx.event(
        EventType.CONVERSATION_FORKED,
        owner,
        opened.conversation_id,
        opened.id,
        source=source.id,
        messages=copied,
    )
    return opened


def view_at(tx: Transaction, session: Session, last_seq: int) -> View:
    """A session's view up to this message; if that is inside a compacted part, the view before the
    compaction."""
    while session.edge is Edge.COMPACTION and session.parent_id and session.view.tells_beyond(last_seq):
        session = session_of(tx, None, session.parent_id)
    return session.view


def forks(tx: Transaction, owner: str | None, conversation_id: str) -> list[Session]:
    """The first sessions of conversations that were forked from this one."""
    conversation_of(tx, owner, conversation_id)
    rows = tx.all(Q.forks_of_conversation, conversation=conversation_id, owner=owner)
    return [to_session(row) for row in rows]
