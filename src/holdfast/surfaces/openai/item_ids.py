"""The ids of items: derived from the id of the message they belong to.

A chat message is up to several items: its reasoning, its text, each of its calls. Each id says which
message and which part of it, so that nothing has to be kept to find an item again; and since a reply's
number is known as soon as the conversation's lease is held, the ids in a stream are those the stored reply
has later.

    msg_<conversation>_<seq>         what was said
    rs_<conversation>_<seq>          what was thought
    fc_<conversation>_<seq>_<n>      its call number n, from 0
    fco_<conversation>_<seq>         the result of a call
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ...domain.ids import parse_message_id


class ItemPart(StrEnum):
    """The part of a message that an item shows; the value is the prefix of its id."""

    TEXT = "msg"
    REASONING = "rs"
    CALL = "fc"
    RESULT = "fco"


_PARTS = {part.value: part for part in ItemPart}


@dataclass(frozen=True, slots=True)
class ItemName:
    """What an item's id says."""

    message_id: str
    part: ItemPart
    index: int | None = None
    """Which call, for a call."""


def item_id(message_id: str, part: ItemPart, index: int = 0) -> str:
    name = f"{part.value}_{message_id.removeprefix('msg_')}"
    return f"{name}_{index}" if part is ItemPart.CALL else name


def parse_item_id(name: str) -> ItemName | None:
    """What this id says, or None if it is not an item's."""
    prefix, _, rest = name.partition("_")
    part, index = _PARTS.get(prefix), None
    if part is None:
        return None
    if part is ItemPart.CALL:
        rest, _, digits = rest.rpartition("_")
        if not _plain(digits):
            return None
        index = int(digits)
    message_id = f"msg_{rest}"
    if parse_message_id(message_id) is None or not _plain(rest.rpartition("_")[2]):
        return None
    return ItemName(message_id, part, index)


def _plain(digits: str) -> bool:
    """A number as we write it: no leading zero, no foreign digits, and not so long that reading it costs."""
    return digits.isascii() and digits.isdecimal() and len(digits) < 19 and str(int(digits)) == digits
