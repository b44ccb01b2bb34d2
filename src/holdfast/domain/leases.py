"""Leases: a node's right to act on a conversation, for one turn.

The token rises with each holder and is never handed out twice. Every write of a turn names it, so a
writer that was taken for dead and comes back finds its token outdated and has written nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    conversation_id: str
    session_id: str
    turn_id: str
    node_id: str
    token: int
