"""The answers of `/v1/chat/completions`: a turn rendered as chunks or as one object, and a stored one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...app import Answered, Outcome
from ...domain.turns import TurnBegun
from ...domain.visible_messages import BETWEEN
from ...models.base import Chunk
from ...models.chunks import led_by
from ..conversation_ref import about_begun
from ..http_errors import failure_of
from ..schemas import HoldfastObject
from ..sse import DONE, framed

_encode = msgspec.json.Encoder().encode


class ChatRenderer:
    """Renders a turn as chat.completion.chunk events."""

    numbered = False
    apart = False

    def __init__(self, wants_usage: bool, *, silent: bool = False) -> None:
        self._wants_usage = wants_usage
        self._silent = silent
        """True: the answer is sent as one body, so no events are rendered."""
        self._begun: TurnBegun | None = None
        self._held: list[Chunk] = []
        """The chunks from `finish_reason` on: sent when the answer is on disk."""
        self._parts = False
        """True: the next text starts a new paragraph, because a tool was run since the last text."""

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        self._begun = begun
        return ()

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        if self._silent:
            return ()
        if self._held or chunk.finishes:
            self._held.append(chunk)
            return ()
        if chunk.only_usage and not self._wants_usage:
            return ()
        if self._parts and chunk.adds.get("content"):
            self._parts = False
            chunk = led_by(BETWEEN, chunk)
        return (framed(chunk.raw),)

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        self._parts = self._parts or spoke
        return ()

    def moved(self, begun: TurnBegun) -> None:
        self._begun = begun

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        if self._silent:
            return ()
        ours = {"holdfast": about_begun(self._begun)} if self._begun else {}
        if not isinstance(outcome, Answered):
            return (framed(_encode({"error": failure_of(outcome.error).object(), **ours})), DONE)
        return (*finished_chunks(self._held, ours, self._wants_usage), DONE)


def finished_chunks(held: Sequence[Chunk], ours: Mapping[str, Any], wants_usage: bool) -> list[bytes]:
    """The framed chunks from `finish_reason` on; the one that has it gets the fields `ours`."""
    return [
        framed(_encode({**chunk.value, **ours}) if chunk.finishes else chunk.raw)
        for chunk in held
        if wants_usage or not chunk.only_usage
    ]


def whole(answer: Mapping[str, Any], message: Mapping[str, Any], ours: HoldfastObject) -> dict[str, Any]:
    """A chat.completion object."""
    choices = [{**choice, "message": message} for choice in answer["choices"]]
    return {**answer, "object": "chat.completion", "choices": choices, "holdfast": ours}


def as_stream(completion: Mapping[str, Any], wants_usage: bool) -> bytes:
    """A stored answer as an SSE stream."""
    ours = completion["holdfast"]
    common = {
        name: value for name, value in completion.items() if name not in ("choices", "usage", "holdfast")
    }
    common["object"] = "chat.completion.chunk"
    (choice,) = completion["choices"]
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(delta["tool_calls"])]
    others = {name: value for name, value in choice.items() if name not in ("message", "finish_reason")}
    said = {**others, "index": 0, "delta": delta, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")}
    chunks: list[dict[str, Any]] = [
        {**common, "choices": [said]},
        {**common, "choices": [end], "holdfast": ours},
    ]
    if wants_usage and completion.get("usage"):
        chunks.append({**common, "choices": [], "usage": completion["usage"]})
    return b"".join((*(framed(_encode(chunk)) for chunk in chunks), DONE))
