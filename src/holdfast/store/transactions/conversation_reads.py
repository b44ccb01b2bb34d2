"""Conversations as their clients see them: with what was noted about them, and in pages.

Resolving, which every turn does, reads none of this; that is why it stands apart.
"""

from __future__ import annotations

from ...domain.conversations import Address, Conversation
from ...errors import NotFound
from ..base import Page
from .places import place
from .reads import check_limit
from .rows import to_conversation_with_metadata
from .transaction import Q, Transaction

_ABOVE_ALL = 2**62


def conversation(tx: Transaction, owner: str | None, address: Address) -> Conversation:
    row = tx.one(Q.conversation_with_metadata, id=place(tx, owner, address).conversation.id)
    assert row is not None  # it was there a moment ago, in this very snapshot
    return to_conversation_with_metadata(row)


def conversations(tx: Transaction, owner: str | None, after: str | None, limit: int) -> Page[Conversation]:
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
