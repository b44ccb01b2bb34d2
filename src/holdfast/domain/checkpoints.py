"""Checkpoints of graphs: the state after a step, and what tasks wrote after it.

Bodies are in the framework's own encoding; only the framework reads them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checkpoint:
    conversation_id: str
    key: str | None
    ns: str
    id: str
    parent: str | None
    kind: str
    metadata: str
    """JSON."""
    body: bytes


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    ns: str
    id: str
    parent: str | None
    run: str | None
    kind: str
    metadata: str
    body: bytes


@dataclass(frozen=True, slots=True)
class CheckpointWrite:
    """`replaces`: the last write at this position counts, not the first."""

    task: str
    ordinal: int
    channel: str
    path: str
    kind: str
    body: bytes
    replaces: bool = False
