"""Converts chat messages to items, with ids derived from the id of the message.

A chat message is one or more items: its reasoning, its text, each of its calls. An item id contains the
message and the part of it, so that no index is stored to find an item. A reply's number is known as soon as
the conversation's lease is held, so the ids in a stream are those of the reply stored later.

    msg_<conversation>_<seq>         the text
    rs_<conversation>_<seq>          the reasoning
    fc_<conversation>_<seq>_<n>      its call number n, from 0
    fco_<conversation>_<seq>         the result of a call
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import count as numbers
from itertools import islice
from typing import Any

import msgspec

from ...domain.ids import parse_message_id
from ...domain.messages import Message, MessageStatus
from ...domain.value import Value
from .client_tools import call_item
from .input_items import ToolNames
from .parts import input_parts, output_parts, output_text, shown, thoughts, without_thoughts


class ItemPart(StrEnum):
    """The part of a message that an item shows; the value is the prefix of its id."""

    TEXT = "msg"
    REASONING = "rs"
    CALL = "fc"
    RESULT = "fco"


_PARTS = {part.value: part for part in ItemPart}


class ItemName(Value, frozen=True):
    """A parsed item id."""

    message_id: str
    part: ItemPart
    index: int | None = None
    """The number of the call; None if the item is not a call."""


def item_id(message_id: str, part: ItemPart, index: int = 0) -> str:
    name = f"{part.value}_{message_id.removeprefix('msg_')}"
    return f"{name}_{index}" if part is ItemPart.CALL else name


def parse_item_id(name: str) -> ItemName | None:
    """The parsed id, or None if it is not an item's."""
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
    """True for a number as we write it: ASCII digits, no leading zero, not so long that parsing is slow."""
    return digits.isascii() and digits.isdecimal() and len(digits) < 19 and str(int(digits)) == digits


Item = dict[str, Any]

# The fields in which servers send reasoning. Some send it twice, under two names: the first is used.
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
SHOWN_ELSEWHERE = (
    *("id", "type", "status", "role", "content", "refusal", "annotations", "tool_calls", "function_call"),
    *REASONING_FIELDS,
)


def items_of(message: Message, *, custom_tools: Collection[str] = ()) -> list[Item]:
    """The items of a stored message. Calls of `custom_tools` become custom tool calls."""
    interrupted = message.status is MessageStatus.INTERRUPTED
    return items_from(
        message.shown(),
        message.id,
        interrupted=interrupted,
        custom_tools=custom_tools,
        gaps=message.gaps,
    )


def items_from(
    content: Mapping[str, Any],
    message_id: str,
    *,
    interrupted: bool = False,
    custom_tools: Collection[str] = (),
    gaps: Collection[int] = (),
) -> list[Item]:
    """The items of a message that will be stored under this id. Its calls at `gaps` were deleted."""
    role = content.get("role")
    if role in ("tool", "function"):
        items = [_result(content, message_id)]
    elif role == "assistant":
        items = _reply(content, message_id, custom_tools, gaps)
    else:
        items = [_message(content, message_id, input_parts(content.get("content")))]
    if interrupted:
        items[-1]["status"] = "incomplete"
    return items


def without_item(
    content: Mapping[str, Any], name: ItemName, gaps: Collection[int] = ()
) -> dict[str, Any] | None:
    """The message without the part that this item is; None if nothing is left. Its calls at `gaps` were
    deleted before."""
    left = dict(content)
    match name.part:
        case ItemPart.REASONING:
            for field in REASONING_FIELDS:
                left.pop(field, None)
            if thoughts(left.get("content")):
                left["content"] = without_thoughts(left["content"])
        case ItemPart.TEXT:
            kept = ("role", "content", "tool_calls", *REASONING_FIELDS)
            left = {key: left[key] if key != "content" else None for key in kept if key in left}
        case ItemPart.CALL:
            calls = left.pop("tool_calls", None) or []
            calls = [
                call for at, call in zip(_places(gaps, len(calls)), calls, strict=True) if at != name.index
            ]
            left.pop("function_call", None)
            if calls:
                left["tool_calls"] = calls
        case ItemPart.RESULT:
            return None
    if content.get("role") != "assistant":
        return None
    said = left.get("tool_calls") or output_parts(left) or reasoning_of(left)
    return left if said else None


def listed(items: Sequence[Item], *, has_more: bool = False) -> dict[str, Any]:
    """OpenAI's list of items. The SDK's types require strings as first and last id, also of an empty list."""
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else "",
        "last_id": items[-1]["id"] if items else "",
        "has_more": has_more,
    }


def item_page(
    messages: Iterable[Message],
    *,
    limit: int,
    after: str | None = None,
    descending: bool = False,
    more: bool = False,
) -> dict[str, Any]:
    """A page of items, made from messages in the order of the list.

    `messages` start with the message of `after` and are enough for the page: each has at least one item. The
    items up to and including `after` are skipped; `after` itself may have been deleted. `more`: there are
    further messages.
    """
    skipping = parse_item_id(after) if after else None
    items: list[Item] = []
    for message in messages:
        own = items_of(message)
        if descending:
            own.reverse()
        if skipping and message.id == skipping.message_id:
            seen = _rank(skipping)
            own = [item for item in own if _is_behind(item["id"], seen, descending)]
        items.extend(own)
    return listed(items[:limit], has_more=more or len(items) > limit)


_ORDER = (ItemPart.REASONING, ItemPart.TEXT, ItemPart.CALL, ItemPart.RESULT)


def _rank(name: ItemName) -> tuple[int, int]:
    """The sort key of an item within its message."""
    return _ORDER.index(name.part), name.index or 0


def _is_behind(name: str, seen: tuple[int, int], descending: bool) -> bool:
    named = parse_item_id(name)
    assert named is not None  # the id was made here
    return _rank(named) < seen if descending else _rank(named) > seen


def reasoning_of(content: Mapping[str, Any]) -> str:
    """The reasoning of a reply."""
    for field in REASONING_FIELDS:
        text = content.get(field)
        if isinstance(text, str) and text:
            return text
    return thoughts(content.get("content"))


def reasoning_item(message_id: str, text: str) -> Item:
    return {
        "id": item_id(message_id, ItemPart.REASONING),
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }


def _reply(
    content: Mapping[str, Any], message_id: str, custom_tools: Collection[str], gaps: Collection[int]
) -> list[Item]:
    items = []
    if thought := reasoning_of(content):
        items.append(reasoning_item(message_id, thought))
    calls = _calls(content, message_id, custom_tools, gaps)
    parts = output_parts(content)
    if parts or not (items or calls):
        items.append(_message(content, message_id, parts or [output_text("")]))
    return [*items, *calls]


def _message(content: Mapping[str, Any], message_id: str, parts: list[dict[str, Any]]) -> Item:
    return {
        "id": item_id(message_id, ItemPart.TEXT),
        "type": "message",
        "status": "completed",
        "role": content.get("role"),
        "content": parts,
        **_others(content, SHOWN_ELSEWHERE),
    }


def _calls(
    content: Mapping[str, Any], message_id: str, custom_tools: Collection[str], gaps: Collection[int]
) -> list[Item]:
    calls = content.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        old = content.get("function_call")
        calls = [{"function": old}] if isinstance(old, Mapping) else []
    return [
        _call(call, item_id(message_id, ItemPart.CALL, at), custom_tools)
        for at, call in zip(_places(gaps, len(calls)), calls, strict=True)
        if isinstance(call, Mapping)
    ]


def _places(gaps: Collection[int], count: int) -> Iterator[int]:
    """The original positions of the `count` calls that are left after those at `gaps` were deleted."""
    return islice((at for at in numbers() if at not in gaps), count)


def _call(call: Mapping[str, Any], name_of_item: str, custom_tools: Collection[str]) -> Item:
    custom, function = call.get("custom"), call.get("function")
    facts: Mapping[str, Any] = function if isinstance(function, Mapping) else {}
    if isinstance(custom, Mapping) and not facts.get("name"):
        facts = custom
    name, arguments = shown(facts.get("name")), shown(facts.get("arguments"))
    space, own_name = "", name
    if isinstance(custom_tools, ToolNames):
        space, own_name = custom_tools.spaces.get(name, (space, own_name))
    head = {
        "id": name_of_item,
        "status": "completed",
        "call_id": shown(call.get("id")) or name_of_item,
        "name": own_name,
        **({"namespace": space} if space else {}),
    }
    others = _others(call, ("id", "type", "function", "custom", "index", *head))
    if facts is custom:
        return {"type": "custom_tool_call", **head, "input": shown(facts.get("input")), **others}
    if isinstance(custom_tools, ToolNames) and name in custom_tools.typed:
        typed = call_item(name, arguments)
        if typed is not None:
            del head["name"]
            return {"type": typed.pop("type"), **head, **typed, **others}
    if name in custom_tools:
        return {"type": "custom_tool_call", **head, "input": custom_input(arguments), **others}
    return {"type": "function_call", **head, "arguments": arguments, **others}


def custom_input(arguments: str) -> str:
    """A custom tool's input, from the arguments of the function that replaces it; the raw arguments if the
    model did not use its one parameter."""
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return arguments
    return shown(given["input"]) if isinstance(given, dict) and "input" in given else arguments


def _result(content: Mapping[str, Any], message_id: str) -> Item:
    said = content.get("content")
    output = input_parts(said) if isinstance(said, list) else shown(said)
    return {
        "id": item_id(message_id, ItemPart.RESULT),
        "type": "function_call_output",
        "status": "completed",
        "call_id": shown(content.get("tool_call_id")),
        "output": output,
        **_others(content, ("id", "type", "status", "role", "content", "tool_call_id", "call_id", "output")),
    }


def _others(content: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in known and value is not None}
