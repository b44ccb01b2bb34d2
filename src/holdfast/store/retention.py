"""Deletes what is past its retention, a bounded number at a time, the oldest first.

Conversations are deleted by their last activity, never by when they began, and completely. One that is still
in use (a turn, a program, a process, a flush) is kept, and counted.
"""

from __future__ import annotations

from datetime import timedelta

from .rows import MICROSECOND
from .sessions import delete_conversation
from .transaction import Q, Transaction
from .values import Pruned, Retention

CONVERSATIONS_AT_ONCE = 10
"""Small, because each may have thousands of messages, and all writers wait."""


def prune(tx: Transaction, keep: Retention, limit: int = 1000) -> Pruned:
    """Delete what is older than its retention, at most `limit` of each kind, the oldest first."""

    def before(span: timedelta) -> int:
        return tx.now - span // MICROSECOND

    def drop(statement: str, span: timedelta) -> int:
        return tx.run(statement, before=before(span), limit=limit)

    conversations, spared, more = (0, 0, False)
    if keep.conversations is not None:
        conversations, spared, more = _conversations(tx, before(keep.conversations), limit)
    rows = {
        "drafts": drop(Q.prune_drafts, keep.drafts),
        "events": drop(Q.prune_events, keep.events),
        "requests": drop(Q.prune_requests, keep.requests),
        "nodes": drop(Q.prune_nodes, keep.events),
    }
    pruned = Pruned(
        **rows,
        conversations=conversations,
        spared=spared,
        more=more or any(dropped >= limit for dropped in rows.values()),
    )
    tx.erased = tx.erased or pruned.anything
    return pruned


def _conversations(tx: Transaction, before: int, limit: int) -> tuple[int, int, bool]:
    """How many were deleted, how many are kept because they are in use, and whether there may be more to
    delete."""
    most = min(limit, CONVERSATIONS_AT_ONCE)
    dropped = 0
    for (conversation_id,) in tx.all(Q.old_conversations, before=before, limit=most):
        # Selected before it was locked: a turn, a process or a flush may have begun since.
        if tx.one(Q.is_old_conversation, id=conversation_id, before=before) is not None:
            delete_conversation(tx, None, conversation_id)
            dropped += 1
    (spared,) = tx.one(Q.old_conversations_spared, before=before) or (0,)
    return dropped, spared, dropped >= most
