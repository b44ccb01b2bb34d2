"""Events: pages, those of one session, and the one that no other change writes."""

from __future__ import annotations

from ..domain.events import Event, EventType
from ..domain.sessions import Session
from .resolve import session_of
from .rows import to_event
from .transaction import Q, Transaction
from .values import LARGEST_LIST, check_limit

MOST_LOOKED_AT = 20_000
END_OF_TIME = 2**62


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


def note_reading(tx: Transaction, owner: str, key_id: str, session: Session | None = None) -> None:
    """Write an event for this owner: an admin's key has read their messages, of this session or by a
    search."""
    conversation_id, session_id = (session.conversation_id, session.id) if session else (None, None)
    tx.event(EventType.MESSAGES_READ_BY_ADMIN, owner, conversation_id, session_id, key_id=key_id)
