"""Checks every invariant, those of the store and those that need to know who is alive.

It only looks; `repair` mends what can be mended safely: leftovers of dead nodes are settled, and what is
derived (the search index) is made anew. It never deletes what somebody said.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..domain.nodes import Liveness
from ..store.base import Finding, Store
from .reaper import Reaper

LIVING_OWNERS = "every open session has a living owner or a policy"
LIVING_HOLDERS = "every running turn has a living holder"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One invariant, and what breaks it, if anything does."""

    invariant: str
    finding: Finding | None = None

    @property
    def ok(self) -> bool:
        return self.finding is None


class Doctor:
    def __init__(self, store: Store, reaper: Reaper) -> None:
        self._store = store
        self._reaper = reaper

    async def examine(self) -> list[Diagnosis]:
        """Every invariant, in a fixed order."""
        broken = {finding.invariant: finding for finding in await self._store.check()}
        for finding in await self._orphans():
            broken[finding.invariant] = finding
        names = [LIVING_OWNERS, LIVING_HOLDERS, *self._store.invariants()]
        return [Diagnosis(name, broken.get(name)) for name in names]

    async def repair(self) -> list[str]:
        """What was done, in sentences."""
        done = []
        reaped = await self._reaper.reap_once()
        if reaped.conversations or reaped.sessions:
            done.append(
                f"brought {len(reaped.conversations)} conversations to rest and ended "
                f"{len(reaped.sessions)} sessions that dead nodes had left"
            )
        return [*done, *await self._store.repair()]

    async def _orphans(self) -> list[Finding]:
        """What hangs on nodes that are gone, or provably dead though nobody has reaped them yet."""
        nodes = await self._store.nodes()
        proofs = await self._store.probe(nodes)
        dead = [node.id for node in nodes if proofs[node.id][0] is Liveness.DEAD]
        left = await self._store.leftovers(also=dead)
        return [
            Finding(invariant, len(ids), ids[:5], repairable=True)
            for invariant, ids in ((LIVING_OWNERS, left.sessions), (LIVING_HOLDERS, left.conversations))
            if ids
        ]
