"""Nodes and processes: liveness, and background processes of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from ...domain.nodes import Identity, Liveness, Node, NodeKind
from ...domain.processes import Process, ProcessState, Sighting
from ..values import Held, Orphans, Page, Pruned, Retention, StorePolicy


class Lives(Protocol):
    """Methods about nodes and processes."""

    # --- nodes ------------------------------------------------------------------------------------------

    async def join(self, node: Node, *, replaces: str | None = None) -> None:
        """Register an incarnation and hold its lock for as long as this process lives.

        `replaces`: the incarnation of this process that was reaped. Its lock is released when the new one has
        joined; if that fails, it is kept."""
        ...

    async def beat(self, node_id: str) -> Held:
        """Write this node's heartbeat, in one write; returns what it holds. NodeReaped if it was reaped."""
        ...

    async def held(self, node_id: str) -> Held:
        """What this node holds; read-only."""
        ...

    async def leave(self, node_id: str, reason: str) -> None:
        """Leave cleanly: running turns are interrupted, attached sessions end with `reason`, leases and the
        lock are released."""
        ...

    async def nodes(self, *, gone: bool = False) -> list[Node]:
        """Nodes that have neither left nor been reaped; with `gone`, those too."""
        ...

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        """Liveness of each of these, as far as provable from here, and why. Writes nothing."""
        ...

    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        """Mark a node as dead, unless its heartbeat has changed since. Its orphans must then be released."""
        ...

    async def leftovers(self, also: Sequence[str] = ()) -> Orphans:
        """Orphans: leases and attached sessions of nodes that are gone, and of the nodes in `also`. Cost
        depends on the orphans, not on what is stored."""
        ...

    async def settle_conversation(self, conversation_id: str) -> bool:
        """Release a conversation orphaned by a node that is gone: its turn is interrupted, its lease released
        under a higher token. False if there was nothing to do. Never touches last_activity_at."""
        ...

    async def reap_session(self, session_id: str) -> bool:
        """End an attached session of a node that is gone as `reaped`. False if there was nothing to do."""
        ...

    async def settle_node(self, node_id: str) -> bool:
        """Record that nothing refers to this node any more, so that no sweep looks for it again. False if
        something still does."""
        ...

    # --- policies of the whole store --------------------------------------------------------------------

    async def policy(self) -> StorePolicy:
        """The policies recorded for the whole store."""
        ...

    async def record_policy(self, kind: NodeKind, policy: StorePolicy, recorded_by: str) -> StorePolicy:
        """Record a program's settings for the whole store, part by part, where it may: the last server's
        apply, else the last library's, else the last command's. Parts that are None are unchanged. Returns
        the effective policy. Writes nothing if it is already recorded."""
        ...

    async def prune(self, keep: Retention, limit: int = 1000) -> Pruned:
        """Delete what is older than its retention, at most `limit` of each kind, the oldest first."""
        ...

    # --- processes --------------------------------------------------------------------------------------

    async def add_process(self, process: Process) -> Process:
        """Record a process in this open session, before it is started."""
        ...

    async def process_started(
        self,
        process_id: str,
        identity: Identity,
        *,
        shim_pid: int | None = None,
        shim_start: str | None = None,
    ) -> bool:
        """Record that it runs, and its identity. False if it was no longer starting."""
        ...

    async def sample_processes(self, sightings: Sequence[Sighting]) -> None:
        """Store these samples, all at once. Never touches a session's last_activity_at."""
        ...

    async def process_finished(self, process_id: str, exit_code: int) -> bool:
        """Record the exit code of the command itself, while something it started still runs."""
        ...

    async def end_process(
        self,
        process_id: str,
        state: ProcessState,
        *,
        exit_code: int | None = None,
        at: datetime | None = None,
        why: str | None = None,
    ) -> bool:
        """Record its end: exited, stopped or lost (`why`), at that time or now. False if it had already
        ended."""
        ...

    async def request_stop(self, owner: str | None, process_id: str, reason: str) -> Process:
        """Request that a process be stopped; the node that supervises it does so, now or after a crash.
        Idempotent. Conflict if it is only watched."""
        ...

    async def request_stops(self, owner: str | None, conversation_id: str, reason: str) -> list[Process]:
        """Request that all processes of this conversation be stopped; returns those that run."""
        ...

    async def pin_process(self, owner: str | None, process_id: str, until: datetime | None) -> Process:
        """Let a process defer resets until then (None: no longer). Conflict if it has ended."""
        ...

    async def claim_process(self, process_id: str, node_id: str, seen_supervisor: str | None) -> bool:
        """Supervise a process from now on. False if its supervisor is not `seen_supervisor`, if it has ended,
        or if this node is gone."""
        ...

    async def process(self, owner: str | None, process_id: str) -> Process: ...

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
        """A page of processes, the newest first, after the process `after`: of a session, of a conversation
        or of the owner; only those that have (not) ended."""
        ...

    async def unended_processes(self, machine: Identity) -> list[Process]:
        """Processes on this machine that have not ended, as far as known, oldest first."""
        ...

    async def unknown_processes(self, ids: Sequence[str]) -> list[str]:
        """Which of these ids name no process: their files can be deleted."""
        ...

    async def prune_processes(self, before: datetime, limit: int = 1000) -> list[str]:
        """Delete processes that ended before then, the oldest first; returns their ids."""
        ...
