"""Makes chat.completion.chunk objects, for models that have no such stream of their own.

A script and a callable know only their text; a server that was asked to stream may answer with a whole
completion all the same. Either way the rest of holdfast sees chunks, the last carrying `finish_reason`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.models.base import Chunk


class ChunkMaker:
    """The chunks of one answer: they share an id, a time and a model's name."""

    def __init__(self, model: str) -> None:
        self._common = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def delta(self, **fields: Any) -> Chunk:
        """Add these fields to the reply."""
        return self._chunk(fields, None)

    def finish(self, reason: str) -> Chunk:
        """The last one that belongs to a choice."""
        return self._chunk({}, reason)

    def usage(self, usage: Mapping[str, Any]) -> Chunk:
        """What follows it, as OpenAI sends it: usage, and no choice."""
        return chunk_of({**self._common, "choices": [], "usage": usage})

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> Chunk:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return chunk_of({**self._common, "choices": [choice]})


def chunk_of(value: Mapping[str, Any]) -> Chunk:
    return Chunk(raw=msgspec.json.encode(value), value=value)


def chunk_from_completion(completion: Mapping[str, Any]) -> Chunk:
    """A whole `chat.completion` as the one chunk of a stream; fields nobody here knows stay."""
    choices = []
    for choice in completion.get("choices") or ():
        delta = dict(choice.get("message") or {})
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(delta["tool_calls"])]
        rest = {name: value for name, value in choice.items() if name != "message"}
        choices.append({**rest, "delta": delta})
    return chunk_of({**completion, "object": "chat.completion.chunk", "choices": choices})
