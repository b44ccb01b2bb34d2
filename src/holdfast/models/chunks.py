"""Makes and reads chat.completion.chunk objects, also for models that do not stream.

A script and a callable have only their text; a server asked to stream may still return a whole completion. In
each case the rest of holdfast sees chunks, the last with a `finish_reason`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..errors import ModelError
from .base import Chunk
from .refusals import refusal_in
from .reply import read_shape, words_in
from .sse import MAX_EVENT, EventReader, SseEvent


class ChunkMaker:
    """The chunks of one answer: they share an id, a time and a model name."""

    def __init__(self, model: str) -> None:
        self._common = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def delta(self, **fields: Any) -> Chunk:
        """A chunk that adds these fields to the reply."""
        return self._chunk(fields, None)

    def finish(self, reason: str) -> Chunk:
        """The last chunk of a choice."""
        return self._chunk({}, reason)

    def usage(self, usage: Mapping[str, Any]) -> Chunk:
        """The chunk after it, as OpenAI sends it: usage, and no choice."""
        return chunk_of({**self._common, "choices": [], "usage": usage})

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> Chunk:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return chunk_of({**self._common, "choices": [choice]})


def chunk_of(value: Mapping[str, Any]) -> Chunk:
    return Chunk(None, value)


def chunk_from_completion(completion: Mapping[str, Any]) -> Chunk:
    """A whole `chat.completion` as the only chunk of a stream; unknown fields are kept."""
    choices = []
    for choice in completion.get("choices") or ():
        delta = dict(choice.get("message") or {})
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(delta["tool_calls"])]
        rest = {name: value for name, value in choice.items() if name != "message"}
        choices.append({**rest, "delta": delta})
    return Chunk(None, {**completion, "object": "chat.completion.chunk", "choices": choices}, whole=True)


def parted(chunk: Chunk) -> tuple[Chunk | None, Chunk | None]:
    """Split a chunk: what can be published at once, and what waits for the end of the answer. Its tool calls
    are in neither: `calling` makes a chunk for those to publish."""
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
    """A chunk of the same answer with these tool calls."""
    common = {name: field for name, field in like.value.items() if name not in ("choices", "usage")}
    delta = {"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}
    return chunk_of({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def continuing(chunk: Chunk, first: Chunk) -> Chunk:
    """Make a chunk of a later answer part of the stream that began with `first`. Some clients concatenate
    repeated fields, so only text may repeat."""
    value = {**chunk.value, **{name: first.value[name] for name in ("id", "created") if name in first.value}}
    value["choices"] = [
        {**choice, "delta": {name: field for name, field in choice["delta"].items() if name != "role"}}
        if choice.get("delta")
        else choice
        for choice in value.get("choices") or ()
    ]
    return Chunk(msgspec.json.encode(value), value, text=chunk.text)


def led_by(text: str, chunk: Chunk) -> Chunk:
    """The chunk with this text before its own."""
    first, *others = chunk.value["choices"]
    delta = {**first["delta"], "content": text + first["delta"]["content"]}
    return chunk_of({**chunk.value, "choices": [{**first, "delta": delta}, *others]})


def with_usage(chunk: Chunk, usage: Mapping[str, Any] | None) -> Chunk:
    """The same chunk; if it has usage, with this one."""
    return chunk_of({**chunk.value, "usage": usage}) if usage and chunk.value.get("usage") else chunk


def summed(usages: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The total usage of several answers; None: none was reported."""
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


_decode = msgspec.json.Decoder().decode


class AnswerReader:
    """Reads one answer with this many choices. `shown` makes a server's error text safe to show."""

    def __init__(self, choices: int = 1, shown: Callable[[str], str] = str) -> None:
        self._events = EventReader()
        self._waiting_for = choices
        self._finished: set[int] = set()
        self._shown = shown
        self._start = b""
        self._whole: list[bytes] | None = None  # the pieces of an answer that is one JSON object
        self._whole_size = 0
        self._is_stream = False
        self._begun = False
        self.done = False
        """True once the server has sent the end mark."""
        self.heard = 0
        """Grows with each event and with a plain body, but not with keepalives."""

    @property
    def finished(self) -> bool:
        """True if every choice has its finish_reason: the answer is complete, though usage may follow."""
        return len(self._finished) >= self._waiting_for

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """The chunks that this piece completes; chunks before an error are yielded before it is raised."""
        if not self._is_stream:
            if self._whole is None:
                piece = self._look_at_start(self._start + piece)
            if self._whole is not None:
                self._keep(piece)
                return iter(())
        events = self._events.feed(piece)
        self.heard += len(events)
        return self._chunks(events)

    def end(self) -> Iterator[Chunk]:
        """The connection ended: yield what remains. Raises ModelError if the answer is incomplete."""
        if self._whole is not None:
            data = b"".join(self._whole)
            value = self._object(data)
            if not value.get("choices"):
                raise ModelError("the model answered with JSON that has no choices; check [model] base_url")
            self._look_at(data)
            yield chunk_from_completion(value)
        else:
            yield from self._chunks(self._events.finish())
        if not self.done:
            self._must_be_finished("the connection ended without a finish_reason")

    def _look_at_start(self, start: bytes) -> bytes:
        """Decide by the first non-blank byte what this body is."""
        first = start.lstrip()[:1]
        self._start = b"" if first else start
        if first == b"<":
            raise ModelError("the model answered with a web page; does [model] base_url end in /v1?")
        if first == b"{":
            self._whole = []
        elif first:
            self._is_stream = True
        return b"" if self._start else start

    def _keep(self, piece: bytes) -> None:
        assert self._whole is not None
        self.heard += bool(piece.strip())
        self._whole.append(piece)
        self._whole_size += len(piece)
        if self._whole_size > MAX_EVENT:
            raise ModelError(f"the model's answer is larger than {MAX_EVENT >> 20} MiB")

    def _chunks(self, events: list[SseEvent]) -> Iterator[Chunk]:
        for name, data in events:
            if self.done:
                break
            if data == b"[DONE]":
                self._must_be_finished("[DONE] came before a finish_reason")
                self.done = True
            elif data:
                # The first chunk has the metadata; later ones mostly add text.
                words = words_in(data) if self._begun and not name else None
                if words is not None:
                    yield Chunk(data, text=words)
                    continue
                value = self._object(data, is_error=name == b"error")
                self._look_at(data)
                self._begun = True
                yield Chunk(data, value)

    def _look_at(self, data: bytes) -> None:
        """Record which choices have finished. Raises ModelError if the chunk could not be folded."""
        try:
            choices = read_shape(data).choices
        except msgspec.ValidationError as problem:
            raise ModelError(f"the model sent JSON that is not a chat completion ({problem})") from None
        for choice in choices or ():
            if choice.finish_reason:
                self._finished.add(choice.index or 0)

    def _object(self, data: bytes, is_error: bool = False) -> dict[str, Any]:
        try:
            value = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise ModelError(f"the model sent something that is not JSON ({problem})") from None
        if not isinstance(value, dict):
            raise ModelError("the model sent JSON that is not a chat completion")
        if is_error or value.get("error"):
            refusal = refusal_in(value, self._shown)
            raise refusal.error(f"the model reported an error: {refusal.said or 'it gave no reason'}")
        return value

    def _must_be_finished(self, how: str) -> None:
        if not self.finished:
            raise ModelError(f"the model's stream ended early: {how}")
