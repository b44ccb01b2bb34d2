"""Fingerprints: a digest of what a message means, and a chain of them for a whole history.

A fingerprint covers what a client cannot change by accident (role, text, tool calls) and ignores fields that
clients add or drop. The arguments of a tool call are compared as JSON, text parts as text, null as empty. An
assistant message without content has the empty fingerprint and is skipped.

Equal chains are equal histories: `extended(EMPTY, fingerprints)`. Stores may hold chains of an older version,
which compared arguments as text: `chain_before` computes those; `is_current` detects them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .new_messages import long_number

EMPTY = b"\2" + b"\0" * 16
"""The chain of no messages. The first byte of every chain is the version of the comparison."""

_EMPTY_BEFORE = b"\0" * 16

_encode = msgspec.json.Encoder(order="deterministic").encode


def fingerprint_of(message: Mapping[str, Any]) -> bytes:
    """Digest of a message's meaning; empty for an assistant message without content. Null, unknown and
    display-only fields are ignored."""
    return _print(message, _arguments)


def _print(message: Mapping[str, Any], arguments: Callable[[Any], Any]) -> bytes:
    role = message.get("role")
    content = _plain(message.get("content"))
    if role == "assistant" and isinstance(content, str):
        content = content.strip()  # many clients trim the answers they store
    calls = [
        [call.get("id"), _called(call.get("function") or call.get("custom"), arguments)]
        for call in message.get("tool_calls") or ()
    ]
    if role == "assistant" and not content and not calls and arguments is _arguments:
        return b""
    said = [role, content, calls, message.get("tool_call_id")]
    return hashlib.blake2b(_encode(said), digest_size=16).digest()


def _arguments(given: Any) -> Any:
    """A call's arguments by meaning: white space and key order are ignored. None means no arguments; text
    that is not JSON, or takes too long to read, is compared as is."""
    if not isinstance(given, str):
        return given or {}
    if long_number(given) is not None:
        return given
    try:
        return [msgspec.json.decode(given)] if given.strip() else [{}]
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return given


def _as_text(given: Any) -> Any:
    return given


def chain_before(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """The chain as older versions computed it: arguments compared as text, no message skipped."""
    chain = _EMPTY_BEFORE
    for message in messages:
        chain = hashlib.blake2b(chain + _print(message, _as_text), digest_size=16).digest()
    return chain


def fingerprint_of_body(body: bytes) -> bytes:
    """Fingerprint of a stored body."""
    return fingerprint_of(msgspec.json.decode(body))


def extended(chain: bytes, fingerprints: Iterable[bytes]) -> bytes:
    """The chain after appending these fingerprints."""
    for each in fingerprints:
        if each:
            chain = EMPTY[:1] + hashlib.blake2b(chain + each, digest_size=16).digest()
    return chain


def overlap(beginning: Sequence[bytes], stored: Sequence[bytes]) -> int:
    """How many of the first of `beginning` are the last of `stored`, at most. In linear time (Knuth, Morris,
    Pratt): a client may send thousands of equal messages."""
    borders, count = [0] * len(beginning), 0
    for at in range(1, len(beginning)):
        while count and beginning[at] != beginning[count]:
            count = borders[count - 1]
        count += beginning[at] == beginning[count]
        borders[at] = count
    count = 0
    for each in stored if beginning else ():
        while count and (count == len(beginning) or each != beginning[count]):
            count = borders[count - 1]
        count += each == beginning[count]
    return count


def is_current(chain: bytes) -> bool:
    """True: computed by the current version of the comparison, so it can be extended."""
    return len(chain) == len(EMPTY)


def _plain(content: Any) -> Any:
    """Normalise content: a list of text parts equals the same text as a string."""
    if not isinstance(content, list):
        return content or ""
    parts = [_part(part) for part in content]
    if all(isinstance(part, str) for part in parts):
        return "".join(parts)
    return parts


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return part
    if part.get("type") in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return part["text"]
    return {name: value for name, value in part.items() if value is not None}


def _called(function: Any, arguments: Callable[[Any], Any]) -> Any:
    if not isinstance(function, Mapping):
        return None
    if "arguments" not in function:
        return [function.get("name"), function.get("input")]
    return [function.get("name"), arguments(function["arguments"])]
