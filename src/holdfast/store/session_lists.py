"""Reads what lists show: pages of sessions, first words and sums of conversations, ids by their beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ..domain.headings import ConversationSums, Heading, heading_of
from ..domain.sessions import Session
from .resolve import conversation_of, session_of
from .rows import to_json, to_session, to_stamp
from .transaction import Q, Transaction
from .values import Page, SessionFilter, check_limit

FEW_TITLES = 100

LOOKED_AT = 1000
"""How many of the newest sessions are scanned for open ones without a running turn or attached node."""

_END_OF_TIME = 2**62


def page(
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
        "newest": wanted.newest,
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
        if (wanted.ended is None or session.ended == wanted.ended) and wanted.includes(session)
    ]


def line(tx: Transaction, owner: str | None, conversation_id: str) -> list[Session]:
    """All sessions of a conversation, oldest first."""
    conversation_of(tx, owner, conversation_id)
    rows = tx.all(Q.line_of_sessions, conversation=conversation_id, owner=owner)
    return [to_session(row) for row in rows]


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


def headings(tx: Transaction, conversation_ids: Sequence[str]) -> Mapping[str, Heading]:
    """The headings of these conversations, by id; those that do not exist are left out. One statement, which
    reads the first bytes of three messages of each."""
    if not conversation_ids:
        return {}
    rows = tx.all(Q.headings, ids=to_json(sorted(set(conversation_ids))))
    return {conversation: heading_of(first, last) for conversation, *first, last in rows}


def words_of_sessions(tx: Transaction, session_ids: Sequence[str]) -> Mapping[str, str]:
    """The first words of a person in each of these sessions, by id; sessions without any are left out. One
    statement, which reads the first bytes of one message of each."""
    if not session_ids:
        return {}
    rows = tx.all(Q.words_of_sessions, ids=to_json(sorted(set(session_ids))))
    found = {session: heading_of([first], None).first_words for session, first in rows}
    return {session: words for session, words in found.items() if words}


def sums_of_conversations(tx: Transaction, conversation_ids: Sequence[str]) -> Mapping[str, ConversationSums]:
    """What the sessions of these conversations add up to, and which model answered last, by id; those that do
    not exist are left out. One statement."""
    if not conversation_ids:
        return {}
    rows = tx.all(Q.sums_of_conversations, ids=to_json(sorted(set(conversation_ids))))
    return {
        id_: ConversationSums(int(messages), int(sessions), int(given), int(made), model)
        for id_, messages, sessions, given, made, model in rows
    }


_BY_BEGINNING = {
    "sess": Q.sessions_beginning,
    "conv": Q.conversations_beginning,
    "turn": Q.turns_beginning,
    "resp": Q.responses_beginning,
    "proc": Q.processes_beginning,
    "mem": Q.memories_beginning,
    "note": Q.notices_beginning,
    "key": Q.keys_beginning,
}

_AFTER_DIGITS = "g"
"""Follows every hexadecimal digit."""


def ids_like(tx: Transaction, owner: str | None, name: str, *, limit: int = 6) -> list[str]:
    """The ids of this owner's objects (None: of all) that begin with `name`, in order; at most `limit`. The
    prefix of `name` must be that of one of our ids."""
    prefix = name.partition("_")[0]
    rows = tx.all(_BY_BEGINNING[prefix], id=name, id_end=name + _AFTER_DIGITS, owner=owner, limit=limit)
    return [row[0] for row in rows]
