"""The transactions of turns: begin, append, commit the reply, end without one.

`request_keys` recognises a request that was sent before, `recovery` resumes its turn, `resets.session_for`
chooses the session of a turn, `leases` takes and checks its lease, and `turn_ends` leaves the same state
however a turn ends without an answer. `turn_lists` reads turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from ..domain.conversations import Address
from ..domain.drafts import Draft
from ..domain.events import EventType
from ..domain.fingerprints import EMPTY
from ..domain.ids import storable
from ..domain.messages import NewMessage, size_of
from ..domain.notices import Notice
from ..domain.recovery import Cause, Recovery
from ..domain.request_keys import RequestKey
from ..domain.sessions import Edge, Session
from ..domain.turns import (
    Delivery,
    ForkPoint,
    Lease,
    Turn,
    TurnBegun,
    TurnFailure,
    TurnOutcome,
    TurnOutdated,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
    TurnWaits,
    check_unanswered,
    is_due,
)
from ..domain.usage import input_tokens, output_tokens, tokens_in, usable_usage
from ..errors import (
    BadInput,
    LeaseLost,
    NotFound,
)
from .api_keys import spend
from .deliveries import add_reply, add_response_event
from .forks import fork_for
from .leases import holds, new_lease, spoken_in, take_lease, waits_for, write_under
from .messages import exclude_replies
from .nodes import release_orphaned
from .notices import add as add_notice
from .notices import give, tell
from .recovery import take_up
from .request_keys import insert_key, known_request
from .resets import schedule_reset, session_for_turn, touch
from .resolve import find, lookup, session_of
from .responses import answered_by, append_draft, insert_response
from .rows import to_json, to_session_spoken_in, to_stamp, to_time, to_turn
from .sessions import check_quotas, insert_alias, open_conversation
from .transaction import Q, Transaction
from .turn_ends import end_waiting, end_without_answer

REPEATED = frozenset({TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.COMPLETED, TurnStatus.CANCELLED})
"""A request of a turn in such a state is that turn; in any other, it resumes it."""


def begin(tx: Transaction, request: TurnRequest) -> TurnOutcome:
    """Resolve, take the lease, open a session if one is needed, commit the messages: one transaction.

    Idempotent by owner, route, key and body hash. Another turn that holds the conversation, a request
    seen before, and a conversation that changed since the caller read it are outcomes; RequestMismatch,
    TurnSuperseded, NotFound and NodeReaped are raised. Nothing is written unless the turn has begun.
    """
    if not request.messages and not request.answer_existing and request.resumes_turn is None:
        raise BadInput("a turn needs at least one message")
    known = known_request(tx, request)
    if isinstance(known, RequestKey):
        request, known = replace(request, request_key=known), None
    if (
        known is not None
        and known.status is TurnStatus.RUNNING
        and release_orphaned(tx, known.conversation_id)
    ):
        known = known_request(tx, request)
        assert not isinstance(known, RequestKey)
    if known is not None and known.joined is not None:
        known = answered_by(tx, known) or known  # its messages joined that one
    if known is not None and (known.status in REPEATED or known.joined is not None):
        return TurnRepeated(known, session_of(tx, request.owner, known.session_id))
    if known is not None:
        if request.by_recovery and not is_due(known, to_time(tx.now)):
            return TurnOutdated()  # another node has taken it up, or it was withdrawn
        return take_up(tx, request, known)
    reached = lookup(tx, request.owner, request.address)
    if reached is None:
        if request.seen is not None and request.seen.conversation_id:
            return TurnOutdated()
        return _begin_first(tx, request)
    history = reached.history
    if (
        reached.is_ready_for(request.node_id, tx.now, tx.policies)
        and request.messages  # without any, it answers stored ones, which the session may not show
        and not request.branch
        and not request.regenerates
    ):
        if request.seen is not None and request.seen != reached.seen:
            return TurnOutdated()
        check_quotas(tx, request.owner, size_of(request.messages), reached.seen.conversation_id, reached.held)
        session = to_session_spoken_in(
            reached.row, tx.now, request.turn_id, request.node_id, len(request.messages), request.model
        )
        begun = start(
            tx,
            request,
            session,
            reached.token,
            reached.addressed,
            history,
            revision=reached.seen.revision,
            may_have_notices=reached.may_have_notices,
        )
        return begun if reached.may_have_memories else replace(begun, may_have_memories=False)
    place = reached.place()
    waits = waits_for(tx, place.conversation)
    if waits is None and reached.queued and not request.overtakes:
        (first,) = tx.one(Q.first_queued, conversation=place.conversation.id) or (None,)
        waits = TurnWaits(place.conversation.id, "", first)
    if waits is not None:  # looked up again, now that the conversation is locked: the same request may run
        return begin(tx, request) if isinstance(known_request(tx, request), Turn) else waits
    if request.seen is not None and request.seen != reached.seen:
        return TurnOutdated()
    if request.branch is not None:
        return _begin_branch(tx, request, request.branch)
    check_quotas(tx, request.owner, size_of(request.messages), place.conversation.id, reached.held)
    if release_orphaned(tx, place.conversation.id):
        history = None
        reached = lookup(tx, request.owner, request.address)
        assert reached is not None
        place = reached.place()
        if waits := waits_for(tx, place.conversation):  # the orphaned turn is covered: it comes first
            return waits
    if request.regenerates:
        history = None
        exclude_replies(tx, place.conversation, request.regenerates)
    session = session_for_turn(tx, request, place.conversation, place.tip)
    session = spoken_in(tx, request, session)
    return start(tx, request, session, place.conversation.token, place.addressed, history)


def _begin_branch(tx: Transaction, request: TurnRequest, branch: ForkPoint) -> TurnBegun:
    """Fork for a history that differs, and begin the turn there; the source conversation is unchanged."""
    node_id, attached = request.node_id, request.attached
    adds = size_of(request.messages)
    session = fork_for(tx, request.owner, branch.session_id, node_id, branch.seq, None, attached, adds=adds)
    return start(tx, request, spoken_in(tx, request, session), 0, None, None)


def _begin_first(tx: Transaction, request: TurnRequest) -> TurnBegun:
    """The address is unknown: open a conversation for it."""
    if (request.address.id or request.address.key) and not request.address.may_create:
        raise NotFound(request.address.noun, str(request.address))
    node_id = request.node_id if request.attached else None
    parent = find(tx, request.owner, Address(id=request.parent)) if request.parent else None
    session = open_conversation(
        tx,
        request.owner,
        request.address,
        node_id,
        request.source,
        forked_from=parent.tip if parent else None,
        edge=Edge.SUBAGENT if parent else None,
        anonymous=request.anonymous,
        adds=size_of(request.messages),
        begins=request,
    )
    lease = new_lease(request, request.turn_id, session, 1, _notifies(request), ())
    return replace(_write_turn(tx, request, session, lease, None, EMPTY), may_have_memories=False)


def start(
    tx: Transaction,
    request: TurnRequest,
    session: Session,
    token: int,
    addressed: str | None,
    history: bytes | None,
    *,
    revision: int | None = None,
    may_have_notices: bool = True,
) -> TurnBegun:
    """Take the lease, store the messages, write the turn. `session` already has its state after the turn
    began."""
    take_lease(tx, request, request.turn_id, session, token, request.messages)
    notices = give(tx, session.conversation_id, request.turn_id) if may_have_notices else ()
    tx.run(Q.touch_session, id=session.id, now=tx.now, model=request.model, input_tokens=0, output_tokens=0)
    if not tx.policies.never:
        schedule_reset(tx, session)
    lease = new_lease(request, request.turn_id, session, token + 1, _notifies(request), notices)
    return _write_turn(tx, request, session, lease, addressed, history, notices, revision)


def _write_turn(
    tx: Transaction,
    request: TurnRequest,
    session: Session,
    lease: Lease,
    addressed: str | None,
    history: bytes | None,
    notices: tuple[Notice, ...] = (),
    revision: int | None = None,
) -> TurnBegun:
    """Store the messages and the turn, under its lease."""
    first_seq = session.last_seq - len(request.messages) + 1
    if request.starts_queued:
        tx.run(
            Q.start_queued_turn,
            id=request.turn_id,
            session=session.id,
            node=request.node_id,
            first_seq=first_seq,
            now=tx.now,
        )
    else:
        tx.run(
            Q.insert_turn,
            id=request.turn_id,
            conversation=session.conversation_id,
            session=session.id,
            owner=request.owner,
            node=request.node_id,
            first_seq=first_seq,
            model=request.model,
            response_id=request.response.id if request.response else None,
            delivery=request.delivery,
            stored=request.stored.request,
            origin=request.stored.origin.value,
            recover=request.stored.recover,
            now=tx.now,
        )
    insert_key(tx, request)
    if request.alias is not None:
        insert_alias(tx, request.owner, request.alias, session.conversation_id)
    tx.insert_messages(
        request.messages, session.conversation_id, session.last_seq, session.id, request.turn_id
    )
    if request.response is not None:
        insert_response(tx, request, request.response)
    tx.event(
        EventType.TURN_STARTED,
        request.owner,
        session.conversation_id,
        session.id,
        request.turn_id,
        seq=session.last_seq,
        node=request.node_id,
    )
    turn = Turn(
        id=request.turn_id,
        conversation_id=session.conversation_id,
        session_id=session.id,
        owner=request.owner,
        status=TurnStatus.RUNNING,
        node_id=request.node_id,
        attempt=1,
        first_seq=first_seq,
        started_at=session.last_activity_at,
        model=request.model,
        response_id=request.response.id if request.response else None,
        delivery=request.delivery,
        recovery=Recovery(request.stored.origin, request.stored.recover),
    )
    return TurnBegun(turn, lease, session, addressed, history=history, notices=notices, revision=revision)


def _notifies(request: TurnRequest) -> str | None:
    return request.response.id if request.response is not None and request.response.webhook else None


def append(tx: Transaction, lease: Lease, messages: Sequence[NewMessage]) -> int:
    """Append the turn's messages as they are made; returns the last seq. LeaseLost writes nothing."""
    last_seq: int = write_under(tx, lease, Q.number_messages, messages)[0]
    return last_seq


def commit_reply(
    tx: Transaction,
    lease: Lease,
    messages: Sequence[NewMessage] = (),
    *,
    usage: Mapping[str, int] | None = None,
    answer: bytes | None = None,
    history: bytes | None = None,
    draft: Draft | None = None,
    delivery: Delivery | None = None,
    notice: str | None = None,
    model: str | None = None,
    ended_at: datetime | None = None,
) -> int:
    """Append the reply, complete the turn and release the lease: one transaction.

    `answer` is stored for retries of the request. `history`: fingerprint chain of all messages visible to
    the client now; None: unknown. `draft`: the reply's last events. `delivery`: how much of the answer
    clients have received; None: unchanged. `notice`: a notice for the person. `model`: the one that answered.
    `ended_at`: the end of the turn as its events say it, by the store's clock; None: now.
    Returns the conversation's last seq. LeaseLost writes nothing.
    """
    if draft is not None:
        append_draft(tx, lease, draft)
    last_seq: int
    last_seq, owner, places = write_under(tx, lease, Q.release_lease, messages, history=history)
    usage = _usable(tx, lease, usage)
    tx.run(
        Q.settle_turn,
        id=lease.turn_id,
        status=TurnStatus.COMPLETED.value,
        error=None,
        usage=to_json(usage) if usage else None,
        answer=answer,
        delivery=delivery,
        why=None,
        cause=None,
        kept_until=None,
        model=storable(model)[:200] if model else None,
        now=tx.now if ended_at is None else to_stamp(ended_at),
    )
    _touch(tx, lease.session_id, usage, lease.api_key)
    if lease.carries_notices:
        tell(tx, lease.conversation_id, lease.turn_id)
    if notice is not None:
        add_notice(tx, owner, lease.conversation_id, "answered_late", notice)
    if places:
        add_reply(tx, lease.conversation_id, lease.turn_id)
    if lease.notifies is not None:
        add_response_event(tx, lease.notifies, TurnStatus.COMPLETED, answer=answer)
    tx.event(
        EventType.TURN_COMPLETED, owner, lease.conversation_id, lease.session_id, lease.turn_id, seq=last_seq
    )
    return last_seq


def settle_turn(tx: Transaction, lease: Lease, settlement: TurnFailure) -> None:
    """End a turn without an answer (interrupted, failed, cancelled) and release the lease.

    Its draft becomes an interrupted reply; its open tool calls are closed as "interrupted, outcome
    unknown"; the user's message stays. Counts as activity, because the client has seen the turn end, unless
    the turn waits to be taken up. LeaseLost writes nothing.
    """
    if not holds(tx, lease):
        raise LeaseLost(lease.conversation_id, lease.token)
    if settlement.messages:
        append(tx, lease, settlement.messages)
    usage = _usable(tx, lease, settlement.usage)
    end_without_answer(
        tx,
        lease.turn_id,
        settlement.status,
        why=settlement.error,
        code=settlement.code,
        usage=usage,
        delivery=settlement.delivery,
        cause=settlement.cause,
        delay=settlement.delay,
    )
    waits = tx.one(Q.is_waiting, id=lease.turn_id) is not None
    _touch(tx, lease.session_id, usage, lease.api_key, is_activity=not waits)


def cancel_turn(
    tx: Transaction,
    owner: str | None,
    turn_id: str,
    status: TurnStatus,
    why: str,
    *,
    cause: Cause | None = None,
) -> bool:
    """End a running turn from outside, as `settle_turn` would; its writer is fenced off. A waiting turn is
    withdrawn. With a `cause`, a server ends it, not a person: that is not activity. A turn that the policy
    covers waits to be retried.

    False if it was no longer running, nor waiting.
    """
    check_unanswered(status)
    row = tx.one(Q.turn_by_id, id=turn_id, owner=owner)
    if row is None:
        raise NotFound("turn", turn_id)
    turn = to_turn(row)
    if turn.waits and cause is None:
        end_waiting(tx, turn, status, why)
    elif not end_without_answer(tx, turn_id, status, why=why, cause=cause):
        return False
    if cause is None:
        _touch(tx, turn.session_id, None)
    return True


def _usable(tx: Transaction, lease: Lease, usage: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """Usage figures that can be stored. Others are dropped and logged: figures never undo an answered
    turn."""
    if not usage:
        return None
    figures, dropped = usable_usage(usage)
    if dropped:
        names = ", ".join(sorted(dropped))
        tx.told.append(
            f"turn {lease.turn_id}: its usage has figures that are not token counts, dropped: {names}"
        )
    return figures


def _touch(
    tx: Transaction,
    session_id: str,
    usage: Mapping[str, int] | None,
    api_key: str | None = None,
    *,
    is_activity: bool = True,
) -> None:
    """Add the usage, and restart the reset timer if this is activity."""
    usage = usage or {}
    if api_key is not None:
        spend(tx, api_key, tokens_in(usage))
    tx.run(
        Q.touch_session,
        id=session_id,
        now=tx.now if is_activity else None,
        model=None,
        input_tokens=input_tokens(usage),
        output_tokens=output_tokens(usage),
    )
    if is_activity:
        touch(tx, session_id)
