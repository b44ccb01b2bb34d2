"""Reads totals for operators: what an owner has stored, counts of everything, the size of the store."""

from __future__ import annotations

from .transaction import Q, Transaction
from .values import Figures, OwnerUsage, Statistics, check_limit


def usage(tx: Transaction, owner: str | None, *, limit: int = 20) -> list[OwnerUsage]:
    """Stored bytes and counts per owner, those with the most bytes first; or only this one."""
    check_limit(limit)
    rows = tx.all(Q.usage, limit=limit) if owner is None else tx.all(Q.usage_of_owner, owner=owner)
    return [OwnerUsage(*row) for row in rows]


def statistics(tx: Transaction, owner: str | None) -> Statistics:
    """Counts of sessions, messages and conversations, of one owner or of all."""
    total, still_open = tx.one(Q.session_totals, owner=owner) or (0, 0)
    (message_total,) = tx.one(Q.message_total, owner=owner) or (0,)
    (conversation_total,) = tx.one(Q.conversation_total, owner=owner) or (0,)
    return Statistics(
        sessions=total,
        open=still_open,
        messages=message_total,
        conversations=conversation_total,
        end_reasons=dict(tx.all(Q.session_end_reasons, owner=owner)),  # type: ignore[arg-type]
        sources=dict(tx.all(Q.session_sources, owner=owner)),  # type: ignore[arg-type]
    )


def figures(tx: Transaction, log_bytes: int, unindexed: int | None) -> Figures:
    row = tx.one(Q.figures)
    assert row is not None
    open_sessions, running_turns, messages, events, undelivered = row
    return Figures(open_sessions, running_turns, messages, events, undelivered, log_bytes, unindexed)
