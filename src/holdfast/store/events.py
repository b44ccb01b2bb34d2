"""Reads events: pages, those of one session, and counts over time."""

from __future__ import annotations

from datetime import timedelta

from ..domain.events import Event, EventType
from ..domain.turns import TurnStatus
from ..errors import BadInput
from .resolve import session_of
from .rows import MICROSECOND, to_event, to_time
from .transaction import Q, Transaction
from .values import LARGEST_LIST, Pulse, check_limit

MOST_LOOKED_AT = 20_000
MOST_COUNTED = 50_000
MOST_STEPS = 1000
END_OF_TIME = 2**62


_STATUSES = {
    EventType.TURN_COMPLETED.value: TurnStatus.COMPLETED,
    EventType.TURN_INTERRUPTED.value: TurnStatus.INTERRUPTED,
    EventType.TURN_FAILED.value: TurnStatus.FAILED,
    EventType.TURN_CANCELLED.value: TurnStatus.CANCELLED,
}


def page(
    tx: Transaction,
    *,
    owner: str | None,
    after: int = 0,
    upto: int | None = None,
    limit: int = 1000,
    conversation_id: str | None = None,
) -> list[Event]:
    """Events after that cursor, up to event `upto`, oldest first."""
    check_limit(limit, LARGEST_LIST)
    values = {
        "after": after,
        "upto": END_OF_TIME if upto is None else upto,
        "owner": owner,
        "limit": limit,
    }
    if conversation_id is None:
        rows = tx.all(Q.events_after, **values)
    else:
        rows = tx.all(Q.events_of_conversation, conversation=conversation_id, **values)
    return [to_event(row) for row in rows]


def bounds(tx: Transaction) -> tuple[int, int]:
    """The numbers of the oldest stored event and of the newest. No event up to the newest will appear
    later: a reader that has read up to it, of one owner or of all, may continue after it."""
    oldest, newest = tx.one(Q.event_bounds) or (None, None)
    return oldest or 0, newest or 0


def of_session(tx: Transaction, owner: str | None, session_id: str, *, limit: int = 50) -> list[Event]:
    """Events of a session and of what it started, oldest first; only the newest `limit`."""
    check_limit(limit, LARGEST_LIST)
    session = session_of(tx, owner, session_id)
    rows = tx.all(
        Q.newest_events_of_session,
        conversation=session.conversation_id,
        session=session.id,
        looked_at=MOST_LOOKED_AT,
        limit=limit,
    )
    return [to_event(row) for row in reversed(rows)]


def pulse(tx: Transaction, owner: str | None, step: timedelta, count: int) -> Pulse:
    """How many turns ended in each of the last `count` steps of time, the current one included. Reads a
    bounded number of the newest events: in a very busy time, the oldest steps may be too low."""
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
    """An event number after which, but for a few, all events are from that time on. Found in a dozen reads,
    because events are numbered as they happen."""
    oldest, newest = bounds(tx)
    low, high = max(oldest, newest - MOST_COUNTED), newest
    while low < high:
        middle = (low + high) // 2
        row = tx.one(Q.event_from, id=middle)
        if row is None or row[1] >= at:
            high = middle
        else:
            low = max(middle, row[0]) + 1
    return low - 1
