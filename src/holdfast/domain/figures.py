"""Figures of a store: counts, sizes and backlogs, for people and for metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from .turns import TurnStatus


@dataclass(frozen=True, slots=True)
class OwnerUsage:
    """How much an owner has stored."""

    owner: str
    conversations: int
    bytes: int
    """Bytes of its message bodies."""


@dataclass(frozen=True, slots=True)
class Statistics:
    sessions: int
    open: int
    messages: int
    conversations: int
    end_reasons: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pulse:
    """How many turns ended in each of several equal time spans, oldest first, by status."""

    since: datetime
    step: timedelta
    ended: Sequence[Mapping[TurnStatus, int]]


@dataclass(frozen=True, slots=True)
class FlushFigures:
    """Size of the flush backlog."""

    pending: int
    running: int
    dead: int
    """Dead letters: only a person retries them."""
    coming: int
    """Sessions due for a reset: most of them will then be flushed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a store that are cheap to read at any time."""

    open_sessions: int
    running_turns: int
    messages: int
    """Ever written, including deleted ones."""
    events: int
    undelivered_notices: int
    log_bytes: int
    """Size of the write-ahead log: written, not yet checkpointed."""
    unindexed: int | None
    """Messages that are not indexed for search yet; None: unknown."""
