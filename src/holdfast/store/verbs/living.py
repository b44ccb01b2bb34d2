"""Nodes and processes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ...domain.nodes import Identity, Node, NodeKind
from ...domain.processes import Process, ProcessState, Sighting
from .. import nodes as node_writes
from .. import policies, reads, resolve, retention
from .. import processes as process_writes
from ..base import Held, Orphans, Page, Pruned, Retention, StorePolicy
from ..transaction import Transaction
from .base import Verbs


class LivingVerbs(Verbs):
    """Implements `store.promises.living.Lives`, except what depends on how a node proves that it is alive:
    joining, leaving, probing, reaping."""

    # --- nodes ------------------------------------------------------------------------------------------

    async def beat(self, node_id: str) -> Held:
        return await self._write(lambda tx: node_writes.beat(tx, node_id))

    async def held(self, node_id: str) -> Held:
        return await self._read(lambda tx: node_writes.held(tx, node_id))

    async def nodes(self, *, gone: bool = False) -> list[Node]:
        return await self._read(lambda tx: reads.nodes(tx, gone))

    async def leftovers(self, also: Sequence[str] = ()) -> Orphans:
        return await self._read(lambda tx: node_writes.leftovers(tx, also))

    async def settle_conversation(self, conversation_id: str) -> bool:
        return await self._write(lambda tx: node_writes.settle_conversation(tx, conversation_id))

    async def reap_session(self, session_id: str) -> bool:
        return await self._write(lambda tx: node_writes.reap_session(tx, session_id))

    async def settle_node(self, node_id: str) -> bool:
        return await self._write(lambda tx: node_writes.settle_node(tx, node_id))

    # --- policies of the whole store --------------------------------------------------------------------

    async def policy(self) -> StorePolicy:
        return await self._read(policies.read)

    async def record_policy(self, kind: NodeKind, policy: StorePolicy, recorded_by: str) -> StorePolicy:
        if await self._read(lambda tx: policies.has_news(tx, kind, policy)):
            await self._write(lambda tx: policies.record(tx, kind, policy, recorded_by))
        return await self.policy()

    async def prune(self, keep: Retention, limit: int = 1000) -> Pruned:
        pruned = await self._write(lambda tx: retention.prune(tx, keep, limit))
        if pruned.conversations:
            self._cache.clear()
            self.start_indexing()
        return pruned

    # --- processes --------------------------------------------------------------------------------------

    async def add_process(self, process: Process) -> Process:
        return await self._write(lambda tx: process_writes.add(tx, process))

    async def process_started(
        self,
        process_id: str,
        identity: Identity,
        *,
        shim_pid: int | None = None,
        shim_start: str | None = None,
    ) -> bool:
        return await self._write(
            lambda tx: process_writes.started(tx, process_id, identity, shim_pid, shim_start)
        )

    async def sample_processes(self, sightings: Sequence[Sighting]) -> None:
        await self._write(lambda tx: process_writes.sample(tx, sightings))

    async def process_finished(self, process_id: str, exit_code: int) -> bool:
        return await self._write(lambda tx: process_writes.finished(tx, process_id, exit_code))

    async def end_process(
        self,
        process_id: str,
        state: ProcessState,
        *,
        exit_code: int | None = None,
        at: datetime | None = None,
        why: str | None = None,
    ) -> bool:
        return await self._write(lambda tx: process_writes.end(tx, process_id, state, exit_code, at, why))

    async def request_stop(self, owner: str | None, process_id: str, reason: str) -> Process:
        return await self._write(lambda tx: process_writes.request_stop(tx, owner, process_id, reason))

    async def request_stops(self, owner: str | None, conversation_id: str, reason: str) -> list[Process]:
        def ask(tx: Transaction) -> list[Process]:
            resolve.conversation_of(tx, owner, conversation_id)
            return process_writes.request_stops(tx, conversation_id, reason)

        return await self._write(ask)

    async def pin_process(self, owner: str | None, process_id: str, until: datetime | None) -> Process:
        return await self._write(lambda tx: process_writes.pin(tx, owner, process_id, until))

    async def claim_process(self, process_id: str, node_id: str, seen_supervisor: str | None) -> bool:
        return await self._write(lambda tx: process_writes.claim(tx, process_id, node_id, seen_supervisor))

    async def process(self, owner: str | None, process_id: str) -> Process:
        return await self._read(lambda tx: process_writes.process(tx, owner, process_id))

    async def processes(
        self,
        owner: str | None,
        *,
        session_id: str | None = None,
        conversation_id: str | None = None,
        running: bool | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Process]:
        return await self._read(
            lambda tx: process_writes.processes(tx, owner, session_id, conversation_id, running, after, limit)
        )

    async def unended_processes(self, machine: Identity) -> list[Process]:
        return await self._read(lambda tx: process_writes.unended(tx, machine))

    async def unknown_processes(self, ids: Sequence[str]) -> list[str]:
        return await self._read(lambda tx: process_writes.unknown(tx, ids))

    async def prune_processes(self, before: datetime, limit: int = 1000) -> list[str]:
        return await self._write(lambda tx: process_writes.prune(tx, before, limit))
