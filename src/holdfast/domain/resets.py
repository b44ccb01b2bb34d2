"""When a session is reset, and why (not): a pure decision from policy, time and blockers.

Idle is due `idle` after the last activity. Daily is due at the first boundary after the session's context
began (the first instant of a local date at or after `at_hour`), stays due until it happens, and waits while
there was activity within `quiet`. Both: the earlier. A session that continues another after a crash or a
compaction keeps its due time. After a resume by a person, the time counts from the resume.

A blocker may defer a due reset for at most a stated time.

The decision is repeatable: the verdict carries every reason, for and against, to show to people and agents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from .local_time import boundary_after, minutes, wall_clock
from .sessions import EndReason, Session
from .value import Value

DEFAULT = "the default"
"""Origin of a value that no setting has set."""


class ResetMode(StrEnum):
    NONE = "none"
    IDLE = "idle"
    DAILY = "daily"
    BOTH = "both"

    @property
    def by_idleness(self) -> bool:
        return self in (ResetMode.IDLE, ResetMode.BOTH)

    @property
    def by_day(self) -> bool:
        return self in (ResetMode.DAILY, ResetMode.BOTH)


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """The reset settings for sessions of one source."""

    mode: ResetMode = ResetMode.NONE
    idle: timedelta = timedelta(minutes=1440)
    at_hour: float = 4.0
    """Local hour; 4.5 is half past four."""
    quiet: timedelta = timedelta(minutes=15)
    timezone: str = ""
    """An IANA name; empty: this machine's zone, filled in by the settings."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each value came from, by setting name."""

    @property
    def never(self) -> bool:
        return self.mode is ResetMode.NONE


NEVER = ResetPolicy()


@dataclass(frozen=True, slots=True)
class ResetPolicies:
    """The policy of each source; the default for sources without their own."""

    default: ResetPolicy = NEVER
    by_source: Mapping[str, ResetPolicy] = field(default_factory=dict)
    max_block: timedelta = timedelta(minutes=120)
    """How long something active may defer a reset."""
    look_again: timedelta = timedelta(seconds=30)
    """Interval between checks of a deferred reset."""
    active_window: timedelta = timedelta(seconds=60)
    """A process with activity within this time is active."""
    stop_processes: bool = True
    """True: a reset stops the conversation's background processes."""

    never: bool = field(init=False, compare=False)
    """True: these policies never reset anything."""
    stamp: str = field(init=False, compare=False)
    """Hash of the policies. Sessions scheduled under another stamp must be rescheduled."""

    def __post_init__(self) -> None:
        policies = [("", self.default), *sorted(self.by_source.items())]
        said = [
            (source, policy.mode.value, policy.idle, policy.at_hour, policy.quiet, policy.timezone)
            for source, policy in policies
        ]
        # The limits are part of the stamp: a node with other limits must not do resets scheduled under these.
        limits = (self.max_block, self.active_window, self.stop_processes)
        # Computed once here, because every turn reads it.
        object.__setattr__(self, "never", all(policy.never for _, policy in policies))
        object.__setattr__(
            self, "stamp", hashlib.blake2b(repr((said, limits)).encode(), digest_size=8).hexdigest()
        )

    def of(self, source: str) -> ResetPolicy:
        return self.by_source.get(source, self.default)


class Decision(StrEnum):
    NOT_DUE = "not_due"
    DUE = "due"
    DEFERRED = "deferred"
    ENDED = "ended"


class Reason(Value, frozen=True):
    """One reason of a verdict: its code, a sentence, and the process concerned."""

    code: str
    message: str
    process_id: str | None = None
    until: datetime | None = None
    logged: str | None = None
    """The sentence for the log, if `message` has a command line: id and program instead."""

    @property
    def log_message(self) -> str:
        return self.message if self.logged is None else self.logged


class Blocker(Value, frozen=True):
    """Something that may defer a due reset, until a stated time at most."""

    reason: Reason
    holds: bool
    """True: it defers the reset right now. If False, its reason is reported all the same."""


class Verdict(Value, frozen=True):
    decision: Decision
    next_due_at: datetime | None = None
    """When the policy resets it; None: never."""
    end_reason: EndReason | None = None
    """`idle` or `daily`, if it is or will be due."""
    recheck_at: datetime | None = None
    """When to check a deferred reset again."""
    reasons: tuple[Reason, ...] = ()
    holding: tuple[Reason, ...] = ()
    """The reasons that defer it."""

    @property
    def deferral(self) -> str:
        """Codes and processes that defer it, as one string: if the string changes, the change is reported."""
        return " ".join(sorted({f"{each.code}:{each.process_id or ''}" for each in self.holding}))


class Due(Value, frozen=True):
    """When a policy resets a session, and by which rule."""

    at: datetime
    end_reason: EndReason


def due(policy: ResetPolicy, since: datetime, last_activity_at: datetime) -> Due | None:
    """When a session is reset whose context began, or was resumed on purpose, at `since`; None: never."""
    found: list[Due] = []
    if policy.mode.by_idleness:
        found.append(Due(max(since, last_activity_at) + policy.idle, EndReason.IDLE))
    if policy.mode.by_day:
        boundary = boundary_after(since, policy.at_hour, policy.timezone)
        if boundary is not None:
            found.append(Due(max(boundary, last_activity_at + policy.quiet), EndReason.DAILY))
    return min(found, key=lambda each: each.at, default=None)


def verdict(
    session: Session, policy: ResetPolicy, blockers: Sequence[Blocker], now: datetime, look_again: timedelta
) -> Verdict:
    """Whether this session is reset at `now`, with reasons. `look_again`: interval between checks of a
    deferred reset."""
    if session.ended:
        reason = Reason("ended", f"it ended ({session.end_reason})")
        return Verdict(Decision.ENDED, reasons=(reason,))
    wanted = due(policy, session.since, session.last_activity_at)
    reported = tuple(blocker.reason for blocker in blockers)
    if wanted is None:
        return Verdict(
            Decision.NOT_DUE, reasons=(Reason("mode_none", "its policy never resets it"), *reported)
        )
    ground = ground_of(policy, wanted, now)
    if now < wanted.at:
        return Verdict(Decision.NOT_DUE, wanted.at, wanted.end_reason, reasons=(ground, *reported))
    holding = [blocker.reason for blocker in blockers if blocker.holds]
    if not holding:
        return Verdict(Decision.DUE, wanted.at, wanted.end_reason, reasons=(ground, *reported))
    limits = [reason.until for reason in holding if reason.until is not None]
    recheck_at = min([*limits, now + look_again])
    return Verdict(
        Decision.DEFERRED, wanted.at, wanted.end_reason, recheck_at, (ground, *reported), tuple(holding)
    )


def late(policy: ResetPolicy, wanted: Due, now: datetime) -> Verdict:
    """Verdict for a session that ended with its process before its policy would have reset it."""
    return Verdict(Decision.DUE, wanted.at, wanted.end_reason, reasons=(ground_of(policy, wanted, now),))


def ground_of(policy: ResetPolicy, wanted: Due, now: datetime) -> Reason:
    """The rule by which it is, or will be, due."""
    idle, quiet = minutes(policy.idle), minutes(policy.quiet)
    day = f"{wall_clock(policy.at_hour)} ({policy.timezone})"
    match wanted.end_reason, now >= wanted.at:
        case EndReason.IDLE, True:
            said = f"no message for {idle}"
        case EndReason.IDLE, False:
            said = f"it is reset after {idle} without a message"
        case _, True:
            said = f"the daily reset time, {day}, has passed"
        case _:
            said = f"it is reset daily at {day}, once there was no message for {quiet}"
    return Reason(wanted.end_reason.value, said, until=wanted.at)
