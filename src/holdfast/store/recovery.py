"""The transactions of turns that wait to be retried by a server, and the requests they are rebuilt from."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..domain.messages import NewMessage
from ..domain.recovery import Cause
from ..domain.turns import Lease, Turn, TurnStatus
from ..errors import Conflict, ConversationBusy, NotFound, TurnSuperseded
from .request_keys import is_newest
from .resolve import conversation_of
from .rows import to_time, to_turn
from .transaction import Q, Transaction
from .turn_ends import end_waiting, park
from .turns import append, turn_of
from .values import LARGEST_LIST, check_limit

KNOWN_NOW = "its outcome became known"


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


def retry(tx: Transaction, owner: str | None, turn_id: str) -> Turn:
    """Have a server take this turn up as soon as possible, whatever its budget. Conflict if it runs, has an
    answer or was cancelled, if its request is no longer kept, or if it is not the newest."""
    turn = turn_of(tx, owner, turn_id)
    if turn.status not in (TurnStatus.INTERRUPTED, TurnStatus.FAILED):
        raise Conflict(
            f"turn {turn_id} is {turn.status.value}; only one that was interrupted or has failed can be "
            "retried"
        )
    if not is_newest(tx, turn):
        raise TurnSuperseded(turn_id)
    if stored_request(tx, owner, turn_id) is None:
        raise Conflict(f"the request of turn {turn_id} is no longer kept; send it as a new request")
    if not turn.waits and not tx.run(Q.claim_for_waiting, id=turn.conversation_id, turn=turn.id):
        conversation = conversation_of(tx, owner, turn.conversation_id)
        raise ConversationBusy(conversation.id, conversation.holder, conversation.turn_id)
    park(tx, turn, replace(turn.recovery, due_at=to_time(tx.now), cause=Cause.RETRY))
    return turn_of(tx, owner, turn_id)


def give_up(tx: Transaction, turn_id: str, why: str) -> bool:
    """End a waiting turn as failed, for this reason; its conversation is free. False if it was not
    waiting."""
    row = tx.one(Q.turn_by_id, id=turn_id, owner=None)
    turn = to_turn(row) if row is not None else None
    if turn is None or not turn.waits:
        return False
    end_waiting(tx, turn, TurnStatus.FAILED, why, given_up=True)
    return True


def replace_results(
    tx: Transaction, lease: Lease, seqs: Sequence[int], messages: Sequence[NewMessage]
) -> int:
    """Append the results of calls whose outcome was unknown, and exclude the messages `seqs`, which they
    replace; returns the last seq. LeaseLost writes nothing."""
    last_seq = append(tx, lease, messages)
    for seq in seqs:
        tx.run(Q.insert_exclusion, conversation=lease.conversation_id, seq=seq, reason=KNOWN_NOW, now=tx.now)
    tx.run(Q.touch_revision, id=lease.conversation_id)
    return last_seq
