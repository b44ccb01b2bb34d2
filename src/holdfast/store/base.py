"""What a store promises. Every engine keeps these promises; `tests/contract` holds it to them.

Methods are verbs. A method that writes has committed when it returns, and has written nothing when it
raises. Everything is scoped by `owner`; another owner's id is `NotFound`, like one that never existed.
Where `owner` may be None, the caller is an operator and means all owners.

Rights to write in a conversation come from a lease. `begin_turn` takes one, and every later write of
that turn names it; a lease that has passed on raises `LeaseLost` and leaves no trace.
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
    Pruned,
    Pulse,
    Resolved,
    Retention,
    SessionFilter,
    Statistics,
    StorePolicy,
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
    "Pruned",
    "Pulse",
    "Resolved",
    "Retention",
    "SessionFilter",
    "Statistics",
    "Store",
    "StorePolicy",
]


class Store(Finds, Converses, Takes, Compacts, Lives, Remembers, Carries, Protocol):
    """The durable state of holdfast. See the module's first paragraphs."""

    @property
    def location(self) -> str:
        """Where it is, for people; without any password."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then let go of everything. Idempotent."""
        ...

    # --- waiting ----------------------------------------------------------------------------------------

    def version(self) -> int:
        """A number that differs after something was committed: here at once, by another process as soon as
        that is known (in a file at once, over a network when it is told). It may also differ for nothing."""
        ...

    async def changed(self, since: int, timeout: float) -> bool:
        """Wait until the version is no longer `since` (taken before looking), or until time is up."""
        ...

    def start_indexing(self) -> None:
        """Keep whatever searching needs right behind what is written, from now on."""
        ...

    # --- care -------------------------------------------------------------------------------------------

    async def backup(self, target: Path) -> None:
        """A consistent copy while everything goes on. Raises, leaving nothing, if the target exists, and
        BadInput if the database has tools of its own for it."""
        ...

    def invariants(self) -> Sequence[str]:
        """What `check` looks at, in sentences."""
        ...

    async def check(self) -> list[Finding]:
        """Every invariant that the store alone can tell, and its integrity. Empty: all is well."""
        ...

    async def repair(self) -> list[str]:
        """Mend what can be mended safely (derived data); returns what was done, in sentences."""
        ...

    def now(self) -> datetime:
        """The store's time, in UTC: the clock by which everything in it is dated."""
        ...
