"""Checkpoints of graphs: the state after a step, and what tasks wrote after it.

Bodies are in the framework's own encoding; only the framework reads them.
"""

from __future__ import annotations

from .value import Value


class Checkpoint(Value, frozen=True):
    conversation_id: str
    key: str | None
    ns: str
    id: str
    parent: str | None
    kind: str
    metadata: str
    """JSON."""
    body: bytes


class NewCheckpoint(Value, frozen=True):
    ns: str
    id: str
    parent: str | None
    run: str | None
    kind: str
    metadata: str
    body: bytes


class CheckpointWrite(Value, frozen=True):
    """`replaces`: the last write at this position counts, not the first."""

    task: str
    ordinal: int
    channel: str
    path: str
    kind: str
    body: bytes
    replaces: bool = False
