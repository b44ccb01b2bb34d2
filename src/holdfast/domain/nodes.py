"""Nodes: running holdfast processes, and how we know whether one still lives.

A node is an *incarnation*: its id is never used again. Death is proven, never guessed from a clock:

- its lock (of its node file, or an advisory one of PostgreSQL), if it can be tested, alone decides whether it
  was killed;
- another boot id of the same machine, in a store that only one machine can use: dead;
- the same boot and the same pid namespace, but no such process (or another one under that pid): dead;
- anything else: unknown, which is not dead.

A living process may still hang. That is told by its beat counter: unchanged for a whole window of the
observer's *own* awake time. No two clocks are compared, so sleep, clock jumps and full disks reap nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class NodeKind(StrEnum):
    SERVER = "server"
    CLI = "cli"
    LIBRARY = "library"


class Liveness(StrEnum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one operating-system process from any other, past or present."""

    host: str
    boot_id: str
    pid_ns: str
    pid: int
    pid_start: str
    machine: str = ""
    """The machine's own id, whatever it is called; empty: not known, and then equal to no other."""

    def is_on(self, other: Identity) -> bool:
        """Does it run on the machine of this other one, in this boot or another? A hostname says nothing:
        clones and containers share it."""
        return self.boot_id == other.boot_id or (bool(self.machine) and self.machine == other.machine)


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    kind: NodeKind
    identity: Identity
    beat: int = 0
    started_at: datetime | None = None
    heartbeat_at: datetime | None = None
    left_at: datetime | None = None
    reaped_at: datetime | None = None
    stale_seconds: float | None = None
    """After how long without a beat it may be taken for hung, by its own settings; None: it does not say."""

    @property
    def gone(self) -> bool:
        """Has it left in good order, or been reaped?"""
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
    """Why this node is certainly dead, or None if it is not certain.

    `lock_free` is None when the lock could not be tested; `start_of_their_pid` is the start time of
    the process that has their pid now in our own namespace, None if there is none. `one_machine`: only one
    machine can use this store. Otherwise a changed boot id proves nothing: machines that were cloned share
    even their machine id. `is_hidden`: such a process exists, but we may not look at it, so it is no proof.
    """
    if lock_free is not None:
        return "its lock is free: the process is gone" if lock_free else None
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
    """An observer's memory of other nodes' beats, in its own awake time.

    Awake time is what passes between two ticks that followed each other as planned: a gap longer than
    `longest_gap` means that the observer itself was asleep or stopped, and counts as one gap. Every look is
    a tick; an observer whose looks may be far apart, because its sweeps take long, ticks in between.
    A node is judged by the `stale_seconds` it has declared itself, else by the observer's.
    `forget` drops everything, for when the observer could not write its own beat either.
    """

    stale_seconds: float
    longest_gap: float
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The beat of each node, and the observer's awake time when it was first seen."""
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
        """Note these beats; returns the nodes that have hung, with the beat they hang at. `declared`: the
        nodes' own `stale_seconds`."""
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
