"""Ends a turn without an answer: by its own node, by a person, or by the reaper; and queued turns before they
begin.

`end_without_answer` is one function, so that all three leave the same state: the draft stored as an
interrupted reply, open tool calls closed as "interrupted, outcome unknown", the lease released, the user's
message kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from ..domain.contexts import OUTCOME_UNKNOWN
from ..domain.drafts import interrupted_reply
from ..domain.events import EventType
from ..domain.ids import storable
from ..domain.messages import NewMessage, size_of
from ..domain.new_messages import tool_result
from ..domain.recovery import REQUEST_KEPT, Cause, Recovery, parked, waiting_sentence
from ..domain.turns import Delivery, Turn, TurnStatus, check_step
from .deliveries import add_response_event
from .rows import MICROSECOND, to_draft, to_json, to_stamp, to_time, to_turn
from .transaction import Q, Transaction

_EVENTS: Mapping[TurnStatus, EventType] = {
    TurnStatus.INTERRUPTED: EventType.TURN_INTERRUPTED,
    TurnStatus.FAILED: EventType.TURN_FAILED,
    TurnStatus.CANCELLED: EventType.TURN_CANCELLED,
}


def end_without_answer(
    tx: Transaction,
    turn_id: str,
    status: TurnStatus,
    *,
    why: str | None,
    code: str | None = None,
    usage: Mapping[str, int] | None = None,
    delivery: Delivery | None = None,
    cause: Cause | None = None,
    delay: timedelta = timedelta(0),
) -> bool:
    """End a running turn as interrupted, failed or cancelled. False if it does not hold its conversation.

    The caller must have the right to: it holds the lease, or has proof that its holder may be fenced off.
    With a `cause`, a turn that the policy covers waits to be retried, and keeps its conversation's place.
    """
    row = tx.one(Q.turn_by_id, id=turn_id, owner=None)
    if row is None:
        return False
    turn = to_turn(row)
    if turn.status is not TurnStatus.RUNNING:
        return False
    check_step(turn.id, turn.status, status)
    why = storable(why) if why else None
    messages, last_result = last_words(tx, turn)
    waits = cause is Cause.MODEL or (cause is not None and turn.recovery.recover)
    fenced = tx.one(
        Q.fence_lease,
        id=turn.conversation_id,
        turn=turn.id,
        count=len(messages),
        bytes=size_of(messages),
        waits=waits,
    )
    if fenced is None:
        return False
    tx.insert_messages(messages, turn.conversation_id, fenced[0], turn.session_id, turn.id)
    tx.run(
        Q.settle_turn,
        id=turn.id,
        status=status.value,
        error=why if status is TurnStatus.FAILED else None,
        usage=to_json(usage) if usage else None,
        answer=None,
        delivery=delivery,
        why=why,
        cause=cause.value if cause is not None else None,
        kept_until=None if status is TurnStatus.CANCELLED else tx.now + REQUEST_KEPT // MICROSECOND,
        model=None,
        now=tx.now,
    )
    if waits and cause is not None:
        known = turn.recovery
        progressed, now = last_result > known.step_seq, to_time(tx.now)
        park(tx, turn, parked(known, cause, now, progressed=progressed, last_seq=fenced[0], delay=delay))
        return True
    if turn.response_id is not None:
        add_response_event(tx, turn.response_id, status, is_fault=cause is not None)
    data = {"code": code} if status is TurnStatus.FAILED else {"seq": fenced[0], "why": why}
    tx.event(_EVENTS[status], turn.owner, turn.conversation_id, turn.session_id, turn.id, **data)
    return True


def park(tx: Transaction, turn: Turn, parked: Recovery) -> None:
    """Have an ended turn wait to be retried, as this record says."""
    assert parked.due_at is not None and parked.cause is not None
    tx.run(
        Q.park_turn,
        id=turn.id,
        due_at=to_stamp(parked.due_at),
        cause=parked.cause.value,
        tries=parked.tries,
        all_tries=parked.all_tries,
        stops=parked.stops,
        refusals=parked.refusals,
        refused_since=to_stamp(parked.refused_since) if parked.refused_since else None,
        step_seq=parked.step_seq,
    )
    tx.event(
        EventType.TURN_WAITING,
        turn.owner,
        turn.conversation_id,
        turn.session_id,
        turn.id,
        why=parked.cause.value,
        due_at=parked.due_at.isoformat(),
    )
    tx.told.append(f"turn {turn.id} is waiting: {waiting_sentence(parked, to_time(tx.now), None)}")


def end_waiting(tx: Transaction, turn: Turn, status: TurnStatus, why: str, *, given_up: bool = False) -> None:
    """Give up, withdraw or cancel a waiting turn: its conversation is free."""
    if status is not turn.status:
        check_step(turn.id, turn.status, status)
    why = storable(why)
    tx.run(
        Q.end_waiting_turn,
        id=turn.id,
        status=status.value,
        error=why if status is TurnStatus.FAILED else None,
        why=why,
        kept_until=None if status is TurnStatus.CANCELLED else tx.now + REQUEST_KEPT // MICROSECOND,
    )
    tx.run(Q.release_waiting, id=turn.conversation_id, turn=turn.id)
    if turn.response_id is not None:
        add_response_event(tx, turn.response_id, status)
    place = (turn.owner, turn.conversation_id, turn.session_id, turn.id)
    if given_up:
        tx.event(EventType.TURN_GIVEN_UP, *place, attempts=turn.recovery.all_tries, why=why)
        tx.told.append(f"turn {turn.id} is given up: {why}")
    data = (
        {"code": "given_up"} if status is TurnStatus.FAILED else {"seq": turn.recovery.step_seq, "why": why}
    )
    tx.event(_EVENTS[status], *place, **data)


def last_words(tx: Transaction, turn: Turn) -> tuple[list[NewMessage], int]:
    """Messages that close an unfinished turn: results for its open calls, and its draft. Also the seq of the
    last tool result that the turn stored; 0: none."""
    open_calls: dict[str, bool] = {}
    last_result = 0
    for seq, calls, answers, own_calls in tx.all(
        Q.marks_of_turn, conversation=turn.conversation_id, first_seq=turn.first_seq, turn=turn.id
    ):
        if own_calls or calls:  # mixed with own calls, a client's calls were not sent to it yet
            closing = msgspec.json.decode(own_calls or calls)
            open_calls.update(dict.fromkeys(closing, own_calls is not None))
        if answers is not None:
            last_result = seq
        open_calls.pop(answers, None)
    messages = [tool_result(call, OUTCOME_UNKNOWN, inner=own) for call, own in open_calls.items()]
    drafts = tx.all(Q.drafts_of_reply, turn=turn.id, conversation=turn.conversation_id)
    reply = interrupted_reply(to_draft(draft) for draft in drafts)
    return ([*messages, reply] if reply else messages), last_result


def end_queued(
    tx: Transaction,
    turn: Turn,
    status: TurnStatus,
    why: str,
    joined: str | None = None,
    first_seq: int = 0,
) -> None:
    """Take a queued turn out of its queue. `joined`: the turn that its messages have joined, from `first_seq`
    on."""
    check_step(turn.id, turn.status, status)
    tx.run(
        Q.end_queued_turn,
        id=turn.id,
        status=status.value,
        why=why,
        joined=joined,
        first_seq=first_seq,
        now=tx.now,
    )
    tx.run(Q.drop_queued, turn=turn.id)
    tx.run(Q.count_queued, id=turn.conversation_id, more=-1)
    where = (turn.owner, turn.conversation_id, turn.session_id, turn.id)
    if joined is not None:
        tx.run(Q.join_inbox, turn=turn.id, joined=joined)
        tx.run(Q.join_attachments, turn=turn.id, joined=joined)
        tx.event(EventType.TURN_JOINED, *where, joined=joined)
        return
    tx.erased = True
    if turn.response_id is not None:
        add_response_event(tx, turn.response_id, status)
    if status is TurnStatus.FAILED:
        tx.event(EventType.TURN_FAILED, *where, code="not_begun")
    else:
        tx.event(EventType.TURN_CANCELLED, *where, seq=None, why=why)


def withdraw_queue(tx: Transaction, conversation_id: str, why: str) -> int:
    """Withdraw every queued turn of a conversation; returns how many."""
    rows = tx.all(Q.queue_of, conversation=conversation_id)
    for turn_id, *_ in rows:
        row = tx.one(Q.turn_by_id, id=turn_id, owner=None)
        assert row is not None
        end_queued(tx, to_turn(row), TurnStatus.CANCELLED, why)
    return len(rows)
