"""Items: JSON values of an owner by space, namespace and name, with an optional time to live.

An item of a conversation is deleted with it. An expired item is not found, and is deleted with a later write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from ..domain.ids import check_name, unstorable
from ..domain.items import Item, ItemPlace, PutItem
from ..domain.messages import size_of
from ..domain.session_messages import Named
from ..errors import BadInput, Conflict
from .resolve import conversation_of
from .rows import Row, to_json, to_time
from .session_messages import append_new, reach, unknown
from .transaction import Q, Transaction

MICROSECOND = timedelta(microseconds=1)
EXPIRED_AT_ONCE = 100
STATE = "state"
LAST_NAMESPACE = "\U0010ffff"


def to_item(row: Row) -> Item:
    namespace, name, value, created_at, updated_at, conversation = row
    return Item(namespace, name, value, to_time(created_at), to_time(updated_at), conversation)


def put(tx: Transaction, owner: str, changes: Sequence[PutItem], *, absent: ItemPlace | None = None) -> None:
    """Make these changes, all or none, and delete some expired items. The last of several changes of one item
    counts. `absent`: the place of an item of one of their conversations; Conflict if there is one already.
    Conflict and QuotaExceeded change nothing; deleting is never refused."""
    locked: set[str] = set()
    _lock(tx, owner, changes, locked)
    if absent is not None and get(tx, owner, *absent) is not None:
        raise Conflict(f"there is an item {absent[2]!r:.80} already")
    grown, needed = _grown(tx, owner, changes, {}, locked)
    if (total := sum(grown.values())) > 0:
        check_growth(tx, owner, grown, total)
    _grow(tx, grown)
    _write(tx, owner, needed)
    drop_expired(tx, EXPIRED_AT_ONCE)


_Size = tuple[int, str | None]
"""Bytes of an item, and the conversation that it belongs to."""


def _lock(tx: Transaction, owner: str, changes: Sequence[PutItem], locked: set[str]) -> None:
    """Check these changes, and lock their conversations but those that are `locked` already."""
    for change in changes:
        _check(change)
        if change.conversation_id is not None and change.conversation_id not in locked:
            conversation_of(tx, owner, change.conversation_id)
            locked.add(change.conversation_id)


def _write(tx: Transaction, owner: str, changes: Sequence[PutItem]) -> None:
    for change in changes:
        where = {
            "owner": owner,
            "space": change.space,
            "namespace": change.namespace,
            "name": change.name,
        }
        if change.value is None:
            tx.erased = True
            tx.run(Q.delete_item, **where)
            continue
        ttl = None if change.ttl is None else change.ttl // MICROSECOND
        tx.run(
            Q.put_item,
            **where,
            value=change.value,
            conversation=change.conversation_id,
            ttl=ttl,
            expires_at=None if ttl is None else tx.now + ttl,
            now=tx.now,
        )


def _grown(
    tx: Transaction,
    owner: str,
    changes: Sequence[PutItem],
    known: Mapping[ItemPlace, Item],
    locked: set[str],
) -> tuple[dict[str | None, int], list[PutItem]]:
    """By how many bytes these changes grow the conversations that their items belong to, and under None those
    that belong to no conversation; and the changes without deletions of what is not stored: another node may
    store it meanwhile. `known`: items of conversations that were `locked` before they were read."""
    grown: dict[str | None, int] = {}
    sizes: dict[ItemPlace, _Size | None] = {}
    needed: list[PutItem] = []
    for change in changes:
        place = (change.space, change.namespace, change.name)
        if place not in sizes:
            found = known.get(place)
            sizes[place] = _size_of(found) if found else _stored_size(tx, owner, place, locked)
        if (old := sizes[place]) is not None:
            grown[old[1]] = grown.get(old[1], 0) - old[0]
        elif change.value is None:
            continue
        needed.append(change)
        sizes[place] = None
        if change.value is not None:
            size = len(change.value.encode())
            sizes[place] = size, change.conversation_id
            grown[change.conversation_id] = grown.get(change.conversation_id, 0) + size
    return grown, needed


def _grow(tx: Transaction, grown: Mapping[str | None, int]) -> None:
    """Count the bytes of items that belong to a conversation, which is locked. Those of the others are added
    up when an owner's quota is checked."""
    for conversation_id, added in grown.items():
        if conversation_id is not None and added:
            tx.run(Q.grow, id=conversation_id, bytes=added)


def check_growth(tx: Transaction, owner: str, grown: Mapping[str | None, int], total: int) -> None:
    """Raises QuotaExceeded if these conversations may not grow by so many bytes, or the owner by `total`."""
    quotas = tx.quotas
    for conversation_id, added in grown.items():
        if conversation_id is not None and added > 0 and quotas.conversation_bytes:
            (held,) = tx.one(Q.conversation_bytes, id=conversation_id) or (0,)
            quotas.check_conversation(conversation_id, held, added)
    if quotas.owner_bytes:
        (held,) = tx.one(Q.owner_bytes, owner=owner) or (0,)
        quotas.check_owner_bytes(owner, held, total)


def _size_of(item: Item) -> _Size:
    return len(item.value.encode()), item.conversation_id


def _stored_size(tx: Transaction, owner: str, place: ItemPlace, locked: set[str]) -> _Size | None:
    """Of the item at this place, expired or not, read again once its conversation is locked; None: there is
    none."""
    space, namespace, name = place
    while row := tx.one(Q.item_size, owner=owner, space=space, namespace=namespace, name=name):
        size, conversation_id = row
        if conversation_id is None or conversation_id in locked:
            return size, conversation_id
        tx.one(Q.conversation_by_id, id=conversation_id, owner=owner)  # locks it, unless it was deleted
        locked.add(conversation_id)
    return None


def _check(change: PutItem) -> None:
    check_name("the name of an item", change.name)
    for what, text in (("a namespace", change.namespace), ("an item's value", change.value or "")):
        if fault := unstorable(text):
            raise BadInput(f"{what} {fault}")


def drop_expired(tx: Transaction, limit: int) -> int:
    """Delete expired items of all owners; returns how many. Those that another node is changing right now, or
    whose conversation it has locked, are left to the next write."""
    dropped = 0
    for owner, space, namespace, name, conversation_id, size in tx.all(
        Q.expired_items, now=tx.now, limit=limit
    ):
        if conversation_id is not None:
            if tx.one(Q.lock_if_free, id=conversation_id) is None:
                continue
            tx.run(Q.grow, id=conversation_id, bytes=-size)
        tx.run(Q.delete_item, owner=owner, space=space, namespace=namespace, name=name)
        dropped += 1
    return dropped


def append_with_items(
    tx: Transaction,
    owner: str,
    conversation_id: str,
    node_id: str,
    messages: Sequence[Named],
    places: Sequence[ItemPlace],
    fold: Callable[[Sequence[Item | None]], Sequence[PutItem]],
) -> int:
    """Append messages as `session_messages.append` does and, if one was new, make the changes that `fold`
    derives from the items at these places: one transaction. Returns how many messages were new.

    `fold` must be quick and without effects: it may be called again if the transaction is retried. Items of
    this conversation do not change between the read and the write.
    """
    reached = reach(tx, owner, conversation_id)
    new = unknown(tx, conversation_id, messages)
    if not new:
        return 0
    found = [get(tx, owner, *place) for place in places]
    changes = fold(found)
    locked = {conversation_id}
    _lock(tx, owner, changes, locked)
    known = {
        place: item
        for place, item in zip(places, found, strict=True)
        if item is not None and item.conversation_id == conversation_id
    }
    grown, changes = _grown(tx, owner, changes, known, locked)
    whole = sum(grown.values()) + size_of(each.message for each in new)
    beside = grown.pop(conversation_id, 0)
    if sum(grown.values()) > 0:
        check_growth(tx, owner, grown, whole)
    append_new(tx, reached, owner, node_id, new, beside=beside)
    _grow(tx, grown)
    _write(tx, owner, changes)
    return len(new)


def get(tx: Transaction, owner: str, space: str, namespace: str, name: str) -> Item | None:
    """An item; None if there is none, or if it has expired."""
    row = tx.one(Q.item, owner=owner, space=space, namespace=namespace, name=name, now=tx.now)
    return None if row is None else to_item(row)


def refresh(tx: Transaction, owner: str, space: str, names: Sequence[tuple[str, str]]) -> None:
    """Restart the time to live of these items, each by namespace and name."""
    for namespace, name in names:
        tx.run(Q.refresh_item, owner=owner, space=space, namespace=namespace, name=name, now=tx.now)


def under(tx: Transaction, owner: str, space: str, prefix: str) -> list[Item]:
    """Items of this namespace and of those below it (labels are joined by dots), the last changed first; of
    all namespaces, if it is empty."""
    rows = tx.all(
        Q.items_between,
        owner=owner,
        space=space,
        from_namespace=prefix,
        to_namespace=f"{prefix}/" if prefix else LAST_NAMESPACE,  # "/" is the character after "."
        now=tx.now,
    )
    found = [to_item(row) for row in rows]
    return [
        item
        for item in found
        if not prefix or item.namespace == prefix or item.namespace.startswith(f"{prefix}.")
    ]


def namespaces(tx: Transaction, owner: str, space: str) -> list[str]:
    """The namespaces that have items, in order."""
    return [name for (name,) in tx.all(Q.item_namespaces, owner=owner, space=space, now=tx.now)]


def state(tx: Transaction, owner: str, conversation_id: str) -> dict[str, Any]:
    """The state of a conversation: what programs keep with it that is not for the model."""
    found = get(tx, owner, STATE, "", conversation_id)
    decoded: dict[str, Any] = {} if found is None else found.decoded()
    return decoded


def update_state(
    tx: Transaction, owner: str, conversation_id: str, changes: Mapping[str, Any], removed: Sequence[str] = ()
) -> dict[str, Any]:
    """Merge these changes into a conversation's state and remove these names; returns the new state."""
    conversation_of(tx, owner, conversation_id)  # locks it: two updates are made one after the other
    new = {**state(tx, owner, conversation_id), **changes}
    for name in removed:
        new.pop(name, None)
    put(tx, owner, [PutItem(STATE, "", conversation_id, to_json(new), conversation_id=conversation_id)])
    return new
