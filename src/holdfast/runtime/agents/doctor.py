"""Checks every invariant: those of the store, and those that depend on which nodes are alive.

`examine` only reads. `repair` fixes what is safe to fix: orphans of dead nodes are released, and derived data
(the search index) is rebuilt. It never deletes messages.
"""

from __future__ import annotations

import asyncio

from ...domain.maintenance import Diagnosis, Finding, Progress, no_progress
from ...domain.nodes import Liveness
from ...domain.processes import Process
from ...os_support import identity
from ...store.store import Store
from ..processes.launcher import ProcessReader
from .reaper import Reaper

LIVING_OWNERS = "every open session has a living owner or a policy"
LIVING_HOLDERS = "every running turn has a living holder"
VERIFIED_PROCESSES = "no running process row without a verified identity"
SECOND_LOOK_SECONDS = 2.0
"""A supervisor records an end within a second; an end still unrecorded after this was missed."""


class Doctor:
    """Without a `reader`, processes are not checked."""

    def __init__(self, store: Store, reaper: Reaper, reader: ProcessReader | None = None) -> None:
        self._store = store
        self._reaper = reaper
        self._reader = reader

    async def examine(self, progress: Progress = no_progress) -> list[Diagnosis]:
        """Every invariant, in a fixed order."""
        broken = {finding.invariant: finding for finding in await self._store.check(progress)}
        for finding in await self._orphans():
            broken[finding.invariant] = finding
        names = [LIVING_OWNERS, LIVING_HOLDERS, *self._store.invariants()]
        if self._reader is not None:
            names.insert(2, VERIFIED_PROCESSES)
            if ids := [process.id for process in await self._missing(self._reader)]:
                broken[VERIFIED_PROCESSES] = Finding(VERIFIED_PROCESSES, len(ids), ids[:5], repairable=True)
        return [Diagnosis(name, broken.get(name)) for name in names]

    async def repair(self) -> list[str]:
        """Repair, and return what was done, in sentences."""
        done = []
        reaped = await self._reaper.reap_once()
        if reaped.conversations or reaped.sessions:
            done.append(
                f"released {len(reaped.conversations)} conversations and ended "
                f"{len(reaped.sessions)} sessions of dead nodes"
            )
        for process in await self._missing(self._reader) if self._reader is not None else ():
            if await self._store.end_process(process.id, process.state, exit_code=process.exit_code):
                done.append(f"recorded that process {process.id} has ended ({process.state.value})")
        return [*done, *await self._store.repair()]

    async def _missing(self, reader: ProcessReader) -> list[Process]:
        """Processes of a living supervisor that have ended without a record, with their real state.

        Processes without a living supervisor are excluded: they wait for takeover.
        """
        nodes = await self._store.nodes()
        proofs = await self._store.probe(nodes)
        living = {node.id for node in nodes if proofs[node.id][0] is not Liveness.DEAD}
        missing: dict[str, Process] = {}
        for again in (False, True):
            if again:
                if not missing:
                    break
                await asyncio.sleep(SECOND_LOOK_SECONDS)
            running = [
                each for each in await self._store.unended_processes(identity()) if each.supervisor in living
            ]
            seen = [await reader.seen(each) for each in running]
            missing = {each.id: each for each in seen if each.ended and (not again or each.id in missing)}
        return list(missing.values())

    async def _orphans(self) -> list[Finding]:
        """Sessions and leases of nodes that are gone, or provably dead but not reaped yet."""
        nodes = await self._store.nodes()
        proofs = await self._store.probe(nodes)
        dead = [node.id for node in nodes if proofs[node.id][0] is Liveness.DEAD]
        left = await self._store.leftovers(also=dead)
        return [
            Finding(invariant, len(ids), ids[:5], repairable=True)
            for invariant, ids in ((LIVING_OWNERS, left.sessions), (LIVING_HOLDERS, left.conversations))
            if ids
        ]
