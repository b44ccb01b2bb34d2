"""The transactions of API keys and of their browser logins.

A key's row is changed only by revoking it, and never deleted, so that a revoked key stays revoked. Revoking
it deletes its logins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta

import msgspec

from ..domain.api_keys import ApiKey, KeyUse, LimitReached, RateLimits, Scope, limit_reached
from ..domain.events import EventType
from ..errors import Conflict, NotFound
from .rows import MICROSECOND, Row, to_json, to_stamp, to_time, to_time_or_none
from .transaction import Q, Transaction


def to_key(row: Row) -> ApiKey:
    (
        id_, owner, scope, tools, created_at, revoked_at, keeps, name, expires_at, last_used_at, *limits,
        webhook,
    ) = row  # fmt: skip
    return ApiKey(
        id_,
        owner,
        Scope(scope),
        frozenset(msgspec.json.decode(tools)),
        to_time(created_at),
        to_time_or_none(revoked_at),
        bool(keeps),
        name,
        to_time_or_none(expires_at),
        to_time_or_none(last_used_at),
        RateLimits(*limits),
        webhook,
    )


def add(tx: Transaction, key: ApiKey, secret_hash: bytes) -> None:
    """Add this key. Conflict, having changed nothing, if its id exists."""
    added = tx.run(
        Q.insert_key,
        id=key.id,
        owner=key.owner,
        scope=key.scope.value,
        tools=to_json(sorted(key.tools)),
        secret_hash=secret_hash,
        created_at=to_stamp(key.created_at),
        keeps=int(key.keeps),
        name=key.name,
        expires_at=None if key.expires_at is None else to_stamp(key.expires_at),
        webhook=key.webhook,
        **asdict(key.limits),
    )
    if not added:
        raise Conflict(f"there is an API key {key.id} already; nothing was changed")
    tx.event(EventType.KEY_CREATED, key.owner, key_id=key.id, scope=key.scope.value)


def revoke(tx: Transaction, key_id: str, owner: str | None) -> bool:
    """Revoke this key permanently and delete its logins. False if it was already revoked; NotFound if this
    owner has no such key."""
    row = tx.one(Q.key_by_id, id=key_id)
    if row is None or owner not in (None, row[1]):
        raise NotFound("API key", key_id)
    if not tx.run(Q.revoke_key, id=key_id, now=tx.now):
        return False
    tx.run(Q.delete_logins_of_key, name=key_id)
    tx.event(EventType.KEY_REVOKED, row[1], key_id=key_id)
    return True


def note_uses(tx: Transaction, used_at: Mapping[str, datetime]) -> None:
    """Store when these keys were last used. Unknown and revoked keys, and earlier times, change nothing."""
    tx.run_many(Q.note_key_use, [{"id": each, "now": to_stamp(used_at[each])} for each in sorted(used_at)])


# --- limits ----------------------------------------------------------------------------------------------

_MINUTE, _DAY = 60_000_000, 86_400_000_000


def count_request(tx: Transaction, key_id: str, limits: RateLimits) -> LimitReached | None:
    """Count a request with this key in the current minute and day, over all nodes; returns the limit that
    refuses it, having counted nothing."""
    minute, day = tx.now // _MINUTE, tx.now // _DAY
    if tx.run(Q.count_request, name=key_id, minute=minute, day=day, **asdict(limits)):
        return None
    row = tx.one(Q.key_use, name=key_id)
    assert row is not None
    (in_minute, in_day, *used) = row
    minute_requests, day_requests, minute_tokens, day_tokens = used
    # Later by one: by the clock of a node that is ahead.
    is_minute, is_day = 0 <= in_minute - minute <= 1, 0 <= in_day - day <= 1
    reached = limit_reached(
        limits,
        KeyUse(
            minute_requests if is_minute else 0,
            day_requests if is_day else 0,
            minute_tokens if is_minute else 0,
            day_tokens if is_day else 0,
            MICROSECOND * (((in_minute if is_minute else minute) + 1) * _MINUTE - tx.now),
            MICROSECOND * (((in_day if is_day else day) + 1) * _DAY - tx.now),
        ),
    )
    assert reached is not None
    return reached


def spend(tx: Transaction, key_id: str, tokens: int) -> None:
    """Count the tokens of an answer for the requests of this key."""
    if tokens > 0:
        minute, day = tx.now // _MINUTE, tx.now // _DAY
        tx.run(Q.count_tokens, name=key_id, minute=minute, day=day, tokens=tokens)


PRUNED_AT_ONCE = 100


def add_login(tx: Transaction, token_hash: bytes, api_key: str, lasts: timedelta, most: int) -> None:
    """Add a login: the token of this hash acts as this key, on every node, for this long. If the key has
    more than `most` logins, its oldest end; those of other keys stay. Some expired ones are deleted."""
    tx.run(Q.prune_logins, now=tx.now, limit=PRUNED_AT_ONCE)
    until = tx.now + lasts // MICROSECOND
    tx.run(Q.insert_login, secret_hash=token_hash, name=api_key, now=tx.now, until=until)
    tx.run(Q.drop_oldest_logins, name=api_key, limit=most)


def login(tx: Transaction, token_hash: bytes) -> str | None:
    """The key id of this login; None if there is none, or it has ended or expired."""
    row = tx.one(Q.login_by_token, secret_hash=token_hash, now=tx.now)
    return None if row is None else row[0]


def end_login(tx: Transaction, token_hash: bytes) -> bool:
    """End this login. False if there was none."""
    return tx.run(Q.delete_login, secret_hash=token_hash) > 0


def key_of(tx: Transaction, key_id: str) -> tuple[ApiKey, bytes] | None:
    """The key of this id, revoked or not, and the hash of its secret; None if there is none."""
    row = tx.one(Q.key_by_id, id=key_id)
    if row is None:
        return None
    *columns, secret_hash = row
    return to_key(columns), secret_hash


def keys_of(tx: Transaction, owner: str | None) -> list[ApiKey]:
    """All keys of an owner, revoked ones too, in creation order."""
    return [to_key(row) for row in tx.all(Q.keys_of, owner=owner)]
