"""Resumes turns: on a retry of their request, by id, or by a server after a death or a refusal of the model.

A turn that a server will retry waits: it keeps its conversation's place. `take_up` begins another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..domain.drafts import first_event_of
from ..domain.events import EventType
from ..domain.messages import NewMessage
from ..domain.recovery import Cause
from ..domain.turns import (
    Delivery,
    Lease,
    Turn,
    TurnBegun,
    TurnOutcome,
    TurnRequest,
    TurnStatus,
    check_step,
)
from ..errors import Conflict, ConversationBusy, TurnSuperseded
from .leases import new_lease, spoken_in, take_lease, waits_for, write_under
from .nodes import release_orphaned
from .notices import give
from .request_keys import is_newest
from .resets import schedule_reset, session_for_turn
from .resolve import conversation_of, session_of
from .rows import to_time, to_turn
from .transaction import Q, Transaction
from .turn_ends import end_waiting, park
from .turn_lists import stored_request, turn_of

KNOWN_NOW = "its outcome became known"


def retry(tx: Transaction, owner: str | None, turn_id: str) -> Turn:
    """Have a server take this turn up as soon as possible, whatever its budget. Conflict if it runs, has an
    answer or was cancelled, if its request is no longer kept, or if it is not the newest."""
    turn = turn_of(tx, owner, turn_id)
    if turn.status not in (TurnStatus.INTERRUPTED, TurnStatus.FAILED):
        raise Conflict(
            f"turn {turn_id} is {turn.status.value}; only one that was interrupted or has failed can be "
            "retried"
        )
    if not is_newest(tx, turn):
        raise TurnSuperseded(turn_id)
    if stored_request(tx, owner, turn_id) is None:
        raise Conflict(f"the request of turn {turn_id} is no longer kept; send it as a new request")
    if not turn.waits and not tx.run(Q.claim_for_waiting, id=turn.conversation_id, turn=turn.id):
        conversation = conversation_of(tx, owner, turn.conversation_id)
        raise ConversationBusy(conversation.id, conversation.holder, conversation.turn_id)
    park(tx, turn, replace(turn.recovery, due_at=to_time(tx.now), cause=Cause.RETRY))
    return turn_of(tx, owner, turn_id)


def give_up(tx: Transaction, turn_id: str, why: str) -> bool:
    """End a waiting turn as failed, for this reason; its conversation is free. False if it was not
    waiting."""
    row = tx.one(Q.turn_by_id, id=turn_id, owner=None)
    turn = to_turn(row) if row is not None else None
    if turn is None or not turn.waits:
        return False
    end_waiting(tx, turn, TurnStatus.FAILED, why, given_up=True)
    return True


def replace_results(
    tx: Transaction, lease: Lease, seqs: Sequence[int], messages: Sequence[NewMessage]
) -> int:
    """Append the results of calls whose outcome was unknown, and exclude the messages `seqs`, which they
    replace; returns the last seq. LeaseLost writes nothing."""
    last_seq: int = write_under(tx, lease, Q.number_messages, messages)[0]
    for seq in seqs:
        tx.run(Q.insert_exclusion, conversation=lease.conversation_id, seq=seq, reason=KNOWN_NOW, now=tx.now)
    tx.run(Q.touch_revision, id=lease.conversation_id)
    return last_seq


def take_up(tx: Transaction, request: TurnRequest, known: Turn) -> TurnOutcome:
    """Resume an unfinished turn on a retry: its messages and finished tool calls stay, only the partial reply
    leaves the context. No tool is run again."""
    if not is_newest(tx, known):
        raise TurnSuperseded(known.id)
    check_step(known.id, known.status, TurnStatus.RUNNING)
    conversation = conversation_of(tx, request.owner, known.conversation_id)
    waits = waits_for(tx, conversation, known.id)
    if waits is not None:
        return waits
    release_orphaned(tx, conversation.id)
    conversation = conversation_of(tx, request.owner, conversation.id)
    tip = session_of(tx, request.owner, conversation.tip_id)
    session = session_for_turn(tx, request, conversation, tip, known)
    for (seq,) in tx.all(
        Q.interrupted_replies_of_turn, conversation=conversation.id, first_seq=known.first_seq, turn=known.id
    ):
        tx.run(Q.insert_exclusion, conversation=conversation.id, seq=seq, reason="retried", now=tx.now)
    tx.run(Q.touch_revision, id=conversation.id)
    # An attempt of a server is no activity: else each one would put off a reset for longer.
    active_at = session.last_activity_at if request.by_recovery else to_time(tx.now)
    session = replace(spoken_in(tx, request, session, known), last_activity_at=active_at)
    take_lease(tx, request, known.id, session, conversation.token)
    # A client that resumes by turn id knows the conversation, whatever part of the answer was sent.
    by_id = request.resumes_turn is not None and not request.by_recovery
    delivery = Delivery.PART if by_id else max(known.delivery, request.delivery)
    (stored,) = tx.one(Q.stored_request, id=known.id, owner=None) or (None,)
    tx.run(
        Q.take_up_turn,
        id=known.id,
        node=request.node_id,
        session=session.id,
        delivery=delivery,
        stored=request.stored.request,
    )
    key = request.request_key
    if key is not None and key.implied:
        body_hash = key.fingerprint
        tx.run(Q.renew_request, owner=request.owner, route=key.route, key=key.key, body_hash=body_hash)
    now = None if request.by_recovery else tx.now
    tx.run(Q.touch_session, id=session.id, now=now, model=request.model, input_tokens=0, output_tokens=0)
    if now is not None and not tx.policies.never:
        schedule_reset(tx, session)
    tx.event(
        EventType.TURN_TAKEN_UP,
        request.owner,
        conversation.id,
        session.id,
        known.id,
        attempt=known.attempt + 1,
        node=request.node_id,
        by="recovery" if request.by_recovery else "retry",
        attempts=known.recovery.tries + 1,
    )
    turn = replace(
        known,
        session_id=session.id,
        status=TurnStatus.RUNNING,
        node_id=request.node_id,
        attempt=known.attempt + 1,
        ended_at=None,
        error=None,
        delivery=delivery,
        why=None,
        recovery=replace(
            known.recovery,
            tries=known.recovery.tries + 1,
            all_tries=known.recovery.all_tries + 1,
            due_at=None,
            cause=None,
        ),
    )
    (unreserved,) = tx.one(Q.next_event, turn=known.id) or (0,)
    next_event = first_event_of(turn.attempt, unreserved - 1)
    notices = give(tx, conversation.id, known.id)
    lease = new_lease(request, known.id, session, conversation.token + 1, known.response_id, notices)
    return TurnBegun(
        turn, lease, session, None, taken_up=True, next_event=next_event, notices=notices, request=stored
    )
