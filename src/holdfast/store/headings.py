"""Reads what lists call conversations by: their first words and a preview of their last message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..domain.headings import Heading, heading_of
from .rows import to_json
from .transaction import Q, Transaction


def headings(tx: Transaction, conversation_ids: Sequence[str]) -> Mapping[str, Heading]:
    """The headings of these conversations, by id; those that do not exist are left out. One statement, which
    reads the first bytes of three messages of each."""
    if not conversation_ids:
        return {}
    rows = tx.all(Q.headings, ids=to_json(sorted(set(conversation_ids))))
    return {conversation: heading_of(first, last) for conversation, *first, last in rows}
