"""Explains why a session will (not) be reset, or was: in sentences for people, for a notice and for the log.

Times are in the policy's zone, in their shortest form. Rules are named with the setting that made them, so
the reader knows what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from .events import Event
from .ids import printable
from .local_time import minutes, wall_clock
from .resets import DEFAULT, Decision, Due, Reason, ResetPolicy, Verdict, due
from .sessions import EndReason, Session
from .value import Value


class PolicyValue(Value, frozen=True):
    """One value of the effective policy, and its origin."""

    value: str | int | float
    origin: str


class ResetDecision(Value, frozen=True):
    """A session, its policy, and the current verdict."""

    session: Session
    policy: ResetPolicy
    verdict: Verdict


class Why(Value, frozen=True):
    session_id: str
    decision: Decision
    next_due_at: datetime | None
    sentence: str
    policy: Mapping[str, PolicyValue]
    reasons: tuple[Reason, ...]
    history: tuple[Event, ...]
    """Its events, oldest first."""


def why(judged: ResetDecision, history: Sequence[Event], now: datetime) -> Why:
    verdict = judged.verdict
    return Why(
        judged.session.id,
        verdict.decision,
        verdict.next_due_at,
        sentence(judged, now),
        policy_values(judged.policy),
        verdict.reasons,
        tuple(history),
    )


def policy_values(policy: ResetPolicy) -> dict[str, PolicyValue]:
    values: dict[str, str | int | float] = {
        "mode": policy.mode.value,
        "idle_minutes": policy.idle.total_seconds() / 60,
        "at_hour": policy.at_hour,
        "quiet_minutes": policy.quiet.total_seconds() / 60,
        "timezone": policy.timezone,
    }
    return {name: PolicyValue(value, policy.origins.get(name, DEFAULT)) for name, value in values.items()}


def sentence(judged: ResetDecision, now: datetime) -> str:
    """The full explanation: when, by which rule, what defers it until when, and what will be stopped."""
    session, policy, verdict = judged.session, judged.policy, judged.verdict
    if verdict.decision is Decision.ENDED:
        return _ended(session, policy, now)
    clock = clock_of(policy, now)
    name = _name(session)
    waits = session.running_turn is not None and session.running_node is None
    if waits:
        begins = f"{name} waits for a retry of its last turn"
    elif session.running_turn:
        begins = f"{name} is being answered"
    else:
        begins = f"{name} has been idle since {clock(session.last_activity_at)}"
    if verdict.next_due_at is None or verdict.end_reason is None:
        first = f"{name} is never reset (mode none, from {_origin(policy, 'mode')})."
    else:
        rule = _rule(session, policy, Due(verdict.next_due_at, verdict.end_reason))
        at = clock(verdict.next_due_at)
        match verdict.decision:
            case Decision.NOT_DUE:
                first = f"{begins} and will be reset at {at} ({rule})."
            case Decision.DUE:
                first = f"{begins} and due to be reset since {at} ({rule}); the next sweep does it."
            case _:
                first = f"{begins} and due to be reset since {at} ({rule}), but it is deferred."
    others = [
        reason
        for reason in verdict.reasons
        if reason.process_id or reason in verdict.holding or (waits and reason.code == "turn")
    ]
    return " ".join([first, *(_as_sentence(reason.message) for reason in others)])


def _ended(session: Session, policy: ResetPolicy, now: datetime) -> str:
    assert session.ended_at is not None
    clock, name = clock_of(policy, now), _name(session)
    by_policy = session.end_reason in (EndReason.IDLE, EndReason.DAILY)
    ended = f"{name} {'was reset' if by_policy else 'ended'} at {clock(session.ended_at)}"
    first = f"{ended} ({session.end_reason})."
    if session.tip_id != session.id:
        return f"{first} The conversation continues in {session.tip_id}."
    wanted = due(policy, session.since, session.last_activity_at)
    if by_policy or session.end_reason == EndReason.NEW:
        return f"{first} The next message starts a new session."
    if wanted is None:
        mode = f"mode none, from {_origin(policy, 'mode')}"
        return f"{first} The next message continues from there, whenever it comes ({mode})."
    rule = _rule(session, policy, wanted)
    if wanted.at <= now:
        return f"{first} The next message starts a new session, since {clock(wanted.at)} ({rule})."
    return (
        f"{first} A message before {clock(wanted.at)} continues from there, "
        f"a later one starts a new session ({rule})."
    )


def _name(session: Session) -> str:
    return session.key or session.title or session.id


def _as_sentence(message: str) -> str:
    return f"{message[0].upper()}{message[1:]}."


def _rule(session: Session, policy: ResetPolicy, wanted: Due) -> str:
    if wanted.end_reason is EndReason.IDLE:
        idle = policy.idle.total_seconds()
        said = f"{idle / 60:g} min" if idle >= 60 else f"{idle:g} s"
        return f"idle {said}, from {_origin(policy, 'idle_minutes')}"
    day = f"daily at {wall_clock(policy.at_hour)} {policy.timezone}"
    if wanted.at == session.last_activity_at + policy.quiet:
        day = f"{day}, once there was no message for {minutes(policy.quiet)}"
    return f"{day}, from {_origin(policy, 'at_hour')}"


def _origin(policy: ResetPolicy, name: str) -> str:
    """Origin in its shortest form: `[reset.sources.telegram]`, without the file."""
    table, bracket, _ = policy.origins.get(name, DEFAULT).partition("] in ")
    return f"{table}{bracket[:1]}"


def notice_of(found: Verdict, stopped: Sequence[str] = (), kept: Sequence[str] = ()) -> str:
    """Notice to the person of a session that is reset now; lists running processes by command."""
    if found.end_reason is EndReason.IDLE:
        said = f"This conversation has been reset: {found.reasons[0].message}."
    else:
        said = "A new day: this conversation has been reset."
    said += " The next message starts a new session."
    if stopped:
        said += f" Stopped: {_listed(stopped)}."
    if kept:
        said += f" Left running: {_listed(kept)}."
    return said


def line_of(session: Session, found: Verdict, stopped: Sequence[str] = ()) -> str:
    """The same for the log: session, reason and processes, by id and program (`log_name`)."""
    name = f"session {session.id}" + (f" ({printable(session.key)})" if session.key else "")
    if found.decision is Decision.DEFERRED:
        holding = "; ".join(reason.log_message for reason in found.holding)
        return f"{name} is due to be reset ({found.end_reason}); deferred: {holding}"
    said = f"{name} was reset ({found.end_reason}): {found.reasons[0].log_message}"
    return f"{said}; stopping {_joined(stopped)}" if stopped else said


MOST_LISTED = 20


def _listed(commands: Sequence[str]) -> str:
    return _joined([f'"{command}"' for command in commands])


def _joined(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def clock_of(policy: ResetPolicy, now: datetime) -> Callable[[datetime], str]:
    """Formats a time in the policy's zone, in its shortest form: `00:10`, `Mon 22:10`, `2026-11-02 22:10`."""
    zone = ZoneInfo(policy.timezone or "UTC")

    def clock(time: datetime) -> str:
        there, today = time.astimezone(zone), now.astimezone(zone).date()
        if there.date() == today:
            return f"{there:%H:%M}"
        near = abs((there.date() - today).days) < 7
        return f"{there:%a %H:%M}" if near else f"{there:%Y-%m-%d %H:%M}"

    return clock
