"""Flushes: when an ended session is written to memory, what a flush reads, and how an attempt ends.

A flush belongs to one session and is scheduled by the transaction that ends it:

    (session ends) ──► pending ──claim──► running ──► done
                          ▲  │               │  ╲
                          │  └─skip/resume─► │   ╲─► dead ──retry──► pending
                          └────── failed ────┘

`taken`: the session was resumed while its flush was pending, so its messages are read when the session that
continues it ends. `skipped`: a person skipped it. Both are shown as no flush at all.

Nothing is read twice: a session records up to which message earlier flushes have read its context, and passes
that on to the session that continues it.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum

from .compaction import Entry
from .sessions import EndReason, Session
from .value import Value
from .views import Part, Range, Summary, View

WAIT = timedelta(minutes=10)
"""Delay before flushing a session that ended with its process, because it may be resumed."""
LONGEST_PAUSE = timedelta(hours=1)
MOST_INTERRUPTIONS = 50
"""Not retried automatically after this many nodes died during the flush: it may be what kills them."""
LONGEST_MEMORY = 20_000
LONGEST_ERROR = 500
NONE = "NONE"
_THOUGHTS = re.compile(r"^\s*<think>.*?(</think>|\Z)", re.DOTALL)
"""Reasoning text that some models write before they answer."""

_FLUSHED = frozenset(set(EndReason) - {EndReason.COMPACTION})
_RESUMABLE = frozenset({EndReason.CLOSED, EndReason.REAPED})


class FlushState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    SKIPPED = "skipped"
    TAKEN = "taken"


class FlushRules(Value, frozen=True):
    """Which sessions are flushed. The rules a store is opened with apply only until a node has recorded a
    `FlushPolicy` for the whole store; without rules it schedules nothing."""

    min_messages: int = 4
    """Minimum number of messages since the last flush; shorter sessions are not flushed."""
    wait: timedelta = WAIT


class FlushPolicy(Value, frozen=True):
    """Whether ended sessions are flushed: one value for all nodes of the store."""

    on: bool
    min_messages: int = 4
    assumed: bool = False
    """True: not set explicitly (the local model is used only if the settings say so). Any node that can
    flush, or whose settings set it, replaces it."""

    def rules(self, wait: timedelta = WAIT) -> FlushRules | None:
        return FlushRules(self.min_messages, wait) if self.on else None


class Flush(Value, frozen=True):
    """A flush, and its claim while it is running."""

    session_id: str
    conversation_id: str
    owner: str
    key: str | None
    reason: str
    """Why its session ended."""
    state: FlushState
    after_seq: int
    """Messages up to this seq were read by an earlier flush."""
    last_seq: int
    attempts: int
    interruptions: int
    """How often a node died or was stopped during it; does not count as an attempt."""
    next_attempt_at: datetime | None
    node_id: str | None
    token: int
    """Fencing token: rises with each claim, over all flushes, so a late claimant is refused."""
    error: str | None
    """The last error, or who skipped it."""
    created_at: datetime
    settled_at: datetime | None
    """When it was done, given up (dead), skipped or taken."""

    @property
    def idempotency_key(self) -> str:
        return f"flush-{self.session_id}"

    @property
    def shown(self) -> str:
        """Its state as shown with the session."""
        return "none" if self.state in (FlushState.SKIPPED, FlushState.TAKEN) else self.state.value


class FlushInput(Value, frozen=True):
    """What a flush reads: summaries of compacted parts, and messages since the last flush, in order."""

    session: Session
    entries: tuple[Entry, ...]


def scheduled_at(rules: FlushRules | None, reason: str, now: datetime) -> datetime | None:
    """When to flush a session that ends now for this reason; None: never. Compaction does not end a context,
    and imported sessions were remembered, or not, elsewhere."""
    if rules is None or reason not in _FLUSHED:
        return None
    return now + rules.wait if reason in _RESUMABLE else now


def unread(view: View, after_seq: int, last_seq: int) -> tuple[Part, ...]:
    """The parts of a context that no earlier flush has read. A summary that also covers messages already read
    is read whole. A summary copied by a fork covers no messages here, so it is read the first time.
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
    """Backoff after this many failed attempts, doubled each time; None: give up (dead letter)."""
    if attempts >= max_attempts:
        return None
    doubled: int = 2 ** min(attempts - 1, 30)
    return min(retry * doubled, LONGEST_PAUSE)


def memory_in(answer: str) -> str | None:
    """The memory in a model's answer; None: nothing to remember. Empty text: no answer at all, which is a
    failure."""
    text = _THOUGHTS.sub("", answer).strip()
    return None if text.strip("\"'`*.[] \n").upper() == NONE else text


def backlog_line(sessions: int, per_minute: int) -> str:
    """Text for an operator when the backlog exceeds one minute of flushing."""
    minutes = -(-sessions // per_minute)
    span = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
    return (
        f"{sessions:,} sessions become due; about {span} at {per_minute} a minute; "
        "`holdfast memories skip --before DATE`"
    )
