"""Items of a framework as messages: a readable body, and the item itself beside it.

The body is what the dashboard, search, exports and other clients of the conversation see. The item is stored
with the message as extra data, so it is returned exactly as it was given, and is never sent to a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ..domain.messages import Message, NewMessage
from ..domain.new_messages import MOST_NESTED, is_nested_deeper, said_by_model

_encode = json.JSONEncoder(separators=(",", ":")).encode


def carrying(field: str, item: Any, body: Mapping[str, Any]) -> NewMessage:
    """A message with this body that carries `item` under `field`. TypeError if the item is not JSON."""
    text = _encode(item)
    message = said_by_model(body)
    try:
        if text.count("{") + text.count("[") > MOST_NESTED and is_nested_deeper(item, MOST_NESTED):
            raise ValueError
        msgspec.json.decode(text)
        if "\\u0000" in text:
            raise ValueError
    except (ValueError, msgspec.DecodeError):
        # Python's JSON only (NaN, lone surrogates, NUL), or too deep: as a text, which any reader can decode.
        return replace(message, extra=json.dumps({f"{field}_json": text}))
    return replace(message, extra=f'{{"{field}":{text}}}')


def carried(field: str, message: Message) -> Any | None:
    """The item that this message carries under `field`; None if it was written by another client."""
    return carried_in(field, message.carried())


def carried_in(field: str, data: Mapping[str, Any]) -> Any | None:
    """The same from the extra data of a message."""
    if field in data:
        return data[field]
    text = data.get(f"{field}_json")
    return None if text is None else json.loads(text)


def text_of(content: Any) -> str:
    """The readable text of a message's content: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_of(part) for part in content)
    if isinstance(content, Mapping):
        for name in ("text", "refusal", "content"):
            if isinstance(found := content.get(name), str | list):
                return text_of(found)
    return ""


def words_of(text: str) -> set[str]:
    """The words of a text, in small letters, to compare with those of a query."""
    return set(re.findall(r"\w+", text.casefold()))
