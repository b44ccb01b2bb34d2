"""What is going on right now, in bounded reads: for whoever polls."""

from __future__ import annotations

from ...domain.sessions import Session
from ..base import Figures
from .rows import to_session
from .transaction import Q, Transaction

LOOKED_AT = 1000
"""Among how many of the newest sessions open ones are looked for that nobody runs or is attached to."""


def alive(tx: Transaction, owner: str | None, limit: int) -> list[Session]:
    if owner is None:
        rows = tx.all(Q.alive_of_all, looked_at=LOOKED_AT, limit=limit)
    else:
        rows = tx.all(Q.alive_of_owner, owner=owner, looked_at=LOOKED_AT, limit=limit)
    return [to_session(row) for row in rows]


def ended_since(tx: Transaction, owner: str | None, since: int, limit: int) -> list[Session]:
    return [to_session(row) for row in tx.all(Q.ended_since, owner=owner, since=since, limit=limit)]


def event_bounds(tx: Transaction) -> tuple[int, int]:
    oldest, newest = tx.one(Q.event_bounds) or (None, None)
    return oldest or 0, newest or 0


def figures(tx: Transaction, log_bytes: int, unindexed: int | None) -> Figures:
    row = tx.one(Q.figures)
    assert row is not None
    open_sessions, running_turns, messages, events, undelivered = row
    return Figures(open_sessions, running_turns, messages, events, undelivered, log_bytes, unindexed)
