"""Ends a turn without an answer: by its own node, by a person, or by the reaper.

One function, so that all three leave the same state: the draft stored as an interrupted reply, open tool
calls closed as "interrupted, outcome unknown", the lease released, the user's message kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..domain.contexts import OUTCOME_UNKNOWN
from ..domain.events import EventType
from ..domain.ids import storable
from ..domain.messages import NewMessage, size_of, tool_result
from ..domain.turns import Delivery, Turn, TurnStatus, check_step, interrupted_reply
from .rows import to_draft, to_json, to_turn
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
) -> bool:
    """End a running turn as interrupted, failed or cancelled. False if it does not hold its conversation.

    The caller must have the right to: it holds the lease, or has proof that its holder may be fenced off.
    """
    row = tx.one(Q.turn_by_id, id=turn_id, owner=None)
    if row is None:
        return False
    turn = to_turn(row)
    if turn.status is not TurnStatus.RUNNING:
        return False
    check_step(turn.id, turn.status, status)
    why = storable(why) if why else None
    messages = last_words(tx, turn)
    fenced = tx.one(
        Q.fence_lease, id=turn.conversation_id, turn=turn.id, count=len(messages), bytes=size_of(messages)
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
        now=tx.now,
    )
    data = {"code": code} if status is TurnStatus.FAILED else {"seq": fenced[0], "why": why}
    tx.event(_EVENTS[status], turn.owner, turn.conversation_id, turn.session_id, turn.id, **data)
    return True


def last_words(tx: Transaction, turn: Turn) -> list[NewMessage]:
    """Messages that close an unfinished turn: results for its open calls, and its draft."""
    open_calls: dict[str, bool] = {}
    for _seq, calls, answers, own_calls in tx.all(
        Q.marks_of_turn, conversation=turn.conversation_id, first_seq=turn.first_seq, turn=turn.id
    ):
        if own_calls or calls:  # mixed with own calls, a client's calls were not sent to it yet
            closing = msgspec.json.decode(own_calls or calls)
            open_calls.update(dict.fromkeys(closing, own_calls is not None))
        open_calls.pop(answers, None)
    messages = [tool_result(call, OUTCOME_UNKNOWN, inner=own) for call, own in open_calls.items()]
    drafts = tx.all(Q.drafts_of_reply, turn=turn.id, conversation=turn.conversation_id)
    reply = interrupted_reply(to_draft(draft) for draft in drafts)
    return [*messages, reply] if reply else messages
