"""Finds the objects of an owner, of any kind, by the beginning of their id, as a person typed it."""

from __future__ import annotations

from .transaction import Q, Transaction

_BY_BEGINNING = {
    "sess": Q.sessions_beginning,
    "conv": Q.conversations_beginning,
    "turn": Q.turns_beginning,
    "resp": Q.responses_beginning,
    "proc": Q.processes_beginning,
    "mem": Q.memories_beginning,
    "note": Q.notices_beginning,
    "key": Q.keys_beginning,
}
_AFTER_DIGITS = "g"
"""Follows every hexadecimal digit."""


def like(tx: Transaction, owner: str | None, name: str, *, limit: int = 6) -> list[str]:
    """The ids of this owner's objects (None: of all) that begin with `name`, in order; at most `limit`. The
    prefix of `name` must be that of one of our ids."""
    prefix = name.partition("_")[0]
    rows = tx.all(_BY_BEGINNING[prefix], id=name, id_end=name + _AFTER_DIGITS, owner=owner, limit=limit)
    return [row[0] for row in rows]
