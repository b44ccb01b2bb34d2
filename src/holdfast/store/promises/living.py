"""Nodes and processes: who is alive, and what a session left running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from ...domain.nodes import Identity, Liveness, Node, NodeKind
from ...domain.processes import Process, ProcessState, Sighting
from ..values import Held, Orphans, Page, Pruned, Retention, StorePolicy


class Lives(Protocol):
    """Knows who lives and what runs."""

    # --- nodes ------------------------------------------------------------------------------------------

    async def join(self, node: Node, *, replaces: str | None = None) -> None:
        """Register an incarnation and hold its lock for as long as this process lives.

        `replaces`: the incarnation of this process that was reaped. Its lock is released when the new one
        has joined; if that fails, it is kept."""
        ...

    async def beat(self, node_id: str) -> Held:
        """Say that this node lives, in one write; returns what it holds. NodeReaped if it was reaped."""
        ...

    async def held(self, node_id: str) -> Held:
        """What this node holds; only looks."""
        ...

    async def leave(self, node_id: str, reason: str) -> None:
        """End in good order: running turns are interrupted, attached sessions end with `reason`, leases
        are released, the lock is let go."""
        ...

    async def nodes(self, *, gone: bool = False) -> list[Node]:
        """Nodes that have neither left nor been reaped; with `gone`, those too."""
        ...

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        """Is each of these alive, as far as can be proven from here, and why? Writes nothing."""
        ...

    async def reap(self, node_id: str, seen_beat: int, why: str) -> bool:
        """Mark a node as dead, unless its beat has moved since. Its leftovers are then to be settled."""
        ...

    async def leftovers(self, also: Sequence[str] = ()) -> Orphans:
        """Leases and attached sessions of nodes that are gone, and of the nodes in `also`. Costs what there
        is, not what is stored."""
        ...

    async def settle_conversation(self, conversation_id: str) -> bool:
        """Bring a conversation left by a node that is gone to rest: its turn is interrupted, its lease
        released under a higher token. False if there was nothing to do. Never touches last_activity_at."""
        ...

    async def reap_session(self, session_id: str) -> bool:
        """End an attached session of a node that is gone as `reaped`. False if there was nothing to do."""
        ...

    async def settle_node(self, node_id: str) -> bool:
        """Note that nothing names this node any more, so that no sweep looks for it again. False if
        something still does."""
        ...

    # --- what the whole store goes by -------------------------------------------------------------------

    async def policy(self) -> StorePolicy:
        """What is recorded for the whole store."""
        ...

    async def record_policy(self, kind: NodeKind, policy: StorePolicy, recorded_by: str) -> StorePolicy:
        """Record a program's settings for the whole store, part by part, where it may: the last server's
        count, else the last library's, else the last command's. Parts that are None are left alone. Returns
        what holds now. Changes nothing, and writes nothing, if it is recorded already."""
        ...

    async def prune(self, keep: Retention, limit: int = 1000) -> Pruned:
        """Drop what has been kept long enough, at most `limit` of each kind, the oldest first."""
        ...

    # --- processes --------------------------------------------------------------------------------------

    async def add_process(self, process: Process) -> Process:
        """Note that a process is about to be started in this open session, before anything is started."""
        ...

    async def process_started(
        self,
        process_id: str,
        identity: Identity,
        *,
        shim_pid: int | None = None,
        shim_start: str | None = None,
    ) -> bool:
        """It runs, and this is who it is. False if it was not starting any more."""
        ...

    async def sample_processes(self, sightings: Sequence[Sighting]) -> None:
        """Note what these were seen doing, all at once. Never touches a session's last_activity_at."""
        ...

    async def process_finished(self, process_id: str, exit_code: int) -> bool:
        """The command itself has ended with this code, but something it started still runs."""
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
        """It has ended: exited, stopped or lost (`why`), at that time or now. False if it had already."""
        ...

    async def request_stop(self, owner: str | None, process_id: str, reason: str) -> Process:
        """Ask for a process to be stopped; the node that looks after it does, now or after a crash. Asking
        again changes nothing. Conflict if it is only watched."""
        ...

    async def request_stops(self, owner: str | None, conversation_id: str, reason: str) -> list[Process]:
        """Ask for everything that this conversation has started to be stopped; returns what runs of it."""
        ...

    async def pin_process(self, owner: str | None, process_id: str, until: datetime | None) -> Process:
        """Let a process hold resets up until then (None: no longer). Conflict if it has ended."""
        ...

    async def claim_process(self, process_id: str, node_id: str, seen_supervisor: str | None) -> bool:
        """Look after a process from now on. False if somebody else than `seen_supervisor` does, if it has
        ended, or if this node is gone."""
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
        """A page of processes, the newest first, behind the process `after`: of a session, of a conversation
        or of the owner; only those that have (not) ended."""
        ...

    async def unended_processes(self, machine: Identity) -> list[Process]:
        """What has not ended, as far as is known, on the machine that this identity is of, oldest first."""
        ...

    async def unknown_processes(self, ids: Sequence[str]) -> list[str]:
        """Which of these ids name no process: what is kept of them is rubbish."""
        ...

    async def prune_processes(self, before: datetime, limit: int = 1000) -> list[str]:
        """Drop processes that ended before then, the oldest first; returns their ids."""
        ...
