"""Reads the body of a chat completion, as it arrives, into chunks.

Bytes in, chunks out, no I/O. A stream of events is expected; a whole JSON completion, from a server that does
not stream, becomes one chunk. Each event is decoded here, and its bytes are kept beside the result. An error
object inside the stream, a page of HTML and anything that is no chunk raise ModelError, and so does an end
before every choice has its `finish_reason`: half an answer is never passed off as a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.errors import ModelError
from holdfast.models.base import Chunk
from holdfast.models.chunks import chunk_from_completion
from holdfast.models.refusals import refusal_in
from holdfast.models.shapes import read_shape, words_in
from holdfast.models.sse import MAX_EVENT, Event, EventReader

_decode = msgspec.json.Decoder().decode


class AnswerReader:
    """One answer with this many choices. `shown` makes a server's words fit to be shown."""

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
        """The server said that this was all."""
        self.heard = 0
        """Grows with each event, and with a plain body: what is no keepalive."""

    @property
    def finished(self) -> bool:
        """Every choice has its finish_reason: the answer is whole, though usage may follow."""
        return len(self._finished) >= self._waiting_for

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """The chunks that this piece completes; those before an error come before it is raised."""
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
        """The connection ended. What was still missing; ModelError if that is not the whole answer."""
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
        """Decide by the first byte that is not white space what this body is."""
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

    def _chunks(self, events: list[Event]) -> Iterator[Chunk]:
        for name, data in events:
            if self.done:
                break
            if data == b"[DONE]":
                self._must_be_finished("[DONE] came before a finish_reason")
                self.done = True
            elif data:
                # The first chunk says who answers; those behind it mostly add words.
                words = words_in(data) if self._begun and not name else None
                if words is not None:
                    yield Chunk(data, text=words)
                    continue
                value = self._object(data, is_error=name == b"error")
                self._look_at(data)
                self._begun = True
                yield Chunk(data, value)

    def _look_at(self, data: bytes) -> None:
        """Note which choices have finished. ModelError if this could not be folded."""
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
