"""The contract of a store. Every engine fulfils it; `tests/contract` verifies that.

A method that writes has committed when it returns, and has written nothing when it raises. Everything is
scoped by `owner`; another owner's id is `NotFound`, like one that never existed. Where `owner` may be None,
the caller is an operator and means all owners.

The right to write in a conversation comes from a lease. `begin_turn` takes one, and every later write of that
turn names it; with a lost lease it raises `LeaseLost` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from .promises.compacting import Compacts
from .promises.conversing import Converses
from .promises.finding import Finds
from .promises.importing import Carries
from .promises.living import Lives
from .promises.remembering import Remembers
from .promises.turning import Takes
from .values import (
    Claimed,
    Figures,
    Finding,
    FlushFigures,
    Found,
    Held,
    Orphans,
    OwnerUsage,
    Page,
    Progress,
    Pruned,
    Pulse,
    Resolved,
    Retention,
    SessionFilter,
    Statistics,
    StorePolicy,
    no_progress,
)

__all__ = [
    "Claimed",
    "Figures",
    "Finding",
    "FlushFigures",
    "Found",
    "Held",
    "Orphans",
    "OwnerUsage",
    "Page",
    "Progress",
    "Pruned",
    "Pulse",
    "Resolved",
    "Retention",
    "SessionFilter",
    "Statistics",
    "Store",
    "StorePolicy",
    "no_progress",
]


class Store(Finds, Converses, Takes, Compacts, Lives, Remembers, Carries, Protocol):
    """The durable state of holdfast. See the module docstring."""

    @property
    def location(self) -> str:
        """Its location, for people; without any password."""
        ...

    async def close(self) -> None:
        """Finish accepted jobs, then release everything. Idempotent."""
        ...

    # --- waiting ----------------------------------------------------------------------------------------

    def version(self) -> int:
        """A number that differs after a commit: here at once; by another process as soon as that is noticed
        (in a file at once, over a network on notification). It may also change without a commit."""
        ...

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait until the version is no longer `since` (taken before reading), or until the timeout."""
        ...

    def start_indexing(self) -> None:
        """Start to keep the search index up to date."""
        ...

    # --- maintenance ------------------------------------------------------------------------------------

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        """A consistent copy of a store in use. Raises, leaving nothing, if the target exists, and BadInput if
        the database has its own backup tools. `progress` is called in another thread; if it raises, the
        backup is given up."""
        ...

    def invariants(self) -> Sequence[str]:
        """What `check` verifies, in sentences."""
        ...

    async def check(self, progress: Progress | None = None) -> list[Finding]:
        """Check every invariant that the store alone can decide, and its integrity. Empty: no finding.
        `progress` is called with how many of them were checked."""
        ...

    async def repair(self) -> list[str]:
        """Repair what can be repaired safely (derived data); returns what was done, in sentences."""
        ...

    def now(self) -> datetime:
        """The store's time, in UTC: the clock for all its timestamps."""
        ...
