"""Reads turns: one, those that run, wait or are due, and pages of a conversation's."""

from __future__ import annotations

from ..domain.queue import as_joined
from ..domain.turns import (
    Turn,
)
from ..errors import NotFound
from .resolve import conversation_of
from .rows import to_turn
from .transaction import Q, Transaction
from .values import LARGEST_LIST, check_limit

_END_OF_TIME = 2**62


def turn_of(tx: Transaction, owner: str | None, turn_id: str) -> Turn:
    """This turn; one whose messages joined another turn has that one's state. Raises NotFound."""
    row = tx.one(Q.turn_by_id, id=turn_id, owner=owner)
    if row is None:
        raise NotFound("turn", turn_id)
    turn = to_turn(row)
    return turn if turn.joined is None else as_joined(turn, turn_of(tx, owner, turn.joined))


def running(tx: Transaction, owner: str | None, *, limit: int = 100) -> list[Turn]:
    """Turns that run on any node, newest first."""
    check_limit(limit, LARGEST_LIST)
    return [to_turn(row) for row in tx.all(Q.turns_that_run, owner=owner, limit=limit)]


def page(
    tx: Transaction,
    owner: str | None,
    conversation_id: str,
    *,
    session_id: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[Turn]:
    """The newest turns of a conversation (or of one of its sessions), newest first, after the turn
    `after`."""
    check_limit(limit, LARGEST_LIST)
    conversation_of(tx, owner, conversation_id)
    below: int = _END_OF_TIME
    if after is not None:
        row = tx.one(Q.turn_number, id=after, conversation=conversation_id)
        if row is None:
            raise NotFound("turn", after)
        below = row[0]
    rows = tx.all(
        Q.turns_of_conversation,
        conversation=conversation_id,
        owner=owner,
        session=session_id,
        below=below,
        limit=limit,
    )
    return [to_turn(row) for row in rows]


def due(tx: Transaction, *, limit: int = 100) -> list[Turn]:
    """Waiting turns that are due to be retried, the longest due first. Cost depends on what waits."""
    return [to_turn(row) for row in tx.all(Q.due_turns, now=tx.now, limit=limit)]


def waiting(tx: Transaction, owner: str | None, *, limit: int = 100) -> list[Turn]:
    """Turns that wait to be retried, the first due first."""
    check_limit(limit, LARGEST_LIST)
    return [to_turn(row) for row in tx.all(Q.waiting_turns, owner=owner, limit=limit)]


def count_waiting(tx: Transaction) -> int:
    """How many turns wait to be retried."""
    (count,) = tx.one(Q.count_waiting) or (0,)
    return int(count)


def stored_request(tx: Transaction, owner: str | None, turn_id: str) -> bytes | None:
    """The request of this turn as `begin` stored it, a StoredRequest; None if it is no longer kept. Raises
    NotFound."""
    row = tx.one(Q.stored_request, id=turn_id, owner=owner)
    if row is None:
        raise NotFound("turn", turn_id)
    request: bytes | None = row[0]
    return request
