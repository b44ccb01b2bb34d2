"""The transactions of resets: schedule, judge, end or defer a session.

`domain.resets` decides whether a session is due. Here is what the decision reads and what follows from it, in
one transaction: the end with its reason, the event, the notice, the stop requests for its processes. A reset
is done by a sweep, or by the next message if that comes first: by the same function.

`session_for` is the only place that chooses the session of the next message: an open tip that is due is reset
first, and one that ended with its process is continued only if its policy would not have reset it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from ..domain.conversations import Address, Conversation
from ..domain.events import EventType
from ..domain.messages import NewMessage
from ..domain.processes import Process, ProcessLimits, hold_of, label_of, log_name
from ..domain.resets import Blocker, Decision, Reason, Verdict, due, late, verdict
from ..domain.sessions import FRESH_AFTER, RESETS, Session, opening_after
from ..domain.turns import Turn, TurnRequest
from ..domain.why import ResetDecision, clock_of, line_of, notice_of
from ..errors import NotFound, ToolCallClosed
from . import notices
from . import policies as store_policy
from .context import rendering_of
from .nodes import release_orphaned
from .processes import request_stops, running_of
from .resolve import conversation_of, find, session_of
from .rows import MICROSECOND, to_session, to_stamp, to_time
from .sessions import (
    continue_conversation,
    next_due,
    open_conversation,
    require_node,
    write_end,
)
from .transaction import Q, Transaction
from .values import check_limit


def schedule_reset(tx: Transaction, session: Session) -> None:
    """Compute when this session is due, by the current policies. Clears any deferral."""
    at = next_due(tx, session.source, session.since, session.last_activity_at)
    tx.run(Q.date_session, id=session.id, next_due_at=at, stamp=tx.policies.stamp)


def touch(tx: Transaction, session_id: str) -> None:
    """Restart the session's reset timer: there was activity."""
    if not tx.policies.never:
        schedule_reset(tx, session_of(tx, None, session_id))


def reschedule(tx: Transaction, limit: int = 1000, *, over_servers: bool = True) -> int:
    """Reschedule sessions that were scheduled under other policies; returns how many, 0: none is left.
    `over_servers=False`: only if no server has recorded other policies for this store."""
    if not over_servers and store_policy.leaves_dating(tx):
        return 0
    rows = tx.all(Q.dated_by_others, stamp=tx.policies.stamp, limit=limit)
    for (session_id,) in rows:
        schedule_reset(tx, session_of(tx, None, session_id))
    return len(rows)


def due_sessions(tx: Transaction, limit: int = 100) -> list[str]:
    """Open sessions whose reset is due, the longest due first; only those scheduled under our own
    policies. Cost depends on what is due, not on what is stored."""
    rows = tx.all(Q.due_sessions, now=tx.now, stamp=tx.policies.stamp, limit=limit)
    return [session_id for (session_id,) in rows]


def judge_session(tx: Transaction, owner: str | None, session_id: str) -> ResetDecision:
    """Whether this session would be reset now, with every reason for and against. Changes nothing."""
    session = session_of(tx, owner, session_id)
    return ResetDecision(session, tx.policies.of(session.source), judge(tx, session))


def judge(tx: Transaction, session: Session) -> Verdict:
    """Whether this session is reset now, with every reason for and against."""
    now = to_time(tx.now)
    policy = tx.policies.of(session.source)
    wanted = None if session.ended else due(policy, session.since, session.last_activity_at)
    blockers = blockers_of(tx, session, wanted.at if wanted else None)
    return verdict(session, policy, blockers, now, tx.policies.look_again)


def blockers_of(tx: Transaction, session: Session, due_at: datetime | None) -> list[Blocker]:
    """What may block a reset of this session."""
    if session.ended:
        return []
    found: list[Blocker] = []
    policy, now = tx.policies.of(session.source), to_time(tx.now)
    clock = clock_of(policy, now)
    if session.running_turn is not None and session.running_node is None:
        until = due_at + tx.policies.max_block if due_at else None
        said = f"turn {session.running_turn} waits for a retry by a server"
        if until is not None:
            said = f"{said}, until {clock(until)} at most"
        found.append(Blocker(Reason("turn", said, until=until), until is None or now < until))
    elif session.running_turn is not None:
        found.append(Blocker(Reason("turn", f"turn {session.running_turn} is running"), True))
    elif calls := awaited_calls(tx, session):
        until = due_at + tx.policies.max_block if due_at else None
        several = "s" if len(calls) > 1 else ""
        said = f"the result{several} of {len(calls)} tool call{several} {'are' if several else 'is'} awaited"
        if until is not None:
            said = f"{said}, until {clock(until)} at most"
        found.append(Blocker(Reason("tool_calls", said, until=until), until is None or now < until))
    for process in running_of(tx, session.conversation_id):
        found.append(hold_of(process, due_at, now, limits_of(tx), clock))
    return found


def limits_of(tx: Transaction) -> ProcessLimits:
    policies = tx.policies
    return ProcessLimits(policies.max_block, policies.active_window, policies.stop_processes)


def awaited_calls(tx: Transaction, session: Session) -> tuple[str, ...]:
    """The client's tool calls whose results may still arrive."""
    row = tx.one(Q.newest_mark, conversation=session.conversation_id)
    if row is None or row[0] != session.last_seq or (row[1] is None and row[2] is None):
        return ()
    return rendering_of(tx, session.conversation_id, session.view, session.last_seq).awaited


def brings_results(tx: Transaction, session: Session, messages: Sequence[NewMessage]) -> bool:
    """True: these messages answer awaited calls. Then they belong to this session, due or not."""
    answers = {message.answers for message in messages if message.answers}
    return bool(answers) and bool(answers & set(awaited_calls(tx, session)))


def reset_session(tx: Transaction, session_id: str) -> Verdict | None:
    """Reset this session if it is due: its end, event and notice in one transaction. Deferred, visibly,
    if something blocks it. Returns the verdict; None if the session no longer exists."""
    try:
        session = session_of(tx, None, session_id)
    except NotFound:
        return None
    found = judge(tx, session)
    match found.decision:
        case Decision.DUE:
            reset(tx, session, found)
        case Decision.DEFERRED:
            defer(tx, session, found)
        case Decision.NOT_DUE:
            schedule_reset(tx, session)
    return found


def reset(tx: Transaction, session: Session, found: Verdict) -> None:
    """End it, with its reason, its event and its notice."""
    assert found.end_reason is not None
    write_end(tx, session, found.end_reason)
    announce(tx, session, found)


def announce(tx: Transaction, session: Session, found: Verdict) -> None:
    """Publish the end of this session: event, notice, and stop requests for its processes. The node on their
    machine stops them, even if this node dies now."""
    assert found.end_reason is not None
    reasons = [reason.code for reason in found.reasons]
    tx.event(
        EventType.SESSION_RESET,
        session.owner,
        session.conversation_id,
        session.id,
        reason=found.end_reason.value,
        due_at=found.next_due_at.isoformat() if found.next_due_at else None,
        reasons=reasons,
        messages=session.message_count,
    )
    running = running_of(tx, session.conversation_id)
    stopping: list[Process] = []
    if tx.policies.stop_processes:
        stopping = request_stops(
            tx, session.conversation_id, f"its session was reset ({found.end_reason.value})"
        )
    stopped = [label_of(process) for process in stopping]
    asked = {process.id for process in stopping}
    kept = [label_of(process) for process in running if process.id not in asked]
    notices.add(tx, session.owner, session.conversation_id, "reset", notice_of(found, stopped, kept))
    tx.told.append(line_of(session, found, [log_name(process) for process in stopping]))


def defer(tx: Transaction, session: Session, found: Verdict) -> None:
    """Schedule the next check. A changed blocker is published; an unchanged one is not."""
    assert found.recheck_at is not None
    before = tx.one(Q.deferral, id=session.id)
    tx.run(Q.defer_session, id=session.id, recheck_at=to_stamp(found.recheck_at), deferral=found.deferral)
    if before is not None and before[0] == found.deferral:
        return
    tx.told.append(line_of(session, found))
    tx.event(
        EventType.RESET_DEFERRED,
        session.owner,
        session.conversation_id,
        session.id,
        due_at=found.next_due_at.isoformat() if found.next_due_at else None,
        holding=[
            {
                "code": reason.code,
                "process": reason.process_id,
                "until": reason.until.isoformat() if reason.until else None,
            }
            for reason in found.holding
        ],
    )


def overdue(tx: Transaction, session: Session) -> Verdict | None:
    """The verdict, if the policy would have reset by now a session that ended otherwise; the next is then
    fresh."""
    if not session.ended or session.end_reason in FRESH_AFTER:
        return None
    policy, now = tx.policies.of(session.source), to_time(tx.now)
    wanted = due(policy, session.since, session.last_activity_at)
    return late(policy, wanted, now) if wanted is not None and wanted.at <= now else None


def reset_before(tx: Transaction, session: Session, messages: Sequence[NewMessage]) -> bool:
    """Lazy reset, at the next message: reset an open session that is due, unless the messages belong to
    it."""
    wanted = None
    if not session.ended:
        wanted = due(tx.policies.of(session.source), session.since, session.last_activity_at)
    if wanted is None or wanted.at > to_time(tx.now):
        return False
    if brings_results(tx, session, messages):
        return False
    found = judge(tx, session)
    if found.decision is Decision.DUE:
        reset(tx, session, found)
        return True
    if found.decision is Decision.DEFERRED:
        defer(tx, session, found)
    return False


def waiting(tx: Transaction, owner: str | None, *, limit: int = 100) -> list[Session]:
    """Open sessions whose reset is due, deferred or not, the longest due first; only those scheduled
    under our own policies. Cost depends on what is due, not on what is stored."""
    check_limit(limit)
    policies = tx.policies
    soon = tx.now + policies.look_again // MICROSECOND  # every deferral is checked again by then
    rows = tx.all(Q.resets_waiting, now=tx.now, soon=soon, stamp=policies.stamp, owner=owner, limit=limit)
    return [to_session(row) for row in rows]


def session_for(
    tx: Transaction,
    conversation: Conversation,
    tip: Session,
    messages: Sequence[NewMessage],
    node_id: str | None,
    source: str,
    shows_from: int | None = None,
) -> Session:
    """The session for these messages. A new one is attached to `node_id`, if given; a fresh one shows
    messages from now on, or from message `shows_from` on. Results of awaited calls belong to the session that
    called; ToolCallClosed if that one was ended on purpose."""
    if reset_before(tx, tip, messages):
        tip = session_of(tx, None, tip.id)
    if tip.end_reason in FRESH_AFTER and messages and messages[0].answers and shows_from is None:
        raise ToolCallClosed(messages[0].answers)  # a fresh session does not contain the call
    late = None if brings_results(tx, tip, messages) else overdue(tx, tip)
    last_seq = conversation.last_seq if shows_from is None else shows_from - 1
    opening = opening_after(tip, last_seq, due=late is not None)
    if opening is None:
        return tip
    fresh_by = tip.end_reason if tip.end_reason in RESETS else None
    if late is not None:
        announce(tx, tip, late)
        fresh_by = late.end_reason
    return continue_conversation(tx, conversation, opening, node_id, source or tip.source, fresh_by=fresh_by)


def open_session(
    tx: Transaction, owner: str, address: Address, node_id: str, *, source: str = "", attached: bool = False
) -> Session:
    """The session that the next message goes to: the open tip, or a new one opened after it.

    A new key opens a conversation. A tip orphaned by a node that is gone counts as ended.
    """
    require_node(tx, node_id)
    attached_to = node_id if attached else None
    found = find(tx, owner, address)
    if found is None:
        if (address.id or address.key) and not address.may_create:
            raise NotFound(address.noun, str(address))
        return open_conversation(tx, owner, address, attached_to, source)
    release_orphaned(tx, found.conversation.id)
    conversation, tip = conversation_of(tx, owner, found.conversation.id), session_of(tx, owner, found.tip.id)
    return session_for(tx, conversation, tip, (), attached_to, source)


def session_for_turn(
    tx: Transaction,
    request: TurnRequest,
    conversation: Conversation,
    tip: Session,
    known: Turn | None = None,
) -> Session:
    """The session of this turn. If a session is attached to another node than the turn's, it is detached.

    A turn that is resumed (`known`), or brings no messages, answers stored ones: the session shows them, also
    if it is fresh.
    """
    node_id = request.node_id if request.attached else None
    asked = _question(tx, conversation.id, known) if known is not None or not request.messages else None
    session = session_for(tx, conversation, tip, request.messages, node_id, request.source, asked)
    if asked is not None and not session.view.tells_of(asked, conversation.last_seq):
        session = replace(session, view=session.view.opened_at(asked))
        tx.run(Q.set_view, id=session.id, view=session.view.encode())
        tx.run(Q.touch_revision, id=conversation.id)
    if session.attached and session.node_id != request.node_id:
        tx.run(Q.detach_session, id=session.id, node=request.node_id)
        tx.event(EventType.SESSION_DETACHED, session.owner, session.conversation_id, session.id)
        return replace(session, attached=False, node_id=None)
    return session


def _question(tx: Transaction, conversation_id: str, known: Turn | None) -> int | None:
    """The first of the messages to be answered: the newest user messages, or a resumed turn's own if they
    come before; None: there are none."""
    (newest,) = tx.one(Q.newest_question, conversation=conversation_id) or (None,)
    if known is None:
        return newest
    return known.first_seq if newest is None else min(known.first_seq, newest)
