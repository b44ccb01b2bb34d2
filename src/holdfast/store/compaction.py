"""The transactions of compactions: claim, outline, swap, release.

The swap is one transaction: the parent ends as `compaction`, the child opens with its view and inherits
everything of the conversation's state (attached node, due time, deferral, background processes, the running
turn). It happens only if the tip and its visible messages are still what was summarised. No message changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec

from ..domain.compaction import (
    Claim,
    ClaimRefused,
    Compacted,
    CompactionFailure,
    CompactionOutcome,
    CompactionOutdated,
    CompactionStats,
    CompactionWaits,
    ContextOutline,
    Entry,
    Report,
    Trigger,
    pause_after,
)
from ..domain.context_size import measured_in
from ..domain.contexts import mark_interrupted, summary_body
from ..domain.conversations import Address
from ..domain.events import EventType
from ..domain.messages import MessageStatus
from ..domain.sessions import Edge, EndReason, Opening, Session
from ..domain.turns import Lease, reset_before
from ..domain.views import Summary, View, spans
from ..errors import LeaseLost
from .context import rendering_with_marks
from .resolve import conversation_of, find, session_of
from .rows import MICROSECOND, to_message, to_stamp, to_time, to_time_or_none, to_turn
from .sessions import continue_conversation, require_node, write_end
from .transaction import Q, Transaction
from .values import LARGEST_LIST


def report_of(tx: Transaction, conversation_id: str) -> Report | None:
    """A model's last token report for this conversation's context; None: there is none yet."""
    for usage, session_id, model in tx.all(Q.newest_usages, conversation=conversation_id):
        measured = measured_in(msgspec.json.decode(usage)) if usage else None
        if measured is not None:
            return Report(measured, session_id, model)
    return None


def outline(tx: Transaction, owner: str | None, session_id: str) -> ContextOutline:
    """A session's context, message by message. Cost depends on the context, not on what is stored."""
    session = session_of(tx, owner, session_id)
    conversation = conversation_of(tx, owner, session.conversation_id)
    rendering, marks, hidden = rendering_with_marks(tx, conversation.id, session.view, session.last_seq)
    entries: list[Entry] = []
    for place, part in enumerate(session.view.parts):
        if isinstance(part, Summary):
            body = summary_body(part.text)
            entries.append(Entry(part.first, part.last, "user", (body,), place, part.text))
            continue
        for first, last in spans((part,), session.last_seq):
            for row in tx.all(
                Q.messages_forward, conversation=conversation.id, first=first, last=last, limit=LARGEST_LIST
            ):
                message = to_message(row)
                seq, mark = message.seq, marks.get(message.seq)
                if seq in hidden or seq in rendering.left_out:
                    continue
                cut_short = message.status is MessageStatus.INTERRUPTED
                body = mark_interrupted(message.body) if cut_short else message.body
                entries.append(
                    Entry(
                        seq,
                        seq,
                        message.role,
                        (body, *rendering.inserted.get(seq, ())),
                        place,
                        calls=mark is not None and bool(mark.calls),
                        answers=mark is not None and mark.answers is not None,
                    )
                )
    return ContextOutline(session, conversation.revision, entries, report_of(tx, conversation.id))


def claim(
    tx: Transaction,
    session_id: str,
    node_id: str,
    span: timedelta,
    *,
    why: Trigger,
    tokens: int,
    window: int,
    lease: Lease | None = None,
) -> Claim | ClaimRefused:
    """Claim the compaction of the conversation whose tip this is, for `span` at most, and write its
    event.

    ClaimRefused, having written nothing: it is not the open tip, a live node holds the claim, or earlier
    compactions failed (ignored for a manual one). A turn, by its lease, takes the claim from any holder.
    LeaseLost and NodeReaped write nothing.
    """
    session = session_of(tx, None, session_id)
    if lease is not None:
        require_lease(tx, lease)
    require_node(tx, node_id)
    if session.ended or session.tip_id != session.id:
        return ClaimRefused(f"session {session_id} has ended; the conversation continues in {session.tip_id}")
    conversation_id = session.conversation_id
    known = tx.one(Q.compaction_of, conversation=conversation_id, now=tx.now)
    token, failures, retry_at, holder = known or (0, 0, None, None)
    cooling = retry_at is not None and retry_at > tx.now
    if holder is not None and lease is None:
        return ClaimRefused(f"conversation {conversation_id} is being compacted already")
    if cooling and lease is None and why not in (Trigger.BY_HAND, Trigger.CLIENT):
        return ClaimRefused(f"{failures} compactions in a row have failed", to_time_or_none(retry_at))
    if known is None:
        tx.run(Q.insert_compaction, conversation=conversation_id)
    row = tx.one(
        Q.claim_compaction,
        conversation=conversation_id,
        session=session_id,
        node=node_id,
        token=token,
        until=tx.now + span // MICROSECOND,
    )
    if row is None:  # another node claimed it first
        return ClaimRefused(f"conversation {conversation_id} is being compacted already")
    tx.event(
        EventType.COMPACTION_STARTED,
        session.owner,
        conversation_id,
        session_id,
        lease.turn_id if lease else None,
        why=why.value,
        tokens=tokens,
        window=window,
    )
    until = to_time_or_none(retry_at)
    return Claim(conversation_id, session_id, session.owner, node_id, row[0], failures, until, cooling)


def require_lease(tx: Transaction, lease: Lease) -> None:
    held = tx.one(Q.holds_lease, conversation=lease.conversation_id, token=lease.token, node=lease.node_id)
    if held is None:
        raise LeaseLost(lease.conversation_id, lease.token)


def compact(
    tx: Transaction,
    claim: Claim,
    view: View,
    revision: int,
    facts: CompactionStats,
    *,
    lease: Lease | None = None,
) -> CompactionOutcome:
    """End the session as `compaction` and open one with this view after it: one transaction.

    The child inherits everything of its parent but the context: source, program, dates, deferral, model,
    background processes; no timer changes. A turn, by its lease, continues in the child. Done only if the
    tip is still the claimed one and nothing but appended messages has changed (`revision`). Otherwise, or
    if another turn holds the conversation, it returns an outcome and has written nothing. LeaseLost
    writes nothing.
    """
    if lease is not None:
        require_lease(tx, lease)
    found = find(tx, None, Address(id=claim.conversation_id))
    if found is None:
        return CompactionOutdated("the conversation was deleted")
    conversation, parent = found.conversation, found.tip
    if parent.id != claim.session_id or parent.ended or conversation.revision != revision:
        return CompactionOutdated("the conversation was changed otherwise than by new messages")
    if parent.attached and tx.one(Q.node_is_present, id=parent.node_id) is None:
        return CompactionOutdated("its program is gone")
    if lease is None and conversation.holder is not None:
        return CompactionWaits(conversation.id, conversation.holder, conversation.turn_id)
    failure, turn_id = facts.failure, lease.turn_id if lease else None
    breaker = _after(tx, claim, failure, facts.why) if failure else _Breaker()
    if not _let_go(tx, claim, breaker):
        return CompactionOutdated("it is being compacted elsewhere")
    swapped = tx.one(
        Q.compare_tip,
        id=conversation.id,
        tip=parent.id,
        revision=revision,
        node=lease.node_id if lease else None,
        token=lease.token if lease else -1,
    )
    assert swapped is not None  # all of it was read in this same transaction
    if failure is not None:
        _tell_failure(tx, claim, failure, facts.why, turn_id, breaker)
    child = _go_on(tx, parent, view, lease)
    tx.event(
        EventType.COMPACTION_COMPLETED,
        claim.owner,
        claim.conversation_id,
        child.id,
        turn_id,
        parent=parent.id,
        why=facts.why.value,
        tokens_before=facts.tokens_before,
        tokens_after=facts.tokens_after,
        messages=facts.messages,
        model_free=failure is not None,
    )
    if lease is None:
        return Compacted(child)
    moved = replace(lease, session_id=child.id)
    return Compacted(child, moved)


def _go_on(tx: Transaction, parent: Session, view: View, lease: Lease | None) -> Session:
    """End the parent and open the child, which inherits everything of the parent."""
    recheck_at, deferral = tx.one(Q.session_deferral, id=parent.id) or (None, None)
    fresh_by = None
    if lease is not None:
        row = tx.one(Q.turn_by_id, id=lease.turn_id, owner=None)
        fresh_by = reset_before(parent, to_turn(row)) if row else None
    write_end(tx, parent, EndReason.COMPACTION)
    child = continue_conversation(
        tx,
        conversation_of(tx, None, parent.conversation_id),
        Opening(Edge.COMPACTION, parent.id, view),
        parent.node_id if parent.attached else None,
        parent.source,
        fresh_by=fresh_by,
    )
    tx.run(Q.carry_over, id=child.id, model=parent.model, recheck_at=recheck_at, deferral=deferral)
    tx.run(Q.move_processes, conversation=parent.conversation_id, parent=parent.id, child=child.id)
    if lease is not None:
        tx.run(Q.move_turn, id=lease.turn_id, session=child.id)
    return session_of(tx, None, child.id)


def give_up(
    tx: Transaction, claim: Claim, failure: CompactionFailure, why: Trigger, *, turn_id: str | None = None
) -> bool:
    """Release the claim of a failed compaction and write its event; everything else stays. Repeatable
    failures back off, longer with each failure in a row. False if another holder has taken the claim
    over."""
    breaker = _after(tx, claim, failure, why)
    if not _let_go(tx, claim, breaker):
        return False
    _tell_failure(tx, claim, failure, why, turn_id, breaker)
    return True


@dataclass(frozen=True, slots=True)
class _Breaker:
    """Circuit breaker: failures in a row, and when to retry."""

    failures: int = 0
    retry_at: int | None = None


def _after(tx: Transaction, claim: Claim, failure: CompactionFailure, why: Trigger) -> _Breaker:
    """Repeatable failures back off, longer each time. A manual compaction may be repeated at once."""
    if failure.is_nobodys_fault or failure is CompactionFailure.COOLING_DOWN or why is Trigger.BY_HAND:
        return _Breaker(claim.failures, to_stamp(claim.retry_at) if claim.retry_at else None)
    failures = claim.failures + 1
    return _Breaker(failures, tx.now + pause_after(failures) // MICROSECOND)


def _let_go(tx: Transaction, claim: Claim, breaker: _Breaker) -> bool:
    row = tx.one(
        Q.release_compaction,
        conversation=claim.conversation_id,
        token=claim.token,
        node=claim.node_id,
        failures=breaker.failures,
        retry_at=breaker.retry_at,
    )
    return row is not None


def _tell_failure(
    tx: Transaction,
    claim: Claim,
    failure: CompactionFailure,
    why: Trigger,
    turn_id: str | None,
    breaker: _Breaker,
) -> None:
    tx.event(
        EventType.COMPACTION_PUT_OFF if failure.is_nobodys_fault else EventType.COMPACTION_FAILED,
        claim.owner,
        claim.conversation_id,
        claim.session_id,
        turn_id,
        why=why.value,
        reason=failure.value,
        failures=breaker.failures,
        retry_at=to_time(breaker.retry_at).isoformat() if breaker.retry_at else None,
    )


def note_suspected_window(
    tx: Transaction,
    session: Session,
    model: str | None,
    *,
    reported: int,
    given: int,
    reports: int,
    window: int,
) -> None:
    """Write an event of this session: its model seems to drop input beyond `reported` tokens. By our
    estimate it was given more, this many times."""
    tx.event(
        EventType.WINDOW_SUSPECTED,
        session.owner,
        session.conversation_id,
        session.id,
        model=model,
        reported=reported,
        given=given,
        reports=reports,
        window=window,
    )
