"""`HoldfastStore`: long-term memory of LangGraph. Imported from `holdfast.adapters.langgraph`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from ..domain.items import Item as StoredItem
from ..domain.items import PutItem
from .bridge import Bridge, Node
from .carried import words_of

SOURCE = "langgraph"


class HoldfastStore(BaseStore):
    """Long-term memory of graphs on a holdfast store: JSON values by namespace and key.

    `search` ranks by how many of the query's words occur in the value, and leaves out items with none.
    Times to live are in minutes. The changes of one batch are made in one transaction.
    """

    supports_ttl = True

    def __init__(self, node: Node, *, owner: str | None = None, ttl: TTLConfig | None = None) -> None:
        self._bridge = Bridge(node, owner)
        self.ttl_config = ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        given = _checked(ops)
        return self._bridge.call(lambda: self._batch(given))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        given = _checked(ops)
        return await self._bridge.run(lambda: self._batch(given))

    def sweep_ttl(self) -> int:
        """Delete expired items now; returns how many. Writes delete some anyway."""
        return self._bridge.call(self._sweep)

    async def _sweep(self) -> int:
        dropped = 0
        while number := await self._bridge.hf.store.drop_expired_items(1000):
            dropped += number
        return dropped

    async def _batch(self, ops: Sequence[Op]) -> list[Result]:
        """Reads see what was stored before this batch."""
        store, owner = self._bridge.hf.store, self._bridge.hf.owner
        results: list[Result] = []
        refreshed: list[tuple[str, str]] = []
        changes: dict[tuple[str, str], PutItem] = {}
        for op in ops:
            if isinstance(op, GetOp):
                found = await store.item(owner, SOURCE, _joined(op.namespace), op.key)
                if found is not None and op.refresh_ttl:
                    refreshed.append((found.namespace, found.name))
                results.append(_item(found) if found is not None else None)
            elif isinstance(op, SearchOp):
                hits = _search(await store.items_under(owner, SOURCE, _joined(op.namespace_prefix)), op)
                if op.refresh_ttl:
                    refreshed += [(_joined(hit.namespace), hit.key) for hit in hits]
                results.append(hits)
            elif isinstance(op, ListNamespacesOp):
                results.append(_listed(await store.item_namespaces(owner, SOURCE), op))
            elif isinstance(op, PutOp):
                namespace = _joined(op.namespace)
                value = None if op.value is None else json.dumps(op.value)
                ttl = None if op.ttl is None else timedelta(minutes=op.ttl)
                changes[namespace, op.key] = PutItem(SOURCE, namespace, op.key, value, ttl)
                results.append(None)
            else:
                raise ValueError(f"unknown operation {type(op).__name__}")
        if refreshed:
            await store.refresh_items(owner, SOURCE, refreshed)
        if changes:
            await store.put_items(owner, [*changes.values()])
        return results


def _checked(ops: Iterable[Op]) -> list[Op]:
    given = [*ops]
    for op in given:
        validate_op_namespace(op)
    return given


def _joined(namespace: tuple[str, ...]) -> str:
    return ".".join(namespace)


def _item(stored: StoredItem) -> Item:
    return Item(
        value=stored.decoded(),
        key=stored.name,
        namespace=tuple(stored.namespace.split(".")),
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )


def _search(items: Sequence[StoredItem], op: SearchOp) -> list[SearchItem]:
    words = words_of(op.query or "")
    hits: list[tuple[float, SearchItem]] = []
    for stored in items:
        value = stored.decoded()
        if not all(_matches(value.get(name), wanted) for name, wanted in (op.filter or {}).items()):
            continue
        score = None
        if words:
            text = words_of(" ".join(_texts(value)))
            score = len(words & text) / len(words)
            if not score:
                continue
        hit = SearchItem(
            namespace=tuple(stored.namespace.split(".")),
            key=stored.name,
            value=value,
            created_at=stored.created_at,
            updated_at=stored.updated_at,
            score=score,
        )
        hits.append((score or 0.0, hit))
    hits.sort(key=lambda each: -each[0])  # stable: the last changed first
    return [hit for _, hit in hits[op.offset : op.offset + op.limit]]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, wanted: bool(value == wanted),
    "$ne": lambda value, wanted: bool(value != wanted),
    "$gt": lambda value, wanted: float(value) > float(wanted),
    "$gte": lambda value, wanted: float(value) >= float(wanted),
    "$lt": lambda value, wanted: float(value) < float(wanted),
    "$lte": lambda value, wanted: float(value) <= float(wanted),
}


def _matches(value: Any, wanted: Any) -> bool:
    """A filter's condition: a value, an object whose fields must match, or operators such as `$gt`."""
    if not isinstance(wanted, Mapping):
        return bool(value == wanted)
    operators = {name for name in wanted if name.startswith("$")}
    if unknown := operators - set(OPERATORS):
        raise ValueError(f"unknown operators in a filter: {', '.join(sorted(unknown))}")
    if not operators:
        return isinstance(value, Mapping) and all(_matches(value.get(n), part) for n, part in wanted.items())
    return value is not None and all(OPERATORS[name](value, part) for name, part in wanted.items())


def _listed(stored: Sequence[str], op: ListNamespacesOp) -> list[tuple[str, ...]]:
    found: dict[tuple[str, ...], None] = {}
    for joined in stored:
        namespace = tuple(joined.split("."))
        if all(_fits(condition, namespace) for condition in op.match_conditions or ()):
            found[namespace if op.max_depth is None else namespace[: op.max_depth]] = None
    return sorted(found)[op.offset : op.offset + op.limit]


def _fits(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
