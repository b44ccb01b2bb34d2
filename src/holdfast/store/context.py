"""Reads contexts: joined by the database, never decoded, and cached while they stay valid
(`context_cache.py`): then only later messages have to be read.

The database joins at most `SPAN_BYTES` into one value; longer contexts are read in several spans. A context
of more than `CONTEXT_BYTES` raises ContextTooLarge, before it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..domain.context_size import weight_of
from ..domain.contexts import Context, Mark, Rendering, mark_interrupted, render, summary_body
from ..domain.messages import MessageStatus
from ..domain.views import Range, Summary, View, spans
from ..errors import ContextTooLarge, NotFound
from .context_cache import MOST_CHUNKS, ContextCache
from .transaction import Q, Transaction

SPAN_BYTES = 64 * 1024 * 1024
CONTEXT_BYTES = 512 * 1024 * 1024


def read_context(tx: Transaction, cache: ContextCache, owner: str | None, session_id: str) -> Context:
    """The context that the model would get in this session now."""
    row = tx.one(Q.context_head, session=session_id, owner=owner)
    if row is None:
        raise NotFound("session", session_id)
    conversation_id, revision, last_seq, view_text = row
    before = cache.get(session_id, revision)
    if before is not None and before.last_seq == last_seq:
        return before
    view = View.decode(view_text)
    try:
        if before is not None and before.last_seq < last_seq:
            added_view = View((Range(before.last_seq + 1),))
            added = _render(tx, conversation_id, added_view, last_seq, _Chunks(before.chunks))
            chunks = added.chunks
            if len(chunks) > MOST_CHUNKS:
                chunks = (b",".join(chunks),)
            context = Context(chunks, last_seq, added.awaited, added.size)
        else:
            context = _render(tx, conversation_id, view, last_seq, _Chunks())
    except _BeyondLimit:
        size = _size(tx, conversation_id, view, last_seq)
        raise ContextTooLarge(session_id, size, CONTEXT_BYTES) from None
    if not context.awaited:  # open calls may still be answered, which changes their rendering
        cache.put(session_id, revision, context)
    return context


def rendering_of(tx: Transaction, conversation_id: str, view: View, last_seq: int) -> Rendering:
    """How a view differs from the stored bytes, without reading them."""
    return rendering_with_marks(tx, conversation_id, view, last_seq)[0]


def rendering_with_marks(
    tx: Transaction, conversation_id: str, view: View, last_seq: int
) -> tuple[Rendering, Mapping[int, Mark], set[int]]:
    """The same, with the messages that need rendering, by seq, and the hidden seqs."""
    shown = spans(view.parts, last_seq)
    excluded = {seq for (seq,) in tx.all(Q.excluded, conversation=conversation_id)}
    marks: list[Mark] = []
    for first, last in shown:
        for seq, calls, answers, status, deleted in tx.all(
            Q.marks, conversation=conversation_id, first=first, last=last
        ):
            if deleted:
                excluded.add(seq)
            elif seq not in excluded:
                called = tuple(msgspec.json.decode(calls)) if calls else ()
                marks.append(Mark(seq, called, answers, status == MessageStatus.INTERRUPTED.value))
    return render(marks, shown, frozenset(excluded)), {mark.seq: mark for mark in marks}, excluded


class _BeyondLimit(Exception):
    """The context being read is longer than CONTEXT_BYTES."""


class _Chunks:
    """The chunks of a context that is being read, with their size."""

    def __init__(self, chunks: Sequence[bytes] = ()) -> None:
        self.chunks = list(chunks)
        self._size = sum(map(len, chunks))

    def require(self, size: int) -> None:
        """Raises _BeyondLimit if this many more bytes exceed the limit."""
        if self._size + size > CONTEXT_BYTES:
            raise _BeyondLimit

    def add(self, chunk: bytes) -> None:
        self.require(len(chunk))
        self._size += len(chunk)
        self.chunks.append(chunk)


def _render(tx: Transaction, conversation_id: str, view: View, last_seq: int, into: _Chunks) -> Context:
    """The chunks already in `into`, followed by this view."""
    rendering, _, excluded = rendering_with_marks(tx, conversation_id, view, last_seq)
    special = excluded | rendering.left_out | rendering.interrupted | rendering.inserted.keys()
    for part in view.parts:
        if isinstance(part, Summary):
            into.add(summary_body(part.text))
            continue
        for first, last in spans((part,), last_seq):
            start = first
            for seq in sorted(seq for seq in special if first <= seq <= last):
                _read(tx, conversation_id, start, seq - 1, into)
                start = seq + 1
                if seq in excluded or seq in rendering.left_out:
                    continue
                body = _body(tx, conversation_id, seq)
                into.add(mark_interrupted(body) if seq in rendering.interrupted else body)
                for answer in rendering.inserted.get(seq, ()):
                    into.add(answer)
            _read(tx, conversation_id, start, last, into)
    return Context(tuple(into.chunks), last_seq, rendering.awaited, weight_of(into.chunks))


def _read(tx: Transaction, conversation_id: str, first: int, last: int, into: _Chunks) -> None:
    if first > last:
        return
    joined = tx.joined_bodies(conversation_id, first, last, SPAN_BYTES)
    if joined is not None:
        if joined:
            into.add(joined)
        return
    sizes = tx.all(Q.body_sizes, conversation=conversation_id, first=first, last=last)
    into.require(sum(size for _, size in sizes))
    for start, end in spans_of(sizes, SPAN_BYTES):
        joined = tx.joined_bodies(conversation_id, start, end, SPAN_BYTES) if start < end else None
        into.add(_body(tx, conversation_id, start) if joined is None else joined)


def spans_of(sizes: Sequence[Sequence[int]], most: int) -> list[tuple[int, int]]:
    """First and last seq of spans that have at most `most` bytes each, joined by commas, or are a single
    message. `sizes`: seq and size of each message, in order."""
    found: list[tuple[int, int]] = []
    held = 0
    for seq, size in sizes:
        if found and held + 1 + size <= most:
            held += 1 + size
            found[-1] = found[-1][0], seq
        else:
            held = size
            found.append((seq, seq))
    return found


def _body(tx: Transaction, conversation_id: str, seq: int) -> bytes:
    row = tx.one(Q.body, conversation=conversation_id, seq=seq)
    assert row is not None
    body: bytes = row[0]
    return body


def _size(tx: Transaction, conversation_id: str, view: View, last_seq: int) -> int:
    """Total bytes of a view's messages and summaries, without reading them."""
    excluded = {seq for (seq,) in tx.all(Q.excluded, conversation=conversation_id)}
    total = sum(len(summary_body(part.text)) for part in view.parts if isinstance(part, Summary))
    for first, last in spans(view.parts, last_seq):
        sizes = tx.all(Q.body_sizes, conversation=conversation_id, first=first, last=last)
        total += sum(size for seq, size in sizes if seq not in excluded)
    return total
