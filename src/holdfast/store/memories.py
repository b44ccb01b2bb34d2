"""The transactions of memories: add, edit, forget; and their pages."""

from __future__ import annotations

from ..domain.conversations import Address
from ..domain.events import EventType
from ..domain.ids import new_id
from ..domain.memories import Memory, MemoryOrigin, check_memory, holds
from ..errors import BadInput, NotFound
from .resolve import conversation_of, find
from .rows import Row, to_time, to_time_or_none
from .transaction import Q, Transaction
from .values import Page, check_limit

NEWEST = 2**62
LOOKED_AT_ONCE = 500


def to_memory(row: Row) -> Memory:
    (id_, owner, conversation, key, session, text, origin, created_at, edited_at) = row
    return Memory(
        id_,
        owner,
        conversation,
        key,
        session,
        text,
        MemoryOrigin(origin),
        to_time(created_at),
        to_time_or_none(edited_at),
    )


def insert(
    tx: Transaction,
    owner: str,
    conversation_id: str,
    session_id: str | None,
    origin: MemoryOrigin,
    text: str,
) -> str:
    """Insert a memory; returns its id. For functions that have checked everything before."""
    memory_id = new_id("mem")
    tx.run(
        Q.insert_memory,
        id=memory_id,
        owner=owner,
        conversation=conversation_id,
        session=session_id,
        origin=origin.value,
        text=text,
        now=tx.now,
    )
    tx.event(
        EventType.MEMORY_ADDED, owner, conversation_id, session_id, memory=memory_id, origin=origin.value
    )
    return memory_id


def remember(
    tx: Transaction,
    owner: str,
    conversation_id: str,
    text: str,
    *,
    session_id: str | None = None,
    origin: MemoryOrigin = MemoryOrigin.PERSON,
) -> Memory:
    """Add a memory to a conversation. QuotaExceeded: a person's would exceed a storage limit, with the
    memories that the conversation has. The model's tool may finish its turn."""
    if origin is MemoryOrigin.FLUSH:
        raise BadInput("a flush is finished by its claim, and remembers with it")
    check_memory(text)
    conversation = conversation_of(tx, owner, conversation_id)
    if origin is MemoryOrigin.PERSON:
        _check_quotas(tx, owner, conversation.id, len(text.encode()))
    return memory_of(tx, owner, insert(tx, owner, conversation.id, session_id, origin, text))


def _check_quotas(tx: Transaction, owner: str, conversation_id: str, added: int) -> None:
    (held,) = tx.one(Q.bytes_with_memories, conversation=conversation_id) or (0,)
    tx.quotas.check_conversation(conversation_id, held, added)
    if tx.quotas.owner_bytes:
        (held,) = tx.one(Q.owner_bytes, owner=owner) or (0,)
        tx.quotas.check_owner_bytes(owner, held, added)


def memory_of(tx: Transaction, owner: str | None, memory_id: str) -> Memory:
    """This memory. Raises NotFound."""
    row = tx.one(Q.memory_by_id, id=memory_id, owner=owner)
    if row is None:
        raise NotFound("memory", memory_id)
    return to_memory(row)


def edit(tx: Transaction, owner: str | None, memory_id: str, text: str) -> Memory:
    """Replace its text; the old text is gone."""
    check_memory(text)
    found = memory_of(tx, owner, memory_id)
    tx.erased = True
    if not tx.run(Q.edit_memory, id=memory_id, owner=owner, text=text, now=tx.now):
        raise NotFound("memory", memory_id)  # deleted since it was read
    tx.event(EventType.MEMORY_EDITED, found.owner, found.conversation_id, found.session_id, memory=memory_id)
    return memory_of(tx, owner, memory_id)


def forget(tx: Transaction, owner: str | None, memory_id: str) -> None:
    """Delete it with its text. The session it came from is not flushed again."""
    found = memory_of(tx, owner, memory_id)
    tx.erased = True
    if not tx.run(Q.forget_memory, id=memory_id, owner=owner):
        raise NotFound("memory", memory_id)  # deleted by another node since it was read
    tx.event(
        EventType.MEMORY_FORGOTTEN, found.owner, found.conversation_id, found.session_id, memory=memory_id
    )


def page(
    tx: Transaction,
    owner: str | None,
    *,
    key: str | None = None,
    conversation_id: str | None = None,
    words: str | None = None,
    after: str | None = None,
    limit: int = 20,
) -> Page[Memory]:
    """A page of memories, the newest first, after the memory `after`: of one key or conversation, and
    only those that contain all these words."""
    check_limit(limit)
    below = NEWEST
    if after is not None:
        memory_of(tx, owner, after)
        row = tx.one(Q.memory_number, id=after)
        assert row is not None
        below = row[0]
    if key is not None and owner is not None:
        place = find(tx, owner, Address(key=key))
        if place is None or conversation_id not in (None, place.conversation.id):
            return Page([], False)
        conversation_id = place.conversation.id
    wanted = (words or "").split()
    found: list[Memory] = []
    while True:
        number = LOOKED_AT_ONCE if wanted else limit + 1
        rows = _page(tx, owner, key, conversation_id, below, number)
        found += [memory for memory in (to_memory(row[1:]) for row in rows) if holds(memory, wanted)]
        if len(found) > limit or not wanted or len(rows) < LOOKED_AT_ONCE:
            return Page(found[:limit], len(found) > limit)
        below = rows[-1][0]


def _page(
    tx: Transaction, owner: str | None, key: str | None, conversation_id: str | None, below: int, limit: int
) -> list[Row]:
    if conversation_id is not None:
        known = {"conversation": conversation_id, "owner": owner, "below": below, "limit": limit}
        return tx.all(Q.memories_of_conversation, **known)
    if owner is None:
        return tx.all(Q.memories_of_all, key=key, below=below, limit=limit)
    return tx.all(Q.memories_of_owner, owner=owner, below=below, limit=limit)
