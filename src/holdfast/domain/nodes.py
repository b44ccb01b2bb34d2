"""Nodes: running holdfast processes, and how to decide whether one is still alive.

A node is an *incarnation*: its id is never reused. Death is proven, never guessed from a clock:

- its lock (of its node file, or a PostgreSQL advisory lock), if it can be tested, alone decides whether it
  was killed;
- another boot id of the same machine, in a store that only one machine can use: dead;
- the same boot and the same pid namespace, but no such process (or another one under that pid): dead;
- anything else: unknown, which is not dead.

A live process may still hang. Its heartbeat counter shows that: unchanged for a whole window of the
observer's *own* awake time. No two clocks are compared, so sleep, clock jumps and full disks never cause a
reap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from .value import Value


class NodeKind(StrEnum):
    SERVER = "server"
    CLI = "cli"
    LIBRARY = "library"


class Liveness(StrEnum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Identity(Value, frozen=True):
    """Identifies one operating-system process among all others, past or present."""

    host: str
    boot_id: str
    pid_ns: str
    pid: int
    pid_start: str
    machine: str = ""
    """The machine's own id, independent of its name; empty: unknown, and then equal to no other."""

    def is_on(self, other: Identity) -> bool:
        """True: it runs on the same machine as the other, in this boot or another. Hostnames are not
        compared: clones and containers share them."""
        return self.boot_id == other.boot_id or (bool(self.machine) and self.machine == other.machine)


class Node(Value, frozen=True):
    id: str
    kind: NodeKind
    identity: Identity
    beat: int = 0
    started_at: datetime | None = None
    heartbeat_at: datetime | None = None
    left_at: datetime | None = None
    reaped_at: datetime | None = None
    stale_seconds: float | None = None
    """Time without a heartbeat after which it counts as hung, by its own settings; None: not declared."""
    version: str = ""
    reaped_why: str = ""
    """The evidence by which it was reaped. Empty, as the version of its holdfast: not recorded."""

    @property
    def gone(self) -> bool:
        """True: it has left cleanly or was reaped."""
        return self.left_at is not None or self.reaped_at is not None


def proof_of_death(
    theirs: Identity,
    *,
    lock_free: bool | None,
    here: Identity,
    start_of_their_pid: str | None,
    one_machine: bool = False,
    is_hidden: bool = False,
) -> str | None:
    """Why this node is certainly dead, or None if that is not certain.

    `lock_free` is None when the lock could not be tested. `start_of_their_pid` is the start time of the
    process that has their pid now in our own namespace, None if there is none. `one_machine`: only one
    machine can use this store. Otherwise a changed boot id proves nothing: cloned machines share even their
    machine id. `is_hidden`: such a process exists, but we may not inspect it, so it proves nothing.
    """
    if lock_free is not None:
        return "its process ended (its lock is free)" if lock_free else None
    if one_machine and theirs.boot_id != here.boot_id and theirs.is_on(here):
        return "the machine was restarted since"
    if theirs.boot_id == here.boot_id and theirs.pid_ns == here.pid_ns:
        if start_of_their_pid is None:
            return f"no process {theirs.pid} is running"
        if start_of_their_pid != theirs.pid_start and not is_hidden:
            return f"process {theirs.pid} is another one"
    return None


@dataclass(slots=True)
class BeatWatch:
    """An observer's record of other nodes' heartbeats, in its own awake time.

    Awake time is the time between ticks that followed each other as planned. A gap longer than `longest_gap`
    means that the observer itself was asleep or stopped, and counts as one gap. Every look is a tick; an
    observer whose sweeps take long must tick in between. A node is judged by the `stale_seconds` it has
    declared, else by the observer's. `forget` drops everything, for when the observer could not write its own
    heartbeat either.
    """

    stale_seconds: float
    longest_gap: float
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Each node's heartbeat counter, and the observer's awake time when it was first seen."""
    _awake: float = 0.0
    _last_tick: float | None = None

    def tick(self, monotonic: float) -> None:
        """The observer is awake now."""
        if self._last_tick is not None:
            self._awake += min(max(0.0, monotonic - self._last_tick), self.longest_gap)
        self._last_tick = monotonic

    def look(
        self, beats: Mapping[str, int], monotonic: float, declared: Mapping[str, float | None] | None = None
    ) -> dict[str, int]:
        """Record these heartbeats; returns the hung nodes, with the counter at which they hang. `declared`:
        the nodes' own `stale_seconds`."""
        self.tick(monotonic)
        seen: dict[str, tuple[int, float]] = {}
        for node, beat in beats.items():
            before = self._seen.get(node)
            seen[node] = before if before and before[0] == beat else (beat, self._awake)
        self._seen = seen
        return {
            node: beat
            for node, (beat, since) in seen.items()
            if self._awake - since >= ((declared or {}).get(node) or self.stale_seconds)
        }

    def forget(self) -> None:
        self._seen.clear()
        self._last_tick = None
