"""The transactions of flushes: schedule, claim, finish; retry and skip.

`schedule` and `carry_on` are called by the transactions that end and continue sessions, so that an
ended session always has its flush on disk. `domain.flushes` decides whether and when.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ..domain.compaction import Entry
from ..domain.contexts import summary_body
from ..domain.events import EventType
from ..domain.flushes import (
    LONGEST_ERROR,
    MOST_INTERRUPTIONS,
    Flush,
    FlushInput,
    FlushState,
    scheduled_at,
    unread,
)
from ..domain.ids import storable
from ..domain.memories import MemoryOrigin
from ..domain.sessions import Edge, Session
from ..domain.views import Summary
from ..errors import Conflict, NotFound
from . import memories, policies
from .resolve import session_of
from .rows import MICROSECOND, Row, to_message, to_stamp, to_time, to_time_or_none
from .transaction import Q, Transaction
from .values import FlushFigures, Page, check_limit

MINUTE = timedelta(minutes=1) // MICROSECOND
NEWEST = 2**62
ALL = 2**31 - 1
_UNSETTLED = frozenset({FlushState.PENDING, FlushState.RUNNING, FlushState.DEAD})


def to_flush(row: Row) -> Flush:
    (
        session, conversation, owner, key, reason, state, after_seq, last_seq, attempts, interruptions,
        next_attempt_at, node, token, error, created_at, settled_at,
    ) = row  # fmt: skip
    return Flush(
        session,
        conversation,
        owner,
        key,
        reason,
        FlushState(state),
        after_seq,
        last_seq,
        attempts,
        interruptions,
        to_time_or_none(next_attempt_at),
        node,
        token,
        error,
        to_time(created_at),
        to_time_or_none(settled_at),
    )


# --- when sessions end and continue ----------------------------------------------------------------------


def schedule(tx: Transaction, session: Session, reason: str) -> None:
    """Schedule the flush of this ending session, if the store's rules say so and it is long enough."""
    rules = policies.flush_rules(tx)
    at = scheduled_at(rules, reason, to_time(tx.now))
    if at is None or rules is None:
        return
    after_seq = _flushed_seq(tx, session.id)
    if not _is_long_enough(tx, session, after_seq, rules.min_messages):
        return
    tx.run(
        Q.insert_flush,
        session=session.id,
        conversation=session.conversation_id,
        owner=session.owner,
        reason=reason,
        after_seq=after_seq,
        last_seq=session.last_seq,
        active_at=to_stamp(session.last_activity_at),
        at=to_stamp(at),
        now=tx.now,
    )


def _is_long_enough(tx: Transaction, session: Session, after_seq: int, enough: int) -> bool:
    counted = 0
    for part in unread(session.view, after_seq, session.last_seq):
        if counted >= enough:
            break
        if isinstance(part, Summary):
            counted += max(1, part.last - max(part.first, after_seq + 1) + 1)
            continue
        row = tx.one(
            Q.count_said,
            conversation=session.conversation_id,
            first=part.first,
            last=part.last,
            enough=enough - counted,
        )
        counted += row[0] if row else 0
    return counted >= max(1, enough)


def carry_on(tx: Transaction, before: Session, session_id: str, edge: Edge) -> None:
    """A session continues the context of `before`: its flush continues where that one's left off. A pending
    flush is taken over, if by the store's rules this session will be flushed itself."""
    known = {"parent": before.id, "session": session_id}
    row = tx.one(Q.flush_by_session, session=before.id, owner=None)
    if edge is Edge.RESUME and tx.one(Q.was_continued, conversation=before.conversation_id, **known):
        read = before.last_seq  # the session that continued it first flushes its messages
    elif row is None:
        read = _flushed_seq(tx, before.id)
    else:
        flush = to_flush(row)
        takes = flush.state is FlushState.PENDING and policies.flush_rules(tx) is not None
        read = flush.after_seq if takes else flush.last_seq
        if takes:
            tx.run(Q.take_flush, session=before.id, by=session_id, now=tx.now)
    if read:
        tx.run(Q.set_flushed_seq, session=session_id, seq=read)


def _flushed_seq(tx: Transaction, session_id: str) -> int:
    row = tx.one(Q.flushed_seq, session=session_id)
    return int(row[0]) if row else 0


# --- processing ------------------------------------------------------------------------------------------


def are_due(tx: Transaction) -> bool:
    """True: there is a flush to claim. Cost is constant, whatever is stored or done."""
    return tx.one(Q.flushes_due, now=tx.now) is not None


def claim(tx: Transaction, node_id: str, *, together: int, per_minute: int) -> list[Flush]:
    """Claim due flushes, the longest waiting first, for this node, under a new token.

    Limits, over all nodes: `together` running, and `per_minute` attempted within a minute. First requeues
    the claims of nodes that are gone; those do not count as attempts. Each new claim counts as one.
    """
    token_row = tx.one(Q.next_flush_token)
    assert token_row is not None
    token = token_row[0]
    _free_abandoned(tx)
    tx.run(Q.forget_flush_attempts, since=tx.now - MINUTE, now=tx.now)
    running, recent = _count(tx, Q.running_flushes), _count(tx, Q.recent_flush_attempts)
    room = min(together - running, per_minute - recent)
    claimed = []
    for (session_id,) in tx.all(Q.due_flushes, now=tx.now, limit=room) if room > 0 else ():
        tx.run(Q.claim_flush, session=session_id, node=node_id, token=token)
        tx.run(Q.insert_flush_attempt, token=token, now=tx.now)
        claimed.append(flush_of(tx, None, session_id))
    return claimed


def _free_abandoned(tx: Transaction) -> None:
    for session_id, interruptions in tx.all(Q.abandoned_flushes):
        if interruptions + 1 < MOST_INTERRUPTIONS:
            tx.run(Q.free_flush, session=session_id, now=tx.now)
        else:
            found = flush_of(tx, None, session_id)
            why = f"{MOST_INTERRUPTIONS} times its node died, or was stopped, in the middle of it"
            tx.run(Q.bury_flush, session=session_id, token=found.token, error=why, now=tx.now)
            _tell(tx, EventType.FLUSH_DEAD, found, attempts=found.attempts)


def _count(tx: Transaction, statement: str) -> int:
    row = tx.one(statement)
    return int(row[0]) if row else 0


def read_input(tx: Transaction, session_id: str) -> FlushInput:
    """Input of a flush: summaries of compacted parts and messages since the last flush."""
    flush, session = flush_of(tx, None, session_id), session_of(tx, None, session_id)
    entries: list[Entry] = []
    for part in unread(session.view, flush.after_seq, flush.last_seq):
        if isinstance(part, Summary):
            body = summary_body(part.text)
            entries.append(Entry(part.first, part.last, "user", (body,), summary=part.text))
            continue
        span = {"first": part.first, "last": part.last, "limit": ALL}
        said = map(to_message, tx.all(Q.shown_forward, conversation=session.conversation_id, **span))
        entries += [Entry(each.seq, each.seq, each.role, (each.body,)) for each in said]
    return FlushInput(session, tuple(entries))


def finish(tx: Transaction, claimed: Flush, text: str | None) -> bool:
    """Mark the flush done and store the memory (None: nothing to remember): one transaction. False, having
    written nothing, if the claim was lost."""
    if not tx.run(Q.finish_flush, session=claimed.session_id, token=claimed.token, now=tx.now):
        return False
    memory_id = None
    if text is not None:
        memory_id = memories.insert(
            tx, claimed.owner, claimed.conversation_id, claimed.session_id, MemoryOrigin.FLUSH, text
        )
    _tell(tx, EventType.FLUSH_DONE, claimed, attempts=claimed.attempts, memory=memory_id)
    return True


def fail(tx: Transaction, claimed: Flush, error: str, pause: timedelta | None) -> bool:
    """Record a failed attempt and requeue after this pause. None: no automatic retry, it is a dead
    letter. False, having written nothing, if the claim was lost."""
    known = {"session": claimed.session_id, "token": claimed.token, "error": storable(error)[:LONGEST_ERROR]}
    if pause is None:
        if not tx.run(Q.bury_flush, now=tx.now, **known):
            return False
        _tell(tx, EventType.FLUSH_DEAD, claimed, attempts=claimed.attempts)
        return True
    at = tx.now + pause // MICROSECOND
    if not tx.run(Q.fail_flush, at=at, **known):
        return False
    _tell(tx, EventType.FLUSH_FAILED, claimed, attempts=claimed.attempts, again_at=to_time(at).isoformat())
    return True


def release(tx: Transaction, claimed: Flush) -> bool:
    """Give a claim back; does not count as an attempt. False if the claim was lost."""
    if tx.one(Q.is_claimed, session=claimed.session_id, token=claimed.token) is None:
        return False
    return tx.run(Q.free_flush, session=claimed.session_id, now=tx.now) > 0


def release_strays(tx: Transaction, node_id: str, *, keep: Collection[str]) -> int:
    """Give back claims of this node that it does not work on: all but the sessions `keep`. For a node
    that does not know whether its claim was committed. Returns how many."""
    strays = [each for (each,) in tx.all(Q.flushes_held_by, node=node_id) if each not in keep]
    for session_id in strays:
        tx.run(Q.free_flush, session=session_id, now=tx.now)
    return len(strays)


# --- reading and manual actions --------------------------------------------------------------------------


def flush_of(tx: Transaction, owner: str | None, session_id: str) -> Flush:
    """The flush of this session; NotFound if it has none."""
    row = tx.one(Q.flush_by_session, session=session_id, owner=owner)
    if row is None:
        session_of(tx, owner, session_id)
        raise NotFound("flush of session", session_id)
    return to_flush(row)


def flushes_of(tx: Transaction, session_ids: Sequence[str]) -> Mapping[str, Flush]:
    """The flushes of these sessions, by session id; sessions without one are omitted."""
    rows = (tx.one(Q.flush_by_session, session=session_id, owner=None) for session_id in session_ids)
    return {flush.session_id: flush for flush in map(to_flush, filter(None, rows))}


def page(
    tx: Transaction,
    owner: str | None,
    *,
    state: FlushState | None = None,
    after: str | None = None,
    limit: int = 20,
) -> Page[Flush]:
    """A page of flushes, the newest first, after the flush of the session `after`."""
    check_limit(limit)
    below = NEWEST
    if after is not None:
        flush_of(tx, owner, after)
        row = tx.one(Q.flush_number, session=after)
        assert row is not None
        below = row[0]
    if state in _UNSETTLED:
        rows = tx.all(Q.unsettled_flushes, owner=owner, below=below, state=state, limit=limit + 1)
    elif owner is None:
        rows = tx.all(Q.flushes_of_all, below=below, state=state, limit=limit + 1)
    else:
        rows = tx.all(Q.flushes_of_owner, owner=owner, below=below, state=state, limit=limit + 1)
    return Page([to_flush(row) for row in rows[:limit]], len(rows) > limit)


def retry(tx: Transaction, owner: str | None, session_id: str) -> Flush:
    """Make a dead, skipped or pending flush due now, with a fresh count of attempts. Conflict, having
    changed nothing, if it is running, done or taken over."""
    found = flush_of(tx, owner, session_id)
    if found.state not in (FlushState.DEAD, FlushState.SKIPPED, FlushState.PENDING):
        raise Conflict(_CANNOT[found.state].format(session_id))
    tx.run(Q.retry_flush, session=session_id, now=tx.now)
    _tell(tx, EventType.FLUSH_RETRIED, found)
    return flush_of(tx, owner, session_id)


_CANNOT = {
    FlushState.RUNNING: "the flush of {} is running; wait for its end",
    FlushState.DONE: "the flush of {} is done; a session is flushed once",
    FlushState.TAKEN: "{} was resumed before it was flushed; its messages are flushed with its continuation",
}


def retry_dead(tx: Transaction, owner: str | None, *, limit: int = 1000) -> int:
    """Make dead letters due now, the oldest first, with a fresh count of attempts; returns how many."""
    rows = tx.all(Q.dead_letters, owner=owner, limit=limit)
    for (session_id,) in rows:
        retry(tx, owner, session_id)
    return len(rows)


def skip(tx: Transaction, owner: str | None, session_id: str, why: str) -> Flush:
    """Do not flush this session; `why` is stored. Conflict, having changed nothing, if it is running,
    done or taken over."""
    found = flush_of(tx, owner, session_id)
    if found.state is FlushState.SKIPPED:
        return found
    if found.state not in (FlushState.DEAD, FlushState.PENDING):
        raise Conflict(_CANNOT[found.state].format(session_id))
    tx.run(Q.skip_flush, session=session_id, error=why, now=tx.now)
    _tell(tx, EventType.FLUSH_SKIPPED, found)
    return flush_of(tx, owner, session_id)


def skip_before(tx: Transaction, owner: str | None, before: datetime, why: str, *, limit: int = 1000) -> int:
    """Skip flushes of sessions without activity since `before`: pending and dead ones, and open sessions
    that may become due. Bounded; returns how many, 0: no more."""
    stamp = to_stamp(before)
    # Open sessions first: one that ends in between has its flush by the time the flushes are read.
    still_open = tx.all(Q.sessions_to_skip, owner=owner, before=stamp, limit=limit)
    for session_id, _, last_seq in still_open:
        tx.run(Q.set_flushed_seq, session=session_id, seq=last_seq)
    waiting = tx.all(Q.flushes_to_skip, owner=owner, before=stamp, limit=limit)
    for session_id, conversation_id, its_owner in waiting:
        tx.run(Q.skip_flush, session=session_id, error=why, now=tx.now)
        tx.event(EventType.FLUSH_SKIPPED, its_owner, conversation_id, session_id)
    return len(waiting) + len(still_open)


def figures(tx: Transaction) -> FlushFigures:
    """How many flushes are pending, running and dead, and how many sessions are due for a reset."""
    row = tx.one(Q.flush_figures)
    assert row is not None
    coming = tx.one(Q.sessions_due_now, stamp=tx.policies.stamp, now=tx.now)
    pending, running, dead = row
    return FlushFigures(pending, running, dead, int(coming[0]) if coming else 0)


def _tell(tx: Transaction, type_: EventType, flush: Flush, **data: Any) -> None:
    tx.event(type_, flush.owner, flush.conversation_id, flush.session_id, **data)
