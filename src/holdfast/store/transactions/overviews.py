"""What is going on right now, in bounded reads: for whoever polls."""

from __future__ import annotations

from datetime import timedelta

from ...domain.events import EventType
from ...domain.sessions import Session
from ...domain.turns import TurnStatus
from ...errors import BadInput
from ..base import Figures, Pulse
from .reads import check_limit
from .rows import to_session, to_time
from .transaction import Q, Transaction

MICROSECOND = timedelta(microseconds=1)
MOST_COUNTED = 50_000
MOST_STEPS = 1000

_STATUSES = {
    EventType.TURN_COMPLETED.value: TurnStatus.COMPLETED,
    EventType.TURN_INTERRUPTED.value: TurnStatus.INTERRUPTED,
    EventType.TURN_FAILED.value: TurnStatus.FAILED,
    EventType.TURN_CANCELLED.value: TurnStatus.CANCELLED,
}

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


def resets_waiting(tx: Transaction, owner: str | None, limit: int) -> list[Session]:
    check_limit(limit, LOOKED_AT)
    policies = tx.policies
    soon = tx.now + policies.look_again // MICROSECOND  # no deferral is looked at again later than that
    rows = tx.all(Q.resets_waiting, now=tx.now, soon=soon, stamp=policies.stamp, owner=owner, limit=limit)
    return [to_session(row) for row in rows]


def pulse(tx: Transaction, owner: str | None, step: timedelta, count: int) -> Pulse:
    check_limit(count, MOST_STEPS)
    size = step // MICROSECOND
    if size <= 0:
        raise BadInput("a step of time must be longer than nothing")
    first = tx.now // size - count + 1
    after = _events_before(tx, first * size)
    ended: list[dict[TurnStatus, int]] = [{} for _ in range(count)]
    for place, type_, number in tx.all(Q.turns_ended, step=size, after=after, owner=owner):
        if 0 <= place - first < count:
            ended[place - first][_STATUSES[type_]] = number
    return Pulse(to_time(first * size), step, ended)


def _events_before(tx: Transaction, at: int) -> int:
    """The number of an event such that those behind it are all from then on, but for a few: found in a dozen
    reads, since events are numbered as they happen."""
    oldest, newest = event_bounds(tx)
    low, high = max(oldest, newest - MOST_COUNTED), newest
    while low < high:
        middle = (low + high) // 2
        row = tx.one(Q.event_from, id=middle)
        if row is None or row[1] >= at:
            high = middle
        else:
            low = max(middle, row[0]) + 1
    return low - 1


def figures(tx: Transaction, log_bytes: int, unindexed: int | None) -> Figures:
    row = tx.one(Q.figures)
    assert row is not None
    open_sessions, running_turns, messages, events, undelivered = row
    return Figures(open_sessions, running_turns, messages, events, undelivered, log_bytes, unindexed)
