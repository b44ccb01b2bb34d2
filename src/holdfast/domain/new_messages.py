"""Validates and encodes messages that are to be stored: of clients, of SDKs' objects, and of the model.

A body is validated once, here; after that it is passed on as bytes. Raises BadMessage, naming the error and
its location. A model's answer is repaired instead of refused: a model cannot correct it as a client could.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from ..errors import BadMessage
from .ids import storable, unstorable
from .messages import NESTED_TOO_DEEPLY, NewMessage

MAX_BODY_BYTES = 32 * 1024 * 1024

MOST_NESTED = 100
TOO_DEEP = f"the message is nested too deeply; at most {MOST_NESTED} levels are allowed"
"""Maximum nesting of objects and lists in a message. Deeper ones could be stored but not read everywhere."""

MOST_DIGITS = 1000
"""Digits of a number in JSON. The time to read and write one grows with their square: 16 MB of numbers of
4,000 digits take seconds, in which no other thread runs."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


class SdkObject(Protocol):
    """An object of an SDK, such as `response.choices[0].message` of openai."""

    def model_dump(self) -> Any: ...


def plain(value: Any) -> Any:
    """An SDK's object as a plain one, without its fields that are None; anything else as it is."""
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type | Mapping):
        return value
    try:
        found = dump()
    except Exception as error:  # user-defined object: may raise anything
        raise BadMessage(f"{type(value).__name__}.model_dump() failed: {error}") from error
    return _without_nones(found)


def _without_nones(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nones(part) for name, part in value.items() if part is not None}
    return [_without_nones(part) for part in value] if isinstance(value, list | tuple) else value


def new_message(value: Mapping[str, Any] | SdkObject | bytes) -> NewMessage:
    """Validate an OpenAI message object (or its JSON, or an SDK's object) and prepare it for storing.

    Raises BadMessage, naming the error and its location, if it is invalid.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        value = decode_object(bytes(value))
    if not isinstance(value, Mapping):
        value = plain(value)
    if not isinstance(value, Mapping):
        raise BadMessage(f"a message must be an object with a role, not {type(value).__name__}")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise BadMessage(f"a message's role must be one of {', '.join(sorted(ROLES))}; it is {role!r}")
    content = value.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BadMessage(f"a message's content must be text or a list of parts, not {type(content).__name__}")
    if isinstance(content, list) and not all(isinstance(part, Mapping | str) for part in content):
        raise BadMessage("every part of a message's content must be an object")
    calls = _call_ids(value.get("tool_calls"))  # of any role: readers do not ask for it
    answers = value.get("tool_call_id") if role == "tool" else None
    if role == "tool" and not (isinstance(answers, str) and answers):
        raise BadMessage("a tool message must name the call it answers in tool_call_id")
    return NewMessage(role, _encode(value), calls if role == "assistant" else (), answers)


def said_by_model(value: Mapping[str, Any]) -> NewMessage:
    """A model's answer, prepared for storing. Unstorable text is replaced, not refused: a model cannot
    correct its answer as a client could."""
    try:
        return new_message(value)
    except BadMessage:
        return new_message(_mended(value))


def _mended(value: Any, level: int = 1) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping | list) and level > MOST_NESTED:
        return NESTED_TOO_DEEPLY
    if isinstance(value, Mapping):
        return {storable(name): _mended(part, level + 1) for name, part in value.items()}
    return [_mended(part, level + 1) for part in value] if isinstance(value, list) else value


def is_nested_deeper(value: object, levels: int) -> bool:
    """True if objects and lists are nested deeper than this. Not recursive."""
    layer = [value]
    for _ in range(levels):
        layer = [part for item in layer for part in _parts(item) if isinstance(part, Mapping | list | tuple)]
        if not layer:
            return False
    return True


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def user_message(text: str) -> NewMessage:
    return new_message({"role": "user", "content": text})


def new_messages(
    value: str | Mapping[str, Any] | SdkObject | Iterable[Mapping[str, Any] | SdkObject],
) -> tuple[NewMessage, ...]:
    """Messages from user input: a text (as the user), one message object, or several. An SDK's objects are
    taken as they are."""
    if isinstance(value, str):
        return (user_message(value),)
    if isinstance(value, Mapping):
        return (new_message(value),)
    if callable(getattr(value, "model_dump", None)):  # before Iterable: an SDK's object is one too
        return (new_message(plain(value)),)
    if isinstance(value, Iterable):
        return tuple(new_message(item) for item in value)
    raise BadMessage(f"expected text or message objects, not {type(value).__name__}")


def decode_object(data: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(data)
    except RecursionError as error:  # from which depth on depends on the Python
        raise BadMessage(TOO_DEEP) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadMessage(f"not valid JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise BadMessage(f"a message must be an object with a role, not {type(decoded).__name__}")
    return decoded


_PIECE = 2**20
_BLOCK = MOST_DIGITS // 2
"""A number of more than MOST_DIGITS digits fills one block at least, up to the first byte of the next."""
_TWO_DIGITS = re.compile(rb"[0-9](?=[0-9])")
# An unterminated string matches as a string, and short numbers match whole: that keeps the search linear.
_NUMBERS = re.compile(
    rb'"(?:[^"\\]++|\\(?:.|\Z))*+(?:"|\Z)|(?P<long>[0-9]{%d,}+)|[0-9]++' % (MOST_DIGITS + 1), re.DOTALL
)


def long_number(text: bytes | str) -> int | None:
    """Where a JSON text has a number of more than MOST_DIGITS digits, in bytes; None: nowhere. Digits inside
    strings are no number."""
    if len(text) <= MOST_DIGITS:
        return None
    data = text.encode(errors="replace") if isinstance(text, str) else text
    piece = _PIECE // _BLOCK * _BLOCK
    for start in range(0, len(data), piece):  # in pieces: other threads can run in between
        for match in _TWO_DIGITS.finditer(data[start : start + piece + _BLOCK : _BLOCK]):
            at = start + match.start() * _BLOCK
            if data[at : at + _BLOCK].isdigit():
                found = (number for number in _NUMBERS.finditer(data) if number["long"])
                return next((number.start() for number in found), None)
    return None


def is_part(rest: object, whole: object) -> bool:
    """True if `rest` is `whole` with something removed: nothing new, same order."""
    if rest is None or rest == whole:
        return True
    if isinstance(rest, Mapping) and isinstance(whole, Mapping):
        return all(name in whole and is_part(value, whole[name]) for name, value in rest.items())
    if isinstance(rest, list) and isinstance(whole, list):
        left = iter(whole)
        return all(value in left for value in rest)
    return False


def tool_result(call_id: str, text: str, *, inner: bool = False) -> NewMessage:
    """A tool message that answers `call_id`."""
    result = new_message({"role": "tool", "tool_call_id": call_id, "content": text})
    return replace(result, inner=True) if inner else result


def _call_ids(calls: object) -> tuple[str, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise BadMessage(f"tool_calls must be a list, not {type(calls).__name__}")
    ids = []
    for number, call in enumerate(calls):
        call_id = call.get("id") if isinstance(call, Mapping) else None
        if not isinstance(call_id, str) or not call_id:
            raise BadMessage(f"tool_calls[{number}] must be an object with an id")
        for name in ("function", "custom"):
            if not isinstance(call.get(name), Mapping | None):
                raise BadMessage(f"tool_calls[{number}].{name} must be an object")
        ids.append(call_id)
    if len(set(ids)) != len(ids):
        raise BadMessage("two tool calls of one message share an id")
    return tuple(ids)


def _encode(value: Mapping[str, Any]) -> bytes:
    try:
        body = msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise BadMessage(f"the message cannot be stored: {_unstorable_text(value)}") from error
    except RecursionError as error:
        raise BadMessage(TOO_DEEP) from error
    except (TypeError, ValueError, msgspec.EncodeError) as error:
        raise BadMessage(f"the message cannot be stored: {error}") from error
    if b"\\u0000" in body or b"\\ud" in body:
        # An escape sequence appears only if a character has no plain form. Decode before refusing, because a
        # backslash followed by "u0000" is ordinary text.
        fault = _unstorable_text(value)
        if fault:
            raise BadMessage(f"the message cannot be stored: {fault}")
    if body.count(b"{") + body.count(b"[") > MOST_NESTED and is_nested_deeper(value, MOST_NESTED):
        raise BadMessage(TOO_DEEP)
    if len(body) > MAX_BODY_BYTES:
        raise BadMessage(f"the message is {len(body)} bytes long; at most {MAX_BODY_BYTES} are allowed")
    return body


def _unstorable_text(value: object) -> str | None:
    """The path of a text in the message that cannot be stored, and why."""
    stack: list[tuple[str, object]] = [("message", value)]
    while stack:
        where, item = stack.pop()
        if isinstance(item, str):
            fault = unstorable(item)
            if fault:
                return f"{where} {fault}"
        elif isinstance(item, Mapping):
            for name, part in item.items():
                stack.append((f"{where}.{name!r:.40}", part))
                stack.append((f"a name in {where}", name))
        elif isinstance(item, list | tuple):
            stack.extend((f"{where}[{number}]", part) for number, part in enumerate(item))
    return None
