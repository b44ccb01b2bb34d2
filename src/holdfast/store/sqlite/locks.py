"""Node locks: a kernel `flock` per node, on a file beside the database.

The kernel releases it when the process ends, however it ends, and at no other moment: being able to take the
lock proves that its node is dead. The file is created and locked before the node's row is written, so a row
without a lockable file is *unknown*, not dead. Locks are close-on-exec and are closed in forked children.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...domain.nodes import Identity, Liveness, Node, proof_of_death
from ...errors import Conflict, StoreUnusable
from ...os_support import HIDDEN, identity, private_umask, start_of


class FileNodeLocks:
    def __init__(self, database: Path) -> None:
        self._database = database
        self._directory = database.with_name(f"{database.name}.nodes")
        self._held: dict[str, int] = {}
        self._guard = threading.Lock()

    def path_of(self, node_id: str) -> Path:
        return self._directory / node_id

    async def hold(self, node_id: str) -> None:
        """Lock this node's file for as long as this process lives. Raises StoreUnusable if it cannot be
        created."""
        try:
            self._hold(node_id)
        except OSError as error:
            raise StoreUnusable(
                f"cannot create the node's lock file beside {self._database}: {error}"
            ) from error

    def _hold(self, node_id: str) -> None:
        with private_umask():
            self._directory.mkdir(mode=0o700, exist_ok=True)
            handle = os.open(self.path_of(node_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise Conflict(
                f"node {node_id} has joined already; each incarnation has an id of its own"
            ) from None
        with self._guard:
            self._held[node_id] = handle

    def let_go(self, node_id: str) -> None:
        """Release the lock and delete the file: the node has left cleanly."""
        with self._guard:
            handle = self._held.pop(node_id, None)
        self.remove(node_id)
        if handle is not None:
            os.close(handle)

    def remove(self, node_id: str) -> None:
        """Delete the file of a node that is gone."""
        self.path_of(node_id).unlink(missing_ok=True)

    async def probe(self, nodes: Sequence[Node]) -> Mapping[str, tuple[Liveness, str]]:
        """Liveness of each of these nodes, as far as provable from here, and why."""
        here = identity()
        return {node.id: self._judge(node, here) for node in nodes}

    def _judge(self, node: Node, here: Identity) -> tuple[Liveness, str]:
        lock_free = self.is_free(node.id)
        start = start_of(node.identity.pid) if lock_free is None else None
        why = proof_of_death(
            node.identity,
            lock_free=lock_free,
            here=here,
            start_of_their_pid=start,
            one_machine=True,
            is_hidden=start == HIDDEN,
        )
        if why is not None:
            return Liveness.DEAD, why
        if lock_free is False:
            return Liveness.ALIVE, "it holds its lock"
        return Liveness.UNKNOWN, "its lock cannot be tested"

    def is_free(self, node_id: str) -> bool | None:
        """True: the lock can be taken. None: unknown."""
        with self._guard:
            if node_id in self._held:
                return False
        try:
            handle = os.open(self.path_of(node_id), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        finally:
            os.close(handle)
        return True

    def close_in_child(self) -> None:
        """After a fork: the child must not keep its parent's locks alive."""
        for handle in self._held.values():
            os.close(handle)
        self._held.clear()

    def close(self) -> None:
        with self._guard:
            for handle in self._held.values():
                os.close(handle)
            self._held.clear()
