"""Node locks: a kernel `flock` per node, on a file beside the database.

The kernel releases it when the process ends, however it ends, and at no other moment: being able to take the
lock proves that its node is dead. The file is created and locked before the node's row is written, so a row
without a lockable file is *unknown*, not dead. Locks are close-on-exec and are closed in forked children.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from ...errors import Conflict
from ...os_support import private_umask


class FileNodeLocks:
    def __init__(self, database: Path) -> None:
        self._directory = database.with_name(f"{database.name}.nodes")
        self._held: dict[str, int] = {}
        self._guard = threading.Lock()

    def path_of(self, node_id: str) -> Path:
        return self._directory / node_id

    def hold(self, node_id: str) -> None:
        """Lock this node's file for as long as this process lives."""
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
