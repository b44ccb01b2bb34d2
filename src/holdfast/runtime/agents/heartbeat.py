"""Keeps this process registered as a living node: join, heartbeat, leave.

At each heartbeat it compares the leases that the store says it holds with the turns it runs: a lease without
a turn is released. If the node was reaped, it joins again as a new incarnation; the old one's turns are lost,
and its sessions continue by a `resume` edge.

Servers send heartbeats from the event loop that does the work, so a hung loop is noticed. Programs and
commands send them from a thread, because their own code may block; their lock proves their death.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...domain.ids import new_id
from ...domain.nodes import Node, NodeKind
from ...domain.recovery import Cause
from ...domain.turns import TurnStatus
from ...errors import NodeReaped, NotFound, StoreClosed
from ...os_support import identity
from ...store.store import Store
from ...store.values import Held
from .. import periodic

log = logging.getLogger(__name__)

T = TypeVar("T")


class Heartbeat:
    def __init__(
        self,
        store: Store,
        kind: NodeKind,
        heartbeat_seconds: float,
        stale_seconds: float | None = None,
        *,
        version: str = "",
    ) -> None:
        """`stale_seconds`: after how long without a heartbeat other nodes may treat this one as hung.
        `version`: of this holdfast, which is stored with the node."""
        self._store = store
        self._kind = kind
        self._stale_seconds = stale_seconds
        self._version = version
        self._loop = periodic.every(
            heartbeat_seconds,
            self.beat_once,
            "write this node's heartbeat",
            first=heartbeat_seconds,
            steady=True,
        )
        self._node: Node | None = None
        self._turns: set[str] = set()
        self._suspects: set[str] = set()
        self._rejoining = threading.Lock()
        self._stop = threading.Event()
        self.beating = True
        """True if the last heartbeat reached the store. While False, other nodes' silence does not count
        either."""

    @property
    def node_id(self) -> str:
        if self._node is None:
            raise StoreClosed("this node has not joined, or has left")
        return self._node.id

    # --- lifecycle ---------------------------------------------------------------------------------

    async def join(self, replaces: str | None = None) -> str:
        """Register a new incarnation, in place of a reaped one if `replaces` is given; returns its id."""
        node = Node(
            new_id("node"),
            self._kind,
            identity(),
            stale_seconds=self._stale_seconds,
            version=self._version,
        )
        await self._store.join(node, replaces=replaces)
        self._node = node
        return node.id

    def start(self) -> None:
        """Start sending heartbeats."""
        if self._kind is NodeKind.SERVER:
            self._loop.start()
        else:
            self._loop.start_thread("holdfast-beat")

    @property
    def running(self) -> bool:
        return self._loop.running

    async def leave(self, reason: str) -> None:
        """Stop the heartbeat; interrupt turns, release leases and end sessions of this node."""
        self._stop.set()
        await self._loop.stop()
        node, self._node = self._node, None
        if node is not None:
            await self._store.leave(node.id, reason)

    # --- turns -------------------------------------------------------------------------------------

    def runs(self, turn_id: str) -> None:
        """Record that this process runs the turn: its lease is not an orphan."""
        self._turns.add(turn_id)

    def ran(self, turn_id: str) -> None:
        self._turns.discard(turn_id)

    def is_running(self, turn_id: str) -> bool:
        return turn_id in self._turns

    # --- heartbeats --------------------------------------------------------------------------------

    async def beat_once(self) -> None:
        """Send a heartbeat, and release leases whose turn does not run here. Rejoins if this node
        was reaped."""
        try:
            held = await self._beat_or_rejoin()
        except StoreClosed:
            raise
        except Exception:
            self.beating = False
            raise
        self.beating = True
        if held is None:
            return
        strays = {turn for turn in held.leases.values() if turn and turn not in self._turns}
        # Only if seen twice in a row: a resumed turn is known here a moment after the store knows it.
        for turn_id in sorted(strays & self._suspects):
            try:
                await self._store.cancel_turn(
                    None, turn_id, TurnStatus.INTERRUPTED, "no task was running it", cause=Cause.DEATH
                )
            except NotFound:
                continue  # its conversation was deleted meanwhile
            except Exception as error:  # isolate failures: the others are still released
                log.warning("turn %s is held by this node, not run, and cannot be ended: %s", turn_id, error)
                continue
            log.warning("turn %s was held by this node without a running task; it was interrupted", turn_id)
        self._suspects = strays

    async def _beat_or_rejoin(self) -> Held | None:
        """What this node holds; None: it was reaped, and has joined again unless it is leaving."""
        try:
            return await self._store.beat(self.node_id)
        except NodeReaped as reaped:
            if not self._stop.is_set():
                await self.rejoin(reaped.node_id)
            return None

    async def rejoin(self, reaped_id: str) -> str:
        """Become a new incarnation after `reaped_id` was reaped; the first caller does it, others
        get its id."""
        # Polled, since the heartbeat thread may hold the lock: a helper thread that blocked on it for us
        # would keep it forever if we were cancelled.
        while not self._rejoining.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            if self.node_id != reaped_id:
                return self.node_id
            self._turns.clear()
            joined = await self.join(replaces=reaped_id)
            log.warning(
                "this process was declared dead as node %s and continues as node %s with its sessions",
                reaped_id,
                joined,
            )
            return joined
        finally:
            self._rejoining.release()

    async def as_living(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run `act` as this node; if the node was reaped, rejoin and retry once."""
        try:
            return await act()
        except NodeReaped as reaped:
            await self.rejoin(reaped.node_id)
            return await act()
