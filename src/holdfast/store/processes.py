"""The transactions of processes: add, start, sample, stop, pin, claim, end; and their reads.

Functions that end or judge a session call `request_stops` and `running_of` in the same transaction. Nothing
here touches a session's last activity.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..domain.events import EventType
from ..domain.ids import check_text
from ..domain.nodes import Identity
from ..domain.processes import Process, ProcessState, Sighting, check_command, check_process_step, told_of
from ..errors import Conflict, NotFound
from . import notices
from .resolve import conversation_of, session_of
from .rows import Row, to_stamp, to_time, to_time_or_none
from .transaction import Q, Transaction
from .values import Page, check_limit

_END_OF_TIME = 2**62


def to_process(row: Row) -> Process:
    (
        id_, owner, conversation, session, host, boot_id, pid_ns, pid, pid_start, machine, command, cwd,
        state, started_at, supervisor, shim_pid, shim_start, exit_code, last_active_at, activity, listening,
        sampled_at, ended_at, stop_requested_at, stop_reason, pinned_until, watched, may_stop,
    ) = row  # fmt: skip
    return Process(
        id=id_,
        owner=owner,
        conversation_id=conversation,
        session_id=session,
        identity=Identity(host, boot_id, pid_ns, pid, pid_start, machine or ""),
        command=command,
        cwd=cwd,
        state=ProcessState(state),
        started_at=to_time(started_at),
        supervisor=supervisor,
        shim_pid=shim_pid,
        shim_start=shim_start,
        exit_code=exit_code,
        last_active_at=to_time_or_none(last_active_at),
        activity=activity,
        listening=bool(listening),
        sampled_at=to_time_or_none(sampled_at),
        ended_at=to_time_or_none(ended_at),
        stop_requested_at=to_time_or_none(stop_requested_at),
        stop_reason=stop_reason,
        pinned_until=to_time_or_none(pinned_until),
        watched=bool(watched),
        may_stop=bool(may_stop),
    )


# --- reading -------------------------------------------------------------------------------------------


def process_of(tx: Transaction, owner: str | None, process_id: str) -> Process:
    """This process. Raises NotFound."""
    row = tx.one(Q.process_by_id, id=process_id, owner=owner)
    if row is None:
        raise NotFound("process", process_id)
    return to_process(row)


def page(
    tx: Transaction,
    owner: str | None,
    *,
    session_id: str | None = None,
    conversation_id: str | None = None,
    running: bool | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Page[Process]:
    """A page of processes, the newest first, after the process `after`: of a session, of a conversation
    or of the owner; only those that have (not) ended."""
    check_limit(limit)
    below = _END_OF_TIME
    if after is not None:
        row = tx.one(Q.process_number, id=after, owner=owner)
        if row is None:
            raise NotFound("process", after)
        below = row[0]
    page = {"below": below, "running": running, "limit": limit + 1}
    if session_id is not None:
        rows = tx.all(Q.processes_of_session, session=session_id, owner=owner, **page)
    elif conversation_id is not None:
        rows = tx.all(Q.processes_of_conversation, conversation=conversation_id, owner=owner, **page)
    elif running:
        rows = tx.all(Q.running_processes, owner=owner, below=below, limit=limit + 1)
    elif owner is None:
        rows = tx.all(Q.processes_of_all, **page)
    else:
        rows = tx.all(Q.processes_of_owner, owner=owner, **page)
    return Page([to_process(row) for row in rows[:limit]], len(rows) > limit)


def running_of(tx: Transaction, conversation_id: str) -> list[Process]:
    """Processes started by this conversation's sessions that still run, oldest first."""
    return [to_process(row) for row in tx.all(Q.running_of_conversation, conversation=conversation_id)]


def unended(tx: Transaction, machine: Identity) -> list[Process]:
    """Processes on this machine that have not ended, as far as known, oldest first."""
    rows = tx.all(Q.unended_processes, machine=machine.machine or None, boot_id=machine.boot_id)
    return [to_process(row) for row in rows]


def unknown(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """Which of these ids name no process: their files can be deleted."""
    return [id_ for id_ in ids if tx.one(Q.process_number, id=id_, owner=None) is None]


# --- writing -------------------------------------------------------------------------------------------


def add(tx: Transaction, process: Process) -> Process:
    """Record a process in this open session, before it is started."""
    check_command(process.command)
    session = session_of(tx, process.owner, process.session_id)
    if session.ended:
        raise Conflict(
            f"session {session.id} has ended ({session.end_reason}); start it in the one that is open"
        )
    who = process.identity
    tx.run(
        Q.insert_process,
        id=process.id,
        owner=process.owner,
        conversation=session.conversation_id,
        session=session.id,
        host=who.host,
        boot_id=who.boot_id,
        pid_ns=who.pid_ns,
        pid=who.pid,
        pid_start=who.pid_start,
        machine=who.machine or None,
        command=process.command,
        cwd=process.cwd,
        state=ProcessState.STARTING.value,
        supervisor=process.supervisor,
        watched=process.watched,
        may_stop=process.may_stop,
        now=tx.now,
    )
    return process_of(tx, process.owner, process.id)


def started(
    tx: Transaction,
    process_id: str,
    identity: Identity,
    *,
    shim_pid: int | None = None,
    shim_start: str | None = None,
) -> bool:
    """Record that the process runs, and its identity. False if it was no longer starting."""
    row = tx.one(
        Q.process_started,
        id=process_id,
        host=identity.host,
        boot_id=identity.boot_id,
        pid_ns=identity.pid_ns,
        pid=identity.pid,
        pid_start=identity.pid_start,
        machine=identity.machine or None,
        shim_pid=shim_pid,
        shim_start=shim_start,
    )
    if row is None:
        return False
    *scope, watched = row
    tx.event(
        EventType.PROCESS_STARTED,
        *scope,
        process=process_id,
        pid=identity.pid,
        host=identity.host,
        watched=bool(watched),
    )
    return True


def sample(tx: Transaction, sightings: Sequence[Sighting]) -> None:
    """Store these samples, all at once. Never touches a session's last_activity_at."""
    for seen in sightings:
        tx.run(
            Q.sample_process,
            id=seen.process_id,
            activity=seen.activity,
            listening=seen.listening,
            now=tx.now,
        )


def finished(tx: Transaction, process_id: str, exit_code: int) -> bool:
    """Record the exit code of the command itself, while something it started still runs."""
    return tx.one(Q.process_finished, id=process_id, exit_code=exit_code) is not None


def end(
    tx: Transaction,
    process_id: str,
    state: ProcessState,
    *,
    exit_code: int | None = None,
    at: datetime | None = None,
    why: str | None = None,
) -> bool:
    """Record the end of a process: exited, stopped or lost (`why`), at that time or now. False if it had
    already ended."""
    row = tx.one(Q.process_by_id, id=process_id, owner=None)
    if row is None:
        return False
    before = to_process(row)
    if before.ended:
        return False
    check_process_step(process_id, before.state, state)
    ended = tx.one(
        Q.end_process,
        id=process_id,
        state=state.value,
        exit_code=exit_code,
        at=tx.now if at is None else to_stamp(at),
    )
    assert ended is not None
    *scope, code = ended
    if tx.one(Q.conversation_exists, id=before.conversation_id) is None:
        tx.erased = True
        tx.run(Q.delete_process, id=process_id)
        return True
    if state is not ProcessState.STOPPED:  # a requested stop needs no notice
        text = told_of(before, state, code)
        notices.add_about(tx, before.owner, before.conversation_id, "process", text, process_id)
    if state is ProcessState.LOST:
        tx.event(EventType.PROCESS_LOST, *scope, process=process_id, why=why)
    else:
        tx.event(EventType.PROCESS_ENDED, *scope, process=process_id, state=state.value, exit_code=code)
    return True


def request_stop(tx: Transaction, owner: str | None, process_id: str, reason: str) -> Process:
    """Request that a process be stopped; the node that supervises it does so, now or after a crash.
    Idempotent. Conflict if it is only watched."""
    check_text("a reason", reason)
    before = process_of(tx, owner, process_id)
    if not before.may_stop:
        raise Conflict(f"process {process_id} is only watched here; stop it where it was started")
    _request_stop(tx, process_id, reason)
    return process_of(tx, owner, process_id)


def request_stops(tx: Transaction, conversation_id: str, reason: str) -> list[Process]:
    """Request a stop of all processes of this conversation; returns those that run and may be stopped."""
    wanted = [each for each in running_of(tx, conversation_id) if each.may_stop]
    for each in wanted:
        _request_stop(tx, each.id, reason)
    return wanted


def request_all_stops(tx: Transaction, owner: str | None, conversation_id: str, reason: str) -> list[Process]:
    """Request that all processes of this conversation be stopped; returns those that run. Raises NotFound."""
    conversation_of(tx, owner, conversation_id)
    return request_stops(tx, conversation_id, reason)


def _request_stop(tx: Transaction, process_id: str, reason: str) -> None:
    row = tx.one(Q.request_stop, id=process_id, reason=reason, now=tx.now)
    if row is not None:
        tx.event(EventType.PROCESS_STOPPING, *row, process=process_id, reason=reason)


def pin(tx: Transaction, owner: str | None, process_id: str, until: datetime | None) -> Process:
    """Let a process defer resets until then (None: no longer). Conflict if it has ended."""
    before = process_of(tx, owner, process_id)
    if before.ended:
        raise Conflict(f"process {process_id} has ended; it cannot be pinned")
    row = tx.one(Q.pin_process, id=process_id, until=None if until is None else to_stamp(until))
    assert row is not None
    tx.event(
        EventType.PROCESS_PINNED, *row, process=process_id, until=None if until is None else until.isoformat()
    )
    return process_of(tx, owner, process_id)


def claim(tx: Transaction, process_id: str, node_id: str, seen_supervisor: str | None) -> bool:
    """Supervise a process from now on. False if its supervisor is not `seen_supervisor`, if it has ended,
    or if this node is gone."""
    row = tx.one(Q.claim_process, id=process_id, node=node_id, seen=seen_supervisor)
    if row is None:
        return False
    tx.event(EventType.PROCESS_ADOPTED, *row, process=process_id, node=node_id)
    return True


def forget_conversation(tx: Transaction, conversation_id: str) -> None:
    """On deletion of the conversation: delete ended processes; stop running ones, which are deleted at their
    end."""
    request_stops(tx, conversation_id, "its conversation was deleted")
    tx.run(Q.forget_processes_of_conversation, conversation=conversation_id)


def prune(tx: Transaction, before: datetime, limit: int = 1000) -> list[str]:
    """Delete processes that ended before then, the oldest first; returns their ids."""
    ids = [id_ for (id_,) in tx.all(Q.prune_processes, before=to_stamp(before), limit=limit)]
    tx.erased = tx.erased or bool(ids)
    return ids
