"""Checks quotas before anything is written.

Exact for a conversation on both engines: its row is locked, or there is one writer. Exact for an owner on
SQLite, where one transaction writes at a time. On PostgreSQL, turns of one owner that begin at the same
moment in different conversations do not see each other, so together they may exceed the owner's limit; a lock
per owner would make them wait for each other.
"""

from __future__ import annotations

from .transaction import Q, Transaction


def check_quotas(
    tx: Transaction, owner: str, added: int, conversation_id: str | None = None, used: int = 0
) -> None:
    """Raises QuotaExceeded if `added` bytes may not be stored; without a `conversation_id`: in a new one."""
    quotas = tx.quotas
    quotas.check_conversation(conversation_id, used, added)
    if conversation_id is None and quotas.owner_conversations:
        (count,) = tx.one(Q.owner_conversations, owner=owner) or (0,)
        quotas.check_owner_conversations(owner, count)
    if quotas.owner_bytes:
        (held,) = tx.one(Q.owner_bytes, owner=owner) or (0,)
        quotas.check_owner_bytes(owner, held, added)
