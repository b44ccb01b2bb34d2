"""Recognises a request that was sent before: by its idempotency key, or by its body if it has none; and
stores what clients have received, which decides about the latter."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ..domain.request_keys import OPENER_FOR, SHARED, RequestKey, is_sent_again
from ..domain.sessions import FRESH_AFTER
from ..domain.turns import Delivery, Turn, TurnRequest, TurnStatus
from ..errors import NotFound, RequestMismatch
from .resolve import lookup, session_of
from .rows import MICROSECOND, to_turn
from .transaction import Q, Transaction


def known_request(tx: Transaction, request: TurnRequest) -> Turn | RequestKey | None:
    """The turn that this request retries or names; or see `_sent_again`."""
    if request.resumes_turn is not None:
        found = tx.one(Q.turn_by_id, id=request.resumes_turn, owner=request.owner)
        if found is None:
            raise NotFound("turn", request.resumes_turn)
        return to_turn(found)
    key = request.request_key
    if key is None:
        return None
    if not key.may_repeat:
        return None
    since = tx.now - OPENER_FOR // MICROSECOND if key.implied and key.opener else 0
    row = tx.one(Q.turn_by_request, owner=request.owner, route=key.route, key=key.key, since=since)
    if row is None:
        return None
    *columns, fingerprint = row
    turn = to_turn(columns)
    if key.implied:
        return _sent_again(tx, request, key, turn, fingerprint)
    if not key.is_same_body(fingerprint):
        raise RequestMismatch(key.key)
    if not key.names_the_same(fingerprint):
        # Another name is fine if it resolves to the same conversation; otherwise it is another request.
        named = lookup(tx, request.owner, request.address)
        if named is None or named.seen.conversation_id != turn.conversation_id:
            raise RequestMismatch(key.key)
    return turn


def _sent_again(
    tx: Transaction, request: TurnRequest, key: RequestKey, turn: Turn, fingerprint: bytes
) -> Turn | RequestKey | None:
    """The turn, if a request without a key retries it. A RequestKey: not a retry, because its body belongs to
    more than one conversation, and is to be stored as shared."""
    shared = replace(key, shared=True)
    if not key.opener and fingerprint.endswith(SHARED):
        return shared
    if not is_sent_again(key, fingerprint, turn):
        return None
    if turn.status is not TurnStatus.QUEUED and not is_newest(tx, turn):
        return None  # a newer turn exists, so an identical body is a new request, not a retry
    if session_of(tx, request.owner, turn.session_id).end_reason in FRESH_AFTER:
        return None  # a reset happened since, so this message begins a fresh session
    if any(other != turn.conversation_id for other in request.matches):
        return shared  # another conversation has exactly this history: the body may belong to either
    return turn


def is_newest(tx: Transaction, turn: Turn) -> bool:
    return tx.one(Q.newest_turn, conversation=turn.conversation_id) == (turn.id,)


def insert_key(tx: Transaction, request: TurnRequest) -> None:
    """Store the key by which a retry of this request is recognised, if it has one."""
    key = request.request_key
    if key is not None:
        tx.run(
            Q.replace_request if key.implied else Q.insert_request,
            owner=request.owner,
            route=key.route,
            key=key.key,
            body_hash=key.fingerprint,
            turn=request.turn_id,
            now=tx.now,
        )


def note_deliveries(tx: Transaction, deliveries: Mapping[str, Delivery]) -> None:
    """Store how much of these turns' answers clients have received. `WHOLE` never changes back; unknown
    turns are ignored."""
    # The same order everywhere, to avoid deadlocks between nodes.
    rows = [{"id": turn_id, "delivery": deliveries[turn_id]} for turn_id in sorted(deliveries)]
    tx.run_many(Q.note_delivery, rows)
