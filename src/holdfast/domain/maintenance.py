"""Results of maintenance: what a sweep has done, and which invariants hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .value import Value

Progress: TypeAlias = Callable[[int, int], None]
"""Called with how much is done, and the total."""


def no_progress(done: int, whole: int) -> None:
    """Shows nothing."""


@dataclass(slots=True)
class Reaped:
    """What one pass has done: nodes with the reason, and how many orphans of each kind were released."""

    nodes: dict[str, str] = field(default_factory=dict)
    conversations: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return bool(self.nodes or self.conversations or self.sessions or self.troubles)


@dataclass(slots=True)
class Reset:
    """What one pass has done, by session id."""

    reset: dict[str, str] = field(default_factory=dict)
    """The reason for each."""
    deferred: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    more: bool = False
    """True if more is due now."""

    @property
    def anything(self) -> bool:
        return bool(self.reset or self.deferred or self.troubles)


class Pruned(Value, frozen=True):
    """How many of each kind were deleted."""

    drafts: int = 0
    events: int = 0
    requests: int = 0
    nodes: int = 0
    stored_requests: int = 0
    """Of turns that failed or were interrupted."""
    conversations: int = 0
    spared: int = 0
    """Conversations past their retention, kept because they are still in use; 0 if there is `more`."""
    more: bool = False
    """True: the limit was reached for at least one kind, so there may be more to delete."""

    @property
    def anything(self) -> bool:
        return bool(
            self.drafts
            or self.events
            or self.requests
            or self.nodes
            or self.stored_requests
            or self.conversations
        )


@dataclass(slots=True)
class Swept:
    """What one sweep has done."""

    reaped: Reaped = field(default_factory=Reaped)
    reset: Reset = field(default_factory=Reset)
    pruned: Pruned = field(default_factory=Pruned)

    @property
    def anything(self) -> bool:
        return self.reaped.anything or self.reset.anything or self.pruned.anything

    @property
    def more(self) -> bool:
        """True if there is more to do now."""
        return self.reset.more or self.pruned.more


class Finding(Value, frozen=True):
    """A violated invariant: which, how often, and where (a few examples)."""

    invariant: str
    count: int
    examples: Sequence[str] = ()
    repairable: bool = False


class Diagnosis(Value, frozen=True):
    """One invariant, and its violations, if any."""

    invariant: str
    finding: Finding | None = None

    @property
    def ok(self) -> bool:
        return self.finding is None
