"""Replaces the placeholder results of calls whose outcome was unknown, under the turn's lease."""

from __future__ import annotations

from collections.abc import Sequence

from ..domain.messages import NewMessage
from ..domain.turns import Lease
from .transaction import Q, Transaction
from .turns import append

KNOWN_NOW = "its outcome became known"


def replace_results(
    tx: Transaction, lease: Lease, seqs: Sequence[int], messages: Sequence[NewMessage]
) -> int:
    """Append these results and exclude the messages `seqs`, which they replace; returns the last seq.
    LeaseLost writes nothing."""
    last_seq = append(tx, lease, messages)
    for seq in seqs:
        tx.run(Q.insert_exclusion, conversation=lease.conversation_id, seq=seq, reason=KNOWN_NOW, now=tx.now)
    tx.run(Q.touch_revision, id=lease.conversation_id)
    return last_seq
