"""Moves a SQLite store to PostgreSQL, so that several nodes can share it from then on.

Copies a snapshot: the original is only read and does not change. Every row is copied and verified. Then the
original's nodes, none of which runs on the copy, are reaped, and the search index is built. A run that was
killed at any point can be run again.

Limits: what a node on the original writes during the run is not copied, so stop all nodes first. Background
processes are tracked by files beside the original, so a move takes over none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..runtime.agents.reaper import Reaper
from ..store.postgres.connections import DatabaseAddress
from ..store.postgres.engine import open_store
from ..store.postgres.moving import Move, Moved, MoveStep, OnStep
from ..store.rows import to_stamp
from ..store.sqlite.snapshots import running_on, snapshot
from ..store.store import Store

__all__ = ["Arrived", "MoveStep", "Mover"]

STAYED = "it stayed with the store that this one was moved from"


@dataclass(frozen=True, slots=True)
class Arrived:
    """What was moved, and where to."""

    location: str
    tables: Sequence[Moved]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


class Mover:
    def __init__(self, database: Path, url: str, on_step: OnStep = lambda _step: None) -> None:
        self._database = database
        self._url = url
        self._on_step = on_step

    def still_running(self) -> int:
        """Number of nodes on the original now. Raises StoreUnusable if the original cannot be moved."""
        return running_on(self._database)

    async def move_once(self) -> Arrived:
        """Move all. Raises, with no change, if the target holds another store or is unavailable."""
        target = await open_store(self._url, moving=True)
        try:
            move = await asyncio.to_thread(Move, DatabaseAddress.parse(self._url), self._on_step)
            try:
                tables = await asyncio.to_thread(self._copy, move, to_stamp(target.now()))
                await self._settle(target)
                await target.repair()
                move.finish(to_stamp(target.now()))
                return Arrived(target.location, tables)
            finally:
                move.close()
        finally:
            await target.close()

    def _copy(self, move: Move, now: int) -> Sequence[Moved]:
        with snapshot(self._database, now) as source:
            return move.copy(source, now)

    async def _settle(self, target: Store) -> None:
        """Reap the original's nodes: none of them runs on the target."""
        for node in await target.nodes():
            await target.reap(node.id, node.beat, STAYED)
        await Reaper(target, own_node=lambda: None).reap_once()
