"""Moves a SQLite store to PostgreSQL, so that several nodes can share it from then on.

What is moved is a snapshot: the original is only read, and stays as it is. Every row is copied and verified.
Then the nodes of the original, which stayed there, are brought to rest as if they had died, and the search
index is made. A run that was killed at any point is simply started again.

Limits: what a node still running on the original writes meanwhile is not carried over, so stop them first.
Background processes are known by records beside the original, so a move takes none of them over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..runtime.agents.reaper import Reaper
from ..store.base import Store
from ..store.postgres.connections import DatabaseAddress
from ..store.postgres.engine import open_store
from ..store.postgres.moving import Move, Moved, OnStep
from ..store.rows import to_stamp
from ..store.sqlite.snapshots import running_on, snapshot

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
        """How many nodes run on the original right now. Raises StoreUnusable if that cannot be moved."""
        return running_on(self._database)

    async def move_once(self) -> Arrived:
        """Move everything. Raises, having changed nothing, if the target is another's or cannot be had."""
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
        """None of the original's nodes has come along."""
        for node in await target.nodes():
            await target.reap(node.id, node.beat, STAYED)
        await Reaper(target, own_node=lambda: None).reap_once()
