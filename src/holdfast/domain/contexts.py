"""Renders a session's view into the context sent to the model.

Almost all messages are sent as their stored bytes. The exceptions are found by marks that were extracted when
they were stored, so nothing else is ever decoded:

- an interrupted reply says that it was interrupted;
- a tool call without a result is answered, right after its message, by "no result was given" (rendered, not
  stored), because models refuse a history with an open call;
- a tool result whose call is not in the context is left out, for the same reason.

Calls of the newest message are *awaited*: their results may still arrive, so nothing is rendered for them
yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from .context_size import Size, weight_of
from .new_messages import tool_result
from .value import Value

INTERRUPTED = "[This reply was interrupted before it was finished.]"
_UNKNOWN = "[Interrupted, outcome unknown:"
OUTCOME_UNKNOWN = (
    f"{_UNKNOWN} the process that ran this tool was stopped before it reported a "
    "result. It may have taken effect; do not repeat it without checking whether it has.]"
)
NO_RESULT = "[No result was given for this call.]"
SUMMARY_HEADING = "[Summary of the earlier part of this conversation]"


def is_unknown(content: object) -> bool:
    """True: the text of a placeholder for an unknown outcome, as this or an older version wrote it."""
    return isinstance(content, str) and content.startswith(_UNKNOWN)


class Mark(Value, frozen=True):
    """A message that needs rendering: it calls tools, answers a call, or was interrupted."""

    seq: int
    calls: tuple[str, ...] = ()
    answers: str | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a context differs from the stored bytes."""

    left_out: frozenset[int] = frozenset()
    interrupted: frozenset[int] = frozenset()
    inserted: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    """Bodies rendered right after a message."""
    awaited: tuple[str, ...] = ()
    """Calls of the newest message whose results may still arrive."""

    @property
    def plain(self) -> bool:
        return not (self.left_out or self.interrupted or self.inserted)


def render(
    marks: Sequence[Mark], shown: Sequence[tuple[int, int]], hidden: frozenset[int] = frozenset()
) -> Rendering:
    """Decide how the marked messages of a context (in order) are rendered.

    `shown` are the ranges of seqs in the context, upwards, `hidden` the seqs in them that are left out. The
    results of a message's calls come right after it; any other message closes the calls that are still open.
    """
    left_out: set[int] = set()
    inserted: dict[int, tuple[bytes, ...]] = {}
    caller, open_calls, expected = 0, dict[str, None](), 0
    newest = shown[-1][1] if shown else 0

    @cache  # many results may be checked against the same place, after many hidden messages
    def next_visible(start: int) -> int:
        for first, last in shown:
            for seq in range(max(first, start), last + 1):
                if seq not in hidden:
                    return seq
        return newest + 1

    def follows(seq: int) -> bool:
        """True: no visible message is between the calls, with their results so far, and `seq`."""
        return next_visible(expected) >= seq

    def close() -> None:
        if open_calls:
            inserted[caller] = tuple(tool_result(call, NO_RESULT).body for call in open_calls)

    for mark in marks:
        if mark.answers is not None:
            in_place = follows(mark.seq)
            if in_place and mark.answers in open_calls:
                del open_calls[mark.answers]
            else:
                left_out.add(mark.seq)
            if in_place:
                expected = mark.seq + 1
        if mark.calls:
            close()
            caller, open_calls, expected = mark.seq, dict.fromkeys(mark.calls), mark.seq + 1
    awaited = tuple(open_calls) if follows(newest + 1) else ()
    if not awaited:
        close()
    interrupted = frozenset(mark.seq for mark in marks if mark.interrupted)
    return Rendering(frozenset(left_out), interrupted, inserted, awaited)


def mark_interrupted(body: bytes) -> bytes:
    """An interrupted reply for the model: its text, and a note that it was interrupted."""
    message: dict[str, Any] = msgspec.json.decode(body)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [*content, {"type": "text", "text": INTERRUPTED}]
    else:
        message["content"] = f"{content}\n\n{INTERRUPTED}" if content else INTERRUPTED
    return msgspec.json.encode(message)


def summary_body(text: str) -> bytes:
    """A summary as sent to the model."""
    return msgspec.json.encode({"role": "user", "content": f"{SUMMARY_HEADING}\n{text}"})


class Context(Value, frozen=True):
    """What is sent to the model: JSON objects joined by commas, in chunks that are never decoded."""

    chunks: tuple[bytes, ...]
    last_seq: int
    awaited: tuple[str, ...] = ()
    size: Size | None = None
    """The size of the chunks, if it is known: a context that grows is not searched for images again."""

    def weight(self) -> Size:
        return weight_of(self.chunks) if self.size is None else self.size

    def json(self) -> bytes:
        """One JSON array of OpenAI messages."""
        return (
            b"".join((b"[", b",".join(self.chunks), b"]")) if len(self.chunks) != 1 else b"[%b]" % self.chunks
        )

    def messages(self) -> list[dict[str, Any]]:
        """The same as Python objects."""
        decoded: list[dict[str, Any]] = msgspec.json.decode(self.json())
        return decoded
