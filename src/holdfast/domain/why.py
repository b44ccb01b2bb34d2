"""Why a session will (not) be reset, in sentences that a person understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from .events import Event
from .resets import Decision, Reason, ResetPolicy, Verdict, clock_of, minutes
from .sessions import EndReason, Session


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """One value of the effective policy, and where it came from."""

    value: str | int | float
    origin: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A session, the policy it is judged by, and the verdict of now."""

    session: Session
    policy: ResetPolicy
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Why:
    session_id: str
    decision: Decision
    next_due_at: datetime | None
    sentence: str
    policy: Mapping[str, PolicyValue]
    reasons: tuple[Reason, ...]
    history: tuple[Event, ...]
    """What happened to it, oldest first."""


def why(judged: Judged, history: Sequence[Event], now: datetime) -> Why:
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
    return {
        name: PolicyValue(value, policy.origins.get(name, "the default")) for name, value in values.items()
    }


def sentence(judged: Judged, now: datetime) -> str:
    """All of it, for a person: when, by which rule, what holds it and until when, what will be stopped."""
    session, policy, verdict = judged.session, judged.policy, judged.verdict
    name, clock = session.key or session.title or session.id, clock_of(policy, now)
    due = clock(verdict.next_due_at) if verdict.next_due_at else ""
    match verdict.decision:
        case Decision.ENDED:
            assert session.ended_at is not None
            fresh = session.end_reason in (EndReason.IDLE, EndReason.DAILY, EndReason.NEW)
            then = "begins afresh" if fresh else "goes on from there, unless it comes too late"
            return f"{name} ended {clock(session.ended_at)} ({session.end_reason}); the next message {then}."
        case Decision.NOT_DUE if not due:
            first = f"{name} is never reset (mode none, from {_origin(policy, 'mode')})."
        case Decision.NOT_DUE:
            quiet = f"{name} is quiet since {clock(session.last_activity_at)}"
            first = f"{quiet} and will be reset at {due} ({_rule(judged)})."
        case Decision.DUE:
            first = f"{name} is due to be reset since {due} ({_rule(judged)}); the next sweep does it."
        case Decision.DEFERRED:
            first = f"{name} is due to be reset since {due} ({_rule(judged)}), which is put off."
    told = [reason for reason in verdict.reasons if reason.process_id or reason in verdict.holding]
    return " ".join([first, *(f"{reason.message[0].upper()}{reason.message[1:]}." for reason in told)])


def _rule(judged: Judged) -> str:
    policy = judged.policy
    if judged.verdict.end_reason is EndReason.IDLE:
        return f"idle {minutes(policy.idle)}, from {_origin(policy, 'idle_minutes')}"
    return f"daily at {policy.at_hour}:00 {policy.timezone}, from {_origin(policy, 'at_hour')}"


def _origin(policy: ResetPolicy, name: str) -> str:
    return policy.origins.get(name, "the default")
