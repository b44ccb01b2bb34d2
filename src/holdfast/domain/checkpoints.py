"""Checkpoints of graphs: the state after a step, and what tasks wrote after it.

Bodies are in the framework's own encoding; only the framework reads them. A large value of the state, such as
a list of messages, is stored in parts that later checkpoints share: a step that appends to a list, or drops
its beginning, stores what is new. `split` finds what an encoded value shares with the one before, as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from .ids import new_id
from .value import Value

INLINE = -1
LONGEST_INLINE = 24
"""Bytes that are stored with the list of segments, not as a part: the header of an encoded list, which has
its length, changes with every step."""
PROBE = 512
MOST_PLACES = 8
MERGED = 8

Segment = tuple[str, int, int]
"""A span of a value: id of a part, offset and length in it; with the offset `INLINE` its bytes as hex."""


class ValuePart(NamedTuple):
    """Bytes that are stored once; checkpoints of the same conversation refer to them. Never changed."""

    id: str
    body: bytes


class SplitValue(NamedTuple):
    """An encoded value, and the segments that it consists of. `fresh`: how many bytes at its end the value
    before did not have; all of them, unless only something at the beginning or end differs."""

    kind: str
    body: bytes
    segments: tuple[Segment, ...]
    fresh: int


_Span = tuple[int, int, Segment | None]
"""A span of a new value: start, length and segment; None: not stored yet."""


class Checkpoint(Value, frozen=True):
    conversation_id: str
    key: str | None
    ns: str
    id: str
    parent: str | None
    kind: str
    metadata: str
    """JSON."""
    body: bytes
    """The state without the values that are stored in parts."""
    segments: str | None = None
    """JSON: of each such value its kind and segments, by channel."""
    parts: Mapping[str, bytes] = msgspec.field(default_factory=dict)

    def values(self) -> dict[str, tuple[str, bytes]]:
        """Kind and bytes of the values that are stored in parts, by channel."""
        if self.segments is None:
            return {}
        found = decode_segments(self.segments)
        return {name: (kind, joined(segments, self.parts)) for name, (kind, segments) in found.items()}


class NewCheckpoint(Value, frozen=True):
    """`base`: id and segments of the checkpoint whose parts it shares. It is stored only if that one is.
    `continues`: messages are left out because the thread has them. It is stored only if there is a thread."""

    ns: str
    id: str
    parent: str | None
    run: str | None
    kind: str
    metadata: str
    body: bytes
    segments: str | None = None
    parts: tuple[ValuePart, ...] = ()
    base: tuple[str, str] | None = None
    continues: bool = False

    @property
    def size(self) -> int:
        return len(self.body) + sum(len(part.body) for part in self.parts)


class CheckpointWrite(Value, frozen=True):
    """`replaces`: the last write at this position counts, not the first."""

    task: str
    ordinal: int
    channel: str
    path: str
    kind: str
    body: bytes
    replaces: bool = False


# --- values in parts -------------------------------------------------------------------------------------

_decoder = msgspec.json.Decoder(dict[str, tuple[str, tuple[Segment, ...]]])


def encode_segments(values: Mapping[str, SplitValue]) -> str:
    return msgspec.json.encode({name: (each.kind, each.segments) for name, each in values.items()}).decode()


def decode_segments(text: str) -> dict[str, tuple[str, tuple[Segment, ...]]]:
    return _decoder.decode(text)


def parts_of(texts: Iterable[str | None]) -> set[str]:
    """Ids of the parts that these encoded segments refer to."""
    return {
        id_
        for text in texts
        if text is not None
        for _, segments in decode_segments(text).values()
        for id_, offset, _ in segments
        if offset != INLINE
    }


def joined(segments: Sequence[Segment], parts: Mapping[str, bytes]) -> bytes:
    """The bytes of a value."""
    if len(segments) == 1:
        id_, offset, length = segments[0]
        if offset == 0 and len(parts[id_]) == length:
            return parts[id_]
    return b"".join(
        bytes.fromhex(id_) if offset == INLINE else parts[id_][offset : offset + length]
        for id_, offset, length in segments
    )


def split(kind: str, body: bytes, before: SplitValue | None) -> tuple[SplitValue, list[ValuePart]]:
    """An encoded value as segments, and the parts that must be stored for it: what `before` has not, or all.

    Small segments at the end are merged, eight at a time, so that a value of n appended pieces has about
    log(n) segments and each byte is stored about log(n) times.
    """
    size = len(body)
    spans: list[_Span] = [(0, size, None)]
    fresh = size
    if before is not None and before.kind == kind:
        if before.body == body:
            return before._replace(fresh=0), []
        old, new, length = _shared(before.body, body)
        if length >= size // 2:
            end = new + length
            spans = [(0, new, None)] if new else []
            spans += _slice(before.segments, old, old + length, new - old)
            if end < size:
                spans.append((end, size - end, None))
            fresh = size - end if new <= LONGEST_INLINE else size
    least = MERGED + (spans[0][1] <= LONGEST_INLINE)  # a header stays alone, or all would be merged with it
    while len(spans) >= least and spans[-MERGED][1] <= 2 * spans[-1][1]:
        start = spans[-MERGED][0]
        spans[-MERGED:] = [(start, size - start, None)]
    segments: list[Segment] = []
    parts: list[ValuePart] = []
    for start, length, segment in spans:
        if segment is None:
            piece = body[start : start + length]
            if length <= LONGEST_INLINE:
                segment = (piece.hex(), INLINE, length)
            else:
                parts.append(ValuePart(new_id("part"), piece))
                segment = (parts[-1].id, 0, length)
        segments.append(segment)
    return SplitValue(kind, body, tuple(segments), fresh), parts


def _slice(segments: Iterable[Segment], start: int, end: int, shift: int) -> list[_Span]:
    """What these segments have from `start` to `end`, as spans of a value in which it is moved by `shift`."""
    found: list[_Span] = []
    at = 0
    for segment in segments:
        id_, offset, length = segment
        next_ = at + length
        if start <= at and next_ <= end:
            found.append((at + shift, length, segment))
        elif at < end and start < next_:
            first, last = max(start - at, 0), min(end - at, length)
            if offset == INLINE:
                segment = (id_[2 * first : 2 * last], INLINE, last - first)
            else:
                segment = (id_, offset + first, last - first)
            found.append((at + first + shift, last - first, segment))
        at = next_
    return found


def _shared(old: bytes, new: bytes) -> tuple[int, int, int]:
    """A long run of bytes that both have: where it begins in each, and its length. Not always the longest: it
    is looked for from two places of the new value."""
    best = (0, 0, 0)
    for at in (LONGEST_INLINE, len(new) // 2):
        probe = new[at : at + PROBE]
        found = old.find(probe)
        for _ in range(MOST_PLACES):
            if found < 0:
                break
            before = _equal_before(old, found, new, at)
            length = before + _equal_from(old, found, new, at)
            if length > best[2]:
                best = (found - before, at - before, length)
            if length >= len(new) // 2:
                return best
            found = old.find(probe, found + 1)
    return best


def _equal_from(old: bytes, i: int, new: bytes, j: int) -> int:
    """How many bytes are equal from these places on."""
    low, high = 0, min(len(old) - i, len(new) - j)
    if new.startswith(old[i : i + high], j):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if new.startswith(old[i + low : i + middle], j + low):
            low = middle
        else:
            high = middle
    return low


def _equal_before(old: bytes, i: int, new: bytes, j: int) -> int:
    """How many bytes are equal right before these places."""
    low, high = 0, min(i, j)
    if new.startswith(old[i - high : i], j - high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if new.startswith(old[i - middle : i - low], j - middle):
            low = middle
        else:
            high = middle
    return low
