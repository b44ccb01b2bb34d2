"""Node locks: a session advisory lock per node, held on the listen connection (`listen_connection.py`).

PostgreSQL releases it when the connection ends, so at the latest shortly after its process does. But a live
node can lose its connection too. So a free lock proves a death only after it stayed free for three seconds of
an observer's own unbroken connection, and a node that lost its connection takes its lock again within that
time. If it could not, it may have been reaped: its row says so, and every write of a node checks its row or
its token. `claim` closes the remaining gap: a reaper that relies on a free lock holds it while it reaps.

On one machine there is no such wait: there the kernel says whether the process of a free lock still runs.

Limits: PostgreSQL gets no signal from a machine that lost its power or its network. It closes such a
connection when its probes stay unanswered, after some ten seconds (`keep_line_alive`); only then is the lock
free.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from hashlib import blake2b

from ...domain.nodes import BeatWatch, Identity, Liveness, Node, proof_of_death
from ...errors import Conflict, StoreBusy, StoreClosed
from ...os_support import HIDDEN, identity, start_of
from ..queries import load
from ..transaction import Q, Transaction
from .listen_connection import Connection, ListenConnection

STATEMENTS = load(__package__)

PROOF_SECONDS = 3.0
LONGEST_GAP_SECONDS = 1.0
"""Between two looks. A longer gap means that this process itself was stopped, and counts as this much."""
PATIENCE_SECONDS = 10.0
PROBE_SECONDS = 2.0
FORGOTTEN_SECONDS = 60.0
"""Locks not asked about for this long are no longer checked."""


def key_of(node_id: str) -> int:
    """The advisory lock number of a node."""
    return int.from_bytes(blake2b(node_id.encode(), digest_size=8).digest(), "big", signed=True)


def claim(tx: Transaction, node_id: str) -> bool:
    """Take the lock of a node to be reaped, until this transaction ends. False: it is held again."""
    row = tx.one(Q.claim_node_lock, key=key_of(node_id))
    return row is not None and bool(row[0])


class AdvisoryNodeLocks:
    """A client of the listen connection: its thread takes, releases and checks locks; other threads wait for
    it."""

    def __init__(self, line: ListenConnection, on_proof: Callable[[], None] = lambda: None) -> None:
        """`on_proof`: called when another node was proven dead, to wake waiters for what it holds."""
        self._line = line
        self._on_proof = on_proof
        self._guard = threading.Lock()
        self._wanted: dict[str, Future[None]] = {}
        """Our own nodes; the future is done when the lock was taken for the first time."""
        self._held: set[str] = set()
        self._let_go: list[str] = []
        self._asked: dict[str, float] = {}
        self._lookers: list[Future[None]] = []
        self._watch = BeatWatch(PROOF_SECONDS, LONGEST_GAP_SECONDS)
        self._free: dict[str, bool] = {}
        """Whether each lock was free at the last look; empty while the connection is down."""
        self._proven: set[str] = set()
        self._closed = False
        line.add_client(self)

    # --- our own locks ----------------------------------------------------------------------------------

    async def hold(self, node_id: str) -> None:
        """Lock this node for as long as this process lives; connection losses are repaired."""
        with self._guard:
            if self._closed:
                raise StoreClosed("the store is closed")
            if node_id in self._wanted:
                raise _joined(node_id)
            taken = self._wanted[node_id] = Future()
        self._line.look_now()
        try:
            await _answered(taken, PATIENCE_SECONDS)
        except BaseException:
            self.let_go(node_id)
            raise

    def let_go(self, node_id: str) -> None:
        """Release the lock: the node has left cleanly, or did not join."""
        with self._guard:
            if self._wanted.pop(node_id, None) is not None and not self._closed:
                self._let_go.append(node_id)
        self._line.look_now()

    # --- locks of other nodes ---------------------------------------------------------------------------

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        """Liveness of each of these nodes, as far as provable from here, and why."""
        ids = [node.id for node in nodes]
        with self._guard:
            unseen = [id_ for id_ in ids if id_ not in self._free and id_ not in self._wanted]
            self._asked.update(dict.fromkeys(ids, time.monotonic()))
            look: Future[None] = Future()
            if unseen and not self._closed:
                self._lookers.append(look)
        if unseen:
            self._line.look_now()
            with suppress(StoreBusy):  # their locks cannot be tested then, and the result says so
                await _answered(look, PROBE_SECONDS)
        here = identity()
        return {node.id: self._judge(node, here) for node in nodes}

    def found_free(self, node_id: str) -> bool:
        """True if the free lock is what proves this node dead. Then a reaper must `claim` it first."""
        return node_id in self._proven

    def _judge(self, node: Node, here: Identity) -> tuple[Liveness, str]:
        with self._guard:
            free = False if node.id in self._wanted else self._free.get(node.id)
            lock_free = free if not free else True if node.id in self._proven else None
        start = start_of(node.identity.pid) if lock_free is None else None
        why = proof_of_death(
            node.identity,
            lock_free=lock_free,
            here=here,
            start_of_their_pid=start,
            is_hidden=start == HIDDEN,
        )
        if why is not None:
            return Liveness.DEAD, why
        if lock_free is False:
            return Liveness.ALIVE, "it holds its lock"
        if free:
            return Liveness.UNKNOWN, f"its lock is free, but not yet for {PROOF_SECONDS:.0f} seconds"
        return Liveness.UNKNOWN, "its lock cannot be tested"

    # --- on the listen connection's thread --------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        connection.execute(STATEMENTS["keep_line_alive"])

    def look(self, connection: Connection) -> None:
        with self._guard:
            let_go, self._let_go = self._let_go, []
            lookers, self._lookers = self._lookers, []
            forgotten = time.monotonic() - FORGOTTEN_SECONDS
            self._asked = {id_: at for id_, at in self._asked.items() if at > forgotten}
            asked = list(self._asked)
            missing = [(id_, taken) for id_, taken in self._wanted.items() if id_ not in self._held]
        for node_id in let_go:
            if node_id in self._held:
                connection.execute(STATEMENTS["free_node_lock"], {"key": key_of(node_id)})
                self._held.discard(node_id)
        for node_id, taken in missing:
            self._take(connection, node_id, taken)
        rows = connection.execute(STATEMENTS["held_node_locks"]).fetchall()
        held = {row[0] for row in rows}
        free = {node_id: key_of(node_id) not in held for node_id in asked}
        proven = self._watch.look({id_: 0 for id_, is_free in free.items() if is_free}, time.monotonic())
        with self._guard:
            news = not proven.keys() <= self._proven
            self._free = free
            self._proven = set(proven)
        for looker in lookers:
            _done(looker)
        if news:
            self._on_proof()

    def _take(self, connection: Connection, node_id: str, taken: Future[None]) -> None:
        row = connection.execute(STATEMENTS["take_node_lock"], {"key": key_of(node_id)}).fetchone()
        if row is not None and row[0]:
            self._held.add(node_id)
            _done(taken)
        elif not taken.done():
            with suppress(InvalidStateError):
                taken.set_exception(_joined(node_id))
        # Otherwise our own old connection, or a reaper, still has it: the next look retries.

    def notified(self, payloads: Sequence[str]) -> None:
        """Ignored: notifications are for other clients."""

    def lost(self) -> None:
        self._held.clear()
        with self._guard:
            self._watch.forget()
            self._free.clear()
            self._proven.clear()

    def close(self) -> None:
        """Release all waiters. The locks end with the connection."""
        with self._guard:
            self._closed = True
            waiting = [*self._wanted.values(), *self._lookers]
            self._wanted.clear()
            self._lookers.clear()
        for future in waiting:
            with suppress(InvalidStateError):
                future.set_exception(StoreClosed("the store is closed"))


async def _answered(done: Future[None], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(done)
    except TimeoutError:
        raise StoreBusy("PostgreSQL does not answer; nothing was done") from None


def _done(future: Future[None]) -> None:
    with suppress(InvalidStateError):  # the waiter has given up, or it was already done
        future.set_result(None)


def _joined(node_id: str) -> Conflict:
    return Conflict(f"node {node_id} has joined already; each incarnation has an id of its own")
