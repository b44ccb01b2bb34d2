"""Finds items by their ids: in one conversation, or wherever an owner's request refers to them.

An id says which message it is of, so finding costs one read. Messages that were deleted or replaced have no
items any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...domain.ids import parse_message_id
from ...domain.messages import Message
from ...errors import NotFound
from ...store.base import Store
from ..openai.input_items import Resolve, referenced_ids
from ..openai.item_ids import ItemName, parse_item_id
from ..openai.items import Item, items_of
from ..openai.parameters import BadParameter

MOST_REFERENCES = 1000


def place_of_item(item_id: str, conversation_id: str) -> tuple[ItemName, int]:
    """What an id says, and the number of its message; NotFound if it is none of this conversation's."""
    name = parse_item_id(item_id)
    place = parse_message_id(name.message_id) if name else None
    if name is None or place is None or place[0] != conversation_id:
        raise NotFound("item", item_id)
    return name, place[1]


async def find_item(store: Store, owner: str, conversation_id: str, item_id: str) -> tuple[Item, Message]:
    """The item of this id, and the message it shows a part of."""
    _, seq = place_of_item(item_id, conversation_id)
    page = await store.messages(owner, conversation_id, first=seq, last=seq, excluded=False)
    for message in page.items:
        for item in items_of(message):
            if item["id"] == item_id:
                return item, message
    raise NotFound("item", item_id)


async def resolver(store: Store, owner: str, items: object, param: str = "items") -> Resolve:
    """Looks up, beforehand, the items that a request only refers to."""
    known: dict[str, Mapping[str, Any]] = {}
    names: Sequence[str] = list(dict.fromkeys(referenced_ids(items)))
    if len(names) > MOST_REFERENCES:
        raise BadParameter(param, f"may refer to {MOST_REFERENCES} items at most; it refers to {len(names)}")
    places = {
        place
        for name in map(parse_item_id, names)
        if name is not None and (place := parse_message_id(name.message_id)) is not None
    }
    wanted = frozenset(names)
    for conversation_id, seq in places:  # each message once, however many of its items are referred to
        try:
            page = await store.messages(owner, conversation_id, first=seq, last=seq, excluded=False)
        except NotFound:
            continue  # the parser names it, with its place in the request
        for message in page.items:
            known.update((item["id"], item) for item in items_of(message) if item["id"] in wanted)
    return known.get
