"""Messages of a LangGraph channel as ours: LangChain's objects, or plain OpenAI message objects.

Each has a name that stays the same as long as its text does, by which the store knows it again. To find those
that are new cheaply, the saver compares hashes of this process first.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ..domain.messages import NewMessage
from ..domain.new_messages import said_by_model
from ..domain.session_messages import Named
from ..errors import BadMessage
from .carried import text_of

ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "developer": "developer"}


def named_messages(channel: Any, known: Collection[int]) -> Iterator[tuple[int, Named]]:
    """The messages of a channel whose hash is not known, each with its hash and a name that stays the same as
    long as its text does.

    A message without an id is named by its text, and by how many equal ones precede it: one that a graph
    removes from the beginning of the list does not rename the others.
    """
    if not isinstance(channel, list | tuple):
        return
    equal: dict[Any, int] = {}
    for each in channel:
        id_, shown = _glance(each)
        message = None
        if shown is None:  # calls, parts or another type: compared by what would be stored
            message = message_of(each)
            if message is None:
                continue
            shown = message.body
        place: str | int
        if id_ is None:
            place = equal[shown] = equal.get(shown, -1) + 1
        else:
            place = str(id_)
        mark = hash((place, shown))
        if mark not in known and (named := _name(id_, place, message or message_of(each))):
            yield mark, named


def newest_messages(
    channel: Sequence[Any], number: int, known: Collection[int]
) -> list[tuple[int, Named]] | None:
    """The same for so many messages at the end, the others being known; None if one of them cannot be named
    without looking at all."""
    found = []
    for position in range(len(channel) - number, len(channel)):
        each = channel[position]
        id_, shown = _glance(each)
        message = None
        if shown is None:
            message = message_of(each)
            if message is None:
                continue
            if id_ is None:
                return None
            shown = message.body
        place: str | int
        if id_ is not None:
            place = str(id_)
        elif number == 1 and hash((0, shown)) not in known:
            place = 0  # the first of equal messages is known by this hash, so there is none before it
        else:
            place = _number_equal(channel[:position], shown)
        mark = hash((place, shown))
        if mark not in known and (named := _name(id_, place, message or message_of(each))):
            found.append((mark, named))
    return found


def _number_equal(messages: Sequence[Any], shown: Any) -> int:
    """How many of these have no id, and this type and text. The texts are compared first: that is cheap."""
    texts = [
        each.get("content") if type(each) is dict else getattr(each, "content", None) for each in messages
    ]
    if shown[1] not in texts:
        return 0
    return sum(1 for each in messages if _glance(each) == (None, shown))


def _name(id_: Any, place: str | int, message: NewMessage | None) -> Named | None:
    if message is None:
        return None
    digest = blake2b(message.body, digest_size=12).hexdigest()
    if id_ is not None:  # hashed: the id of a message may be any text
        place = blake2b(str(id_).encode(errors="replace"), digest_size=12).hexdigest()
    return Named(message, f"{place}:{digest}")


def _glance(value: Any) -> tuple[Any, Any]:
    """The id of a message, and type and text of a simple one, which are cheap to compare; else None."""
    if isinstance(value, dict):
        plain = value.get("tool_calls") is None and value.get("tool_call_id") is None
        role, content = value.get("role") or value.get("type"), value.get("content")
        return value.get("id"), (role, content) if plain and isinstance(content, str) else None
    content = getattr(value, "content", None)
    plain = isinstance(content, str) and not getattr(value, "tool_calls", None)
    plain = plain and getattr(value, "tool_call_id", None) is None
    return getattr(value, "id", None), (getattr(value, "type", None), content) if plain else None


def message_of(value: Any) -> NewMessage | None:
    """A message of LangChain, or an OpenAI message object, as ours; None if it is neither."""
    if isinstance(value, Mapping):
        fields = {"role": value.get("role") or ROLES.get(str(value.get("type")))}
        fields |= {name: value[name] for name in ("content", "tool_calls", "tool_call_id") if name in value}
    else:
        role = ROLES.get(str(getattr(value, "type", "")).removesuffix("MessageChunk").lower())
        if role is None or not hasattr(value, "content"):
            return None
        fields = {"role": role, "content": text_of(value.content)}
        if calls := getattr(value, "tool_calls", None):
            fields["tool_calls"] = [_call(call) for call in calls]
        if role == "tool":
            fields["tool_call_id"] = getattr(value, "tool_call_id", None)
    try:
        return said_by_model(fields)
    except BadMessage:
        return None


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call.get("name", ""), "arguments": json.dumps(call.get("args", {}), default=str)}
    return {"id": call.get("id") or call.get("name", ""), "type": "function", "function": function}
