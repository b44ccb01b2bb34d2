"""Records and reads the policies of the whole store: see `StorePolicy`.

The last server's record applies. A library's applies where no server has recorded any, a command's where
neither has. A node's assumption is replaced by the first node that knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec

from ..domain.flushes import WAIT, FlushPolicy, FlushRules
from ..domain.nodes import NodeKind
from .transaction import Q, Transaction
from .values import Retention, StorePolicy

RANKS = {NodeKind.CLI: 1, NodeKind.LIBRARY: 2, NodeKind.SERVER: 3}
ASSUMED = 0
_SPANS = ("drafts", "events", "requests", "conversations")


def read(tx: Transaction) -> StorePolicy:
    """The policies recorded for the whole store."""
    found = {part: msgspec.json.decode(value) for part, value in tx.all(Q.policies)}
    flush, retention = found.get("flush"), found.get("retention")
    return StorePolicy(
        None if flush is None else _flush(flush),
        None if retention is None else _retention(retention),
        found.get("resets"),
    )


def flush_rules(tx: Transaction) -> FlushRules | None:
    """Rules for flushing sessions that end; None: none is flushed. Without a record: the rules that the store
    was opened with."""
    row = tx.one(Q.policy, part="flush")
    if row is None:
        return tx.flushing
    return _flush(msgspec.json.decode(row[0])).rules(tx.flushing.wait if tx.flushing else WAIT)


def leaves_dating(tx: Transaction) -> bool:
    """True: a server has recorded other reset policies than this program's."""
    row = tx.one(Q.policy, part="resets")
    return row is not None and msgspec.json.decode(row[0]) != tx.policies.stamp


def has_news(tx: Transaction, kind: NodeKind, policy: StorePolicy) -> bool:
    """True: recording this would change something."""
    return any(tx.one(Q.policy_to_record, **part) is not None for part in _parts(kind, policy))


def record(tx: Transaction, kind: NodeKind, policy: StorePolicy, recorded_by: str) -> None:
    for part in _parts(kind, policy):
        tx.run(Q.record_policy, **part, recorded_by=recorded_by, now=tx.now)


def _parts(kind: NodeKind, policy: StorePolicy) -> Iterator[dict[str, Any]]:
    rank = RANKS[kind]
    if (flush := policy.flush) is not None:
        value = {"on": flush.on, "min_messages": flush.min_messages}
        yield {"part": "flush", "rank": ASSUMED if flush.assumed else rank, "value": _json(value)}
    if (kept := policy.retention) is not None:
        spans = {
            name: _seconds(getattr(kept, name)) for name in ("drafts", "events", "requests", "conversations")
        }
        yield {"part": "retention", "rank": rank, "value": _json(spans)}
    if policy.resets is not None:
        yield {"part": "resets", "rank": rank, "value": _json(policy.resets)}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _flush(value: dict[str, Any]) -> FlushPolicy:
    return FlushPolicy(bool(value["on"]), int(value["min_messages"]))


def _retention(value: dict[str, Any]) -> Retention:
    conversations = value["conversations"]
    return Retention(
        timedelta(seconds=value["drafts"]),
        timedelta(seconds=value["events"]),
        timedelta(seconds=value["requests"]),
        None if conversations is None else timedelta(seconds=conversations),
    )
