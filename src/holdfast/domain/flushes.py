"""Flushes: when an ended session is carried into memory, what is read for it, and what an attempt comes to.

A flush belongs to one session and is scheduled by the transaction that ends it:

    (session ends) ──► pending ──claim──► running ──► done
                          ▲  │               │  ╲
                          │  └─skip/resume─► │   ╲─► dead ──retry──► pending
                          └────── failed ────┘

`taken`: the session was resumed while its flush was waiting, so what it said is read when the session that
went on with it ends. `skipped`: a person said so. Both are shown as no flush at all.

Nothing is read twice: a session knows up to which message earlier flushes have read its context, and hands
that on to the session that continues it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from .compaction import Entry
from .sessions import EndReason, Session
from .views import Part, Range, Summary, View

WAIT = timedelta(minutes=10)
"""How long a session that ended with its process may be resumed before it is flushed."""
LONGEST_PAUSE = timedelta(hours=1)
MOST_INTERRUPTIONS = 50
"""A flush during which so many nodes have died is not tried again by itself: it may be what kills them."""
LONGEST_MEMORY = 20_000
LONGEST_ERROR = 500
NONE = "NONE"
_THOUGHTS = re.compile(r"^\s*<think>.*?(</think>|\Z)", re.DOTALL)
"""What some models say to themselves before they answer."""

_FLUSHED = frozenset(set(EndReason) - {EndReason.COMPACTION})
_RESUMABLE = frozenset({EndReason.CLOSED, EndReason.REAPED})


class FlushState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    SKIPPED = "skipped"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class FlushRules:
    """Which sessions are flushed. What a store is opened with counts only until a node has recorded a
    `FlushPolicy` for the whole store; without any it schedules nothing."""

    min_messages: int = 4
    """Sessions with fewer messages since the last flush are too short to matter."""
    wait: timedelta = WAIT


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """Whether sessions that end anywhere in the store are flushed: one fact for all its nodes."""

    on: bool
    min_messages: int = 4
    assumed: bool = False
    """True: the settings leave it open (the local model is not asked unless they say so). Any node that can
    flush, or whose settings say so, replaces it."""

    def rules(self, wait: timedelta = WAIT) -> FlushRules | None:
        return FlushRules(self.min_messages, wait) if self.on else None


@dataclass(frozen=True, slots=True)
class Flush:
    """A flush, and its claim while it is running."""

    session_id: str
    conversation_id: str
    owner: str
    key: str | None
    reason: str
    """Why its session ended."""
    state: FlushState
    after_seq: int
    """Messages up to this number were read by an earlier flush."""
    last_seq: int
    attempts: int
    interruptions: int
    """How often a node has died, or was stopped, in the middle of it; that counts as no attempt."""
    next_attempt_at: datetime | None
    node_id: str | None
    token: int
    """Rises with each claim, over all flushes: a late claimant is refused by it."""
    error: str | None
    """What went wrong last, or who skipped it."""
    created_at: datetime
    settled_at: datetime | None
    """When it was done, given up, skipped or taken over."""

    @property
    def idempotency_key(self) -> str:
        return f"flush-{self.session_id}"

    @property
    def shown(self) -> str:
        """Its state as a session's reader sees it."""
        return "none" if self.state in (FlushState.SKIPPED, FlushState.TAKEN) else self.state.value


@dataclass(frozen=True, slots=True)
class FlushInput:
    """What a flush reads: summaries of compacted parts, and messages since the last flush, in order."""

    session: Session
    entries: tuple[Entry, ...]


def scheduled_at(rules: FlushRules | None, reason: str, now: datetime) -> datetime | None:
    """When a session that ends now, for this reason, is to be flushed; None: never. Compaction ends no
    context, and what was imported has been remembered, or not, elsewhere."""
    if rules is None or reason not in _FLUSHED:
        return None
    return now + rules.wait if reason in _RESUMABLE else now


def unread(view: View, after_seq: int, last_seq: int) -> tuple[Part, ...]:
    """The parts of a context that no earlier flush has read. A summary that tells also of what was read
    before is read whole. One that a fork has copied stands for no messages here: it is read the first time.
    """
    parts: list[Part] = []
    for part in view.closed_at(last_seq).parts:
        if isinstance(part, Summary):
            if part.last > after_seq or part.last == after_seq == 0:
                parts.append(part)
        elif (part.last or 0) >= max(part.first, after_seq + 1):
            parts.append(Range(max(part.first, after_seq + 1), part.last))
    return tuple(parts)


def pause_after(attempts: int, max_attempts: int, retry: timedelta) -> timedelta | None:
    """How long to wait after so many failed attempts, doubled each time; None: give it up, visibly."""
    if attempts >= max_attempts:
        return None
    doubled: int = 2 ** min(attempts - 1, 30)
    return min(retry * doubled, LONGEST_PAUSE)


def memory_in(answer: str) -> str | None:
    """The memory that a model's answer holds; None: there is nothing to remember. An empty text: it holds no
    answer at all, which is a failure."""
    text = _THOUGHTS.sub("", answer).strip()
    return None if text.strip("\"'`*.[] \n").upper() == NONE else text


def backlog_line(sessions: int, per_minute: int) -> str:
    """What an operator is told when there is more to flush than a minute's worth."""
    minutes = -(-sessions // per_minute)
    span = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    return (
        f"{sessions:,} sessions become due; about {span} at {per_minute} a minute; "
        "`holdfast memories skip --before DATE`"
    )
