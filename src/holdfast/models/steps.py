"""Makes one stream of the several that a model answers with while the server's own tools work.

Whoever listens hears one answer: one id, one role, one end. Calls are held back until it is known whose they
are, and the end until it is known that it is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.models.base import Chunk
from holdfast.models.chunks import chunk_of


def parted(chunk: Chunk) -> tuple[Chunk | None, Chunk | None]:
    """What can be told of a chunk at once, and what has to wait for the end of the answer. Its calls are in
    neither: `calling` makes a chunk of those that are told."""
    value = chunk.value
    if not value.get("choices"):
        return (None, chunk) if chunk.only_usage else (chunk, None)
    choice = value["choices"][0]
    delta = choice.get("delta") or {}
    ends = bool(choice.get("finish_reason"))
    if not ends and not delta.get("tool_calls"):
        return chunk, None
    said = {name: field for name, field in delta.items() if name != "tool_calls"}
    now = {name: field for name, field in value.items() if not (ends and name == "usage")}
    return (
        chunk_of({**now, "choices": [{**choice, "delta": said, "finish_reason": None}]}) if said else None,
        chunk_of({**value, "choices": [{**choice, "delta": {}}]}) if ends else None,
    )


def calling(like: Chunk, calls: Sequence[Mapping[str, Any]]) -> Chunk:
    """A chunk of the same answer that makes these calls."""
    common = {name: field for name, field in like.value.items() if name not in ("choices", "usage")}
    delta = {"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}
    return chunk_of({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def continuing(chunk: Chunk, first: Chunk) -> Chunk:
    """A chunk of a later answer as one of the stream that began with `first`: some clients add up whatever
    comes again, so that nothing may come again but words."""
    value = {**chunk.value, **{name: first.value[name] for name in ("id", "created") if name in first.value}}
    value["choices"] = [
        {**choice, "delta": {name: field for name, field in choice["delta"].items() if name != "role"}}
        if choice.get("delta")
        else choice
        for choice in value.get("choices") or ()
    ]
    return Chunk(msgspec.json.encode(value), value, text=chunk.text)


def led_by(text: str, chunk: Chunk) -> Chunk:
    """The chunk with this in front of its words."""
    first, *others = chunk.value["choices"]
    delta = {**first["delta"], "content": text + first["delta"]["content"]}
    return chunk_of({**chunk.value, "choices": [{**first, "delta": delta}, *others]})


def with_usage(chunk: Chunk, usage: Mapping[str, Any] | None) -> Chunk:
    """The same chunk; if it tells of usage, of this."""
    return chunk_of({**chunk.value, "usage": usage}) if usage and chunk.value.get("usage") else chunk


def summed(usages: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """What several answers used together; None: nobody said."""
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in (usage or {}).items():
            known = total.get(name)
            if isinstance(value, Mapping):
                total[name] = summed([known if isinstance(known, Mapping) else None, value]) or {}
            elif isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = value + (known if isinstance(known, int | float) else 0)
            else:
                total[name] = value
    return total or None
