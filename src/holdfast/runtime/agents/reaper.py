"""Reaps dead nodes: interrupts their turns and releases their leases.

A running turn becomes `interrupted`, its draft kept as an interrupted reply. Open tool calls are closed as
"interrupted, outcome unknown". Attached sessions end `reaped`; detached ones stay open and can be continued
at once. Idempotent. A failure of one row does not stop the others. A slow node may be reaped while alive: its
fencing token no longer matches, so its late writes are rejected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from ...domain.maintenance import Reaped
from ...domain.nodes import BeatWatch, Liveness, Node
from ...store.store import Store
from ..periodic import STORE_WIDE

log = logging.getLogger(__name__)

TOGETHER = 64

Monotonic = Callable[[], float]


def _dead(node: Node, proofs: Mapping[str, tuple[Liveness, str]]) -> bool:
    return proofs[node.id][0] is Liveness.DEAD


class Reaper:
    """`watch` detects hung nodes; without it (in a one-shot command) only proven deaths count."""

    def __init__(
        self,
        store: Store,
        own_node: Callable[[], str | None],
        watch: BeatWatch | None = None,
        beating: Callable[[], bool] = lambda: True,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._store = store
        self._own_node = own_node
        self._watch = watch
        self._beating = beating
        self._monotonic = monotonic

    async def reap_once(self) -> Reaped:
        """Mark dead nodes, then release the orphans of all nodes that are gone."""
        done = Reaped()
        own = self._own_node()
        others = [node for node in await self._store.nodes() if node.id != own]
        proofs = await self._store.probe(others)
        hung = self._hung(others)
        dead = {node.id: (node, node.beat, proofs[node.id][1]) for node in others if _dead(node, proofs)}
        for node in others:
            if node.id in hung and self._watch is not None:
                silent = node.stale_seconds or self._watch.stale_seconds
                dead.setdefault(node.id, (node, hung[node.id], f"no heartbeat for {silent:g} s"))
        await self._together([self._reap(*one, done) for one in dead.values()])
        await self._settle(done)
        return done

    async def reap_if_dead(self, node_id: str) -> bool:
        """If this node, which a caller waits for, is provably dead, reap it now. True: it was."""
        nodes = [node for node in await self._store.nodes() if node.id == node_id]
        proofs = await self._store.probe(nodes)
        done = Reaped()
        for node in nodes:
            if _dead(node, proofs):
                await self._reap(node, node.beat, proofs[node.id][1], done)
        if done.nodes:
            await self._settle(done)
        return bool(done.nodes)

    def _hung(self, others: list[Node]) -> dict[str, int]:
        if self._watch is None:
            return {}
        if not self._beating():
            self._watch.forget()  # an outage that stops our heartbeats may stop theirs
            return {}
        return self._watch.look(
            {node.id: node.beat for node in others},
            self._monotonic(),
            {node.id: node.stale_seconds for node in others},
        )

    def tick(self) -> None:
        """Record that this process is awake and its own heartbeats reach the store: only such time counts
        against hung nodes."""
        if self._watch is not None and self._beating():
            self._watch.tick(self._monotonic())

    async def _reap(self, node: Node, beat: int, why: str, done: Reaped) -> None:
        async def act() -> None:
            if await self._store.reap(node.id, beat, why):
                done.nodes[node.id] = why
                log.info(
                    "reaped node %s (%s, pid %d on %s): %s",
                    node.id, node.kind.value, node.identity.pid, node.identity.host, why,
                )  # fmt: skip

        await self._alone(f"node {node.id}", act(), done)

    async def _settle(self, done: Reaped) -> None:
        left = await self._store.leftovers()
        await self._each(left.conversations, self._store.settle_conversation, done.conversations, done)
        await self._each(left.sessions, self._store.reap_session, done.sessions, done)
        await self._each(left.nodes, self._store.settle_node, [], done)
        for conversation_id in done.conversations:
            log.info("conversation %s was released; it can be continued", conversation_id)
        for session_id in done.sessions:
            log.info("session %s ended: reaped", session_id)

    async def _each(
        self, ids: Sequence[str], settle: Callable[[str], Awaitable[bool]], settled: list[str], done: Reaped
    ) -> None:
        async def one(id_: str) -> None:
            if await settle(id_):
                settled.append(id_)

        await self._together([self._alone(id_, one(id_), done) for id_ in ids])

    async def _together(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run concurrently, so that they share group commits."""
        for start in range(0, len(work), TOGETHER):
            await asyncio.gather(*work[start : start + TOGETHER])

    async def _alone(self, what: str, act: Awaitable[None], done: Reaped) -> None:
        """Isolate failures: an error of one row is recorded and does not stop the others."""
        try:
            await act
        except STORE_WIDE:
            raise
        except Exception as error:
            log.warning("cleaning up after %s failed and will be retried: %s", what, error)
            done.troubles.append(f"{what}: {error}")
