"""Read functions: each runs inside one snapshot and returns values."""

from __future__ import annotations

from datetime import datetime, timedelta

from ..domain.api_keys import ApiKey
from ..domain.conversations import Conversation
from ..domain.events import Event, EventType
from ..domain.messages import Message
from ..domain.nodes import Node
from ..domain.sessions import Session
from ..domain.turns import Draft, Response, Turn, TurnStatus
from ..errors import BadInput, NotFound
from .api_keys import to_key
from .resolve import conversation_of, session_of
from .rows import (
    to_conversation,
    to_draft,
    to_event,
    to_message,
    to_node,
    to_session,
    to_stamp,
    to_time,
    to_turn,
)
from .transaction import Q, Transaction
from .values import Figures, OwnerUsage, Page, Pulse, SessionFilter, Statistics

_END_OF_TIME = 2**62
LARGEST_PAGE = 1000
FEW_TITLES = 100
LARGEST_LIST = 1_000_000


def usage(tx: Transaction, owner: str | None, *, limit: int = 20) -> list[OwnerUsage]:
    """Stored bytes and counts per owner, those with the most bytes first; or only this one."""
    check_limit(limit)
    rows = tx.all(Q.usage, limit=limit) if owner is None else tx.all(Q.usage_of_owner, owner=owner)
    return [OwnerUsage(*row) for row in rows]


MOST_LOOKED_AT = 20_000


def sessions(
    tx: Transaction, wanted: SessionFilter, *, after: str | None = None, limit: int = 20
) -> Page[Session]:
    """A page of sessions, the most recently active first, after the session `after`."""
    check_limit(limit)
    at, below = _END_OF_TIME, ""
    if after is not None:
        cursor = session_of(tx, wanted.owner, after)
        at, below = to_stamp(cursor.last_activity_at), cursor.id
    values = {
        "at": at,
        "id": below,
        "limit": limit + 1,
        "ended": wanted.ended,
        "source": wanted.source,
        "key": wanted.key,
        "title": wanted.title,
    }
    few = _of_few_titles(tx, wanted)
    if few is not None:
        below_cursor = [each for each in few if (to_stamp(each.last_activity_at), each.id) < (at, below)]
        below_cursor.sort(key=lambda each: (each.last_activity_at, each.id), reverse=True)
        return Page(below_cursor[:limit], len(below_cursor) > limit)
    if wanted.owner is None:
        rows = tx.all(Q.sessions_of_all, **values)
    else:
        rows = tx.all(Q.sessions_of_owner, owner=wanted.owner, **values)
    return Page([to_session(row) for row in rows[:limit]], len(rows) > limit)


def _of_few_titles(tx: Transaction, wanted: SessionFilter) -> list[Session] | None:
    """The matching sessions, if the filter has a title that few conversations have: scanning those is faster
    than scanning all sessions. None: no title in the filter, or many have it, so a scan finds it soon."""
    if wanted.title is None:
        return None
    titled = tx.all(Q.conversations_titled, owner=wanted.owner, title=wanted.title, limit=FEW_TITLES + 1)
    if len(titled) > FEW_TITLES:
        return None
    lines = (tx.all(Q.line_of_sessions, conversation=row[0], owner=wanted.owner) for row in titled)
    found = (to_session(row) for line in lines for row in line)
    return [
        session
        for session in found
        if (wanted.ended is None or session.ended == wanted.ended)
        and (wanted.source is None or session.source == wanted.source)
        and (wanted.key is None or session.key == wanted.key)
    ]


def check_limit(limit: int, largest: int = LARGEST_PAGE) -> None:
    if not 1 <= limit <= largest:
        raise BadInput(f"limit must be between 1 and {largest}, not {limit}")


def line(tx: Transaction, owner: str | None, conversation_id: str) -> list[Session]:
    """All sessions of a conversation, oldest first."""
    conversation_of(tx, owner, conversation_id)
    rows = tx.all(Q.line_of_sessions, conversation=conversation_id, owner=owner)
    return [to_session(row) for row in rows]


def forks(tx: Transaction, owner: str | None, conversation_id: str) -> list[Session]:
    """The first sessions of conversations that were forked from this one."""
    conversation_of(tx, owner, conversation_id)
    rows = tx.all(Q.forks_of_conversation, conversation=conversation_id, owner=owner)
    return [to_session(row) for row in rows]


def visible(
    tx: Transaction, owner: str | None, conversation_id: str, *, limit: int | None = None
) -> list[Message]:
    """Messages visible to clients: neither excluded nor deleted nor inner, oldest first; only the newest
    `limit`."""
    conversation_of(tx, owner, conversation_id)
    rows = tx.all(Q.visible_messages, conversation=conversation_id, limit=-1 if limit is None else limit)
    return [to_message(row) for row in reversed(rows)]


def conversations_with_history(
    tx: Transaction, owner: str, history: bytes, *, forked_from: str | None = None
) -> list[Conversation]:
    """Free conversations whose whole visible history has this fingerprint chain, two at most: among those
    begun without a name, or among the forks of `forked_from`."""
    if forked_from is None:
        rows = tx.all(Q.conversations_with_history, owner=owner, history=history)
    else:
        rows = tx.all(Q.forks_with_history, owner=owner, history=history, conversation=forked_from)
    return [to_conversation(row) for row in rows]


def response(tx: Transaction, owner: str | None, response_id: str) -> Response:
    """The response of this Responses API id, with its turn. Raises NotFound."""
    row = tx.one(Q.response_by_id, id=response_id, owner=owner)
    if row is None:
        raise NotFound("response", response_id)
    previous, background, brought, request, created_at, *columns = row
    return Response(
        response_id,
        to_turn(columns),
        request.encode(),
        previous,
        bool(background),
        brought,
        to_time(created_at),
    )


def last_number(tx: Transaction, turn_id: str) -> int:
    """The highest event number that any checkpoint of this turn used or reserved; -1: there is none."""
    row = tx.one(Q.next_event, turn=turn_id)
    return row[0] - 1 if row else -1


def turn_answer(tx: Transaction, turn_id: str) -> bytes | None:
    """The model's answer as `commit_reply` stored it, besides its messages."""
    row = tx.one(Q.turn_answer, id=turn_id)
    return row[0] if row else None


def messages(
    tx: Transaction,
    owner: str | None,
    conversation_id: str,
    *,
    first: int = 1,
    last: int | None = None,
    limit: int | None = None,
    newest_first: bool = False,
    excluded: bool = True,
) -> Page[Message]:
    """Messages with seqs first..last, unmodified, without deleted ones. Without `excluded`, also omits
    messages excluded from the context and inner ones, which clients never see."""
    if limit is not None:
        check_limit(limit, LARGEST_LIST)
    conversation = conversation_of(tx, owner, conversation_id)
    forward, backward = (
        (Q.messages_forward, Q.messages_backward) if excluded else (Q.shown_forward, Q.shown_backward)
    )
    rows = tx.all(
        backward if newest_first else forward,
        conversation=conversation_id,
        first=first,
        last=conversation.last_seq if last is None else last,
        limit=-1 if limit is None else limit + 1,
    )
    kept = rows if limit is None else rows[:limit]
    return Page([to_message(row) for row in kept], len(rows) > len(kept))


def turn(tx: Transaction, owner: str | None, turn_id: str) -> Turn:
    """This turn. Raises NotFound."""
    row = tx.one(Q.turn_by_id, id=turn_id, owner=owner)
    if row is None:
        raise NotFound("turn", turn_id)
    return to_turn(row)


def turns(
    tx: Transaction,
    owner: str | None,
    conversation_id: str,
    *,
    session_id: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[Turn]:
    """The newest turns of a conversation (or of one of its sessions), newest first, after the turn
    `after`."""
    check_limit(limit, LARGEST_LIST)
    conversation_of(tx, owner, conversation_id)
    below: int = _END_OF_TIME
    if after is not None:
        row = tx.one(Q.turn_number, id=after, conversation=conversation_id)
        if row is None:
            raise NotFound("turn", after)
        below = row[0]
    rows = tx.all(
        Q.turns_of_conversation,
        conversation=conversation_id,
        owner=owner,
        session=session_id,
        below=below,
        limit=limit,
    )
    return [to_turn(row) for row in rows]


def turn_messages(tx: Transaction, turn_id: str) -> list[Message]:
    """The messages of a turn, in order; includes messages that left the context."""
    return [to_message(row) for row in tx.all(Q.messages_of_turn, turn=turn_id)]


def drafts(tx: Transaction, turn_id: str, *, after_event: int = -1) -> list[Draft]:
    """A turn's checkpoints that hold events numbered above `after_event`."""
    return [to_draft(row) for row in tx.all(Q.drafts_of_turn, turn=turn_id, after_event=after_event)]


def events(
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
        "upto": _END_OF_TIME if upto is None else upto,
        "owner": owner,
        "limit": limit,
    }
    if conversation_id is None:
        rows = tx.all(Q.events_after, **values)
    else:
        rows = tx.all(Q.events_of_conversation, conversation=conversation_id, **values)
    return [to_event(row) for row in rows]


def history(tx: Transaction, owner: str | None, session_id: str, *, limit: int = 50) -> list[Event]:
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


def nodes(tx: Transaction, *, gone: bool = False) -> list[Node]:
    """Nodes that have neither left nor been reaped; with `gone`, those too."""
    return [to_node(row) for row in tx.all(Q.all_nodes if gone else Q.present_nodes)]


def key(tx: Transaction, key_id: str) -> tuple[ApiKey, bytes] | None:
    """The key of this id, revoked or not, and the hash of its secret; None if there is none."""
    row = tx.one(Q.key_by_id, id=key_id)
    if row is None:
        return None
    *columns, secret_hash = row
    return to_key(columns), secret_hash


def keys(tx: Transaction, owner: str | None) -> list[ApiKey]:
    """All keys of an owner, revoked ones too, in creation order."""
    return [to_key(row) for row in tx.all(Q.keys_of, owner=owner)]


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


MOST_LOOKED_AT = 200_000
"""How many characters of a message are searched for its snippet."""


def snippet(message: Message, words: str, width: int = 160) -> str:
    """The part of a message around the first matching word."""
    content = message.content().get("content") or ""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        content = " ".join(text for text in texts if isinstance(text, str))
    text = " ".join(content[:MOST_LOOKED_AT].split())
    lowered = text.lower()
    places = [lowered.find(word.strip('"').lower()) for word in words.split()]
    start = max(0, min((place for place in places if place >= 0), default=0) - width // 4)
    cut = text[start : start + width]
    return ("…" if start else "") + cut + ("…" if start + width < len(text) else "")


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
"""How many of the newest sessions are scanned for open ones without a running turn or attached node."""


def alive(tx: Transaction, owner: str | None, *, limit: int = 200) -> list[Session]:
    """Open sessions, the most recently active first: all with a running turn or an attached process,
    others only if they are among the newest. Cheap, however many are stored."""
    if owner is None:
        rows = tx.all(Q.alive_of_all, looked_at=LOOKED_AT, limit=limit)
    else:
        rows = tx.all(Q.alive_of_owner, owner=owner, looked_at=LOOKED_AT, limit=limit)
    return [to_session(row) for row in rows]


def ended_since(tx: Transaction, owner: str | None, since: datetime, *, limit: int = 200) -> list[Session]:
    """Sessions that have ended since then, the latest first."""
    rows = tx.all(Q.ended_since, owner=owner, since=to_stamp(since), limit=limit)
    return [to_session(row) for row in rows]


def event_bounds(tx: Transaction) -> tuple[int, int]:
    """The numbers of the oldest stored event and of the newest. No event up to the newest will appear
    later: a reader that has read up to it, of one owner or of all, may continue after it."""
    oldest, newest = tx.one(Q.event_bounds) or (None, None)
    return oldest or 0, newest or 0


def resets_waiting(tx: Transaction, owner: str | None, *, limit: int = 100) -> list[Session]:
    """Open sessions whose reset is due, deferred or not, the longest due first; only those scheduled
    under our own policies. Cost depends on what is due, not on what is stored."""
    check_limit(limit, LOOKED_AT)
    policies = tx.policies
    soon = tx.now + policies.look_again // MICROSECOND  # every deferral is checked again by then
    rows = tx.all(Q.resets_waiting, now=tx.now, soon=soon, stamp=policies.stamp, owner=owner, limit=limit)
    return [to_session(row) for row in rows]


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
