"""How much of a model's window a context takes: what the model reported, and an estimate of what came since.

A model that answers says how many tokens it was given. Kept beside how many bytes that was, it gives both a
base to count from and the number of tokens in a byte, for this model and this kind of talk. Before the first
such report a byte is taken for TOKENS_PER_BYTE. What is not text (images, sound, files) counts as a stated
number of tokens each, never by its length; the next report corrects it.

An estimate is not a promise: an upstream may still find a context too long, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOKENS_PER_BYTE = 0.3
LEAST_PER_BYTE, MOST_PER_BYTE = 0.05, 1.0
SMALLEST_SAMPLE = 1000
"""Bytes; in less than that the words around the words weigh too much to learn anything from."""

PART_TOKENS: Mapping[bytes, int] = {
    b'"type":"image_url"': 1000,
    b'"type":"input_image"': 1000,
    b'"type":"input_audio"': 1500,
    b'"type":"file"': 4000,
    b'"type":"input_file"': 4000,
}
"""What a part that is not text is taken for. Quoted marks stand only in JSON itself: within a text they would
be escaped."""
_HAS_BYTES = re.compile(rb'"(?:data|file_data|url)":"(?:data:[^",]*,)?([A-Za-z0-9+/=_-]{256,})"')

GROWTH_TOKENS, GROWTH_SHARE, NOTICED_SHARE = 256, 0.1, 0.2
"""A context that has grown by so many tokens, and by this share, of which less than that share is reported,
was cut by whoever reported it."""


@dataclass(frozen=True, slots=True)
class Weight:
    bytes: int = 0
    """Of text, as JSON."""
    parts: int = 0
    """Tokens that images, sound and files stand for."""

    def __add__(self, other: Weight) -> Weight:
        return Weight(self.bytes + other.bytes, self.parts + other.parts)

    @property
    def most(self) -> int:
        """More tokens than this it cannot be."""
        return int(self.bytes * MOST_PER_BYTE) + self.parts


def weigh(body: bytes) -> Weight:
    """What these messages, as compact JSON, weigh."""
    if b'"type":"' not in body:
        return Weight(len(body))
    parts = sum(body.count(mark) * tokens for mark, tokens in PART_TOKENS.items())
    if not parts:
        return Weight(len(body))
    encoded = sum(len(found[1]) for found in _HAS_BYTES.finditer(body))
    return Weight(len(body) - encoded, parts)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a model reported of the last thing it was given in a turn."""

    tokens: int
    bytes: int
    extra: int = 0
    """Those of the bytes that are not of the context: instructions and tools."""
    parts: int = 0

    @property
    def ratio(self) -> float:
        """Tokens in a byte."""
        if self.bytes < SMALLEST_SAMPLE:
            return TOKENS_PER_BYTE
        return min(MOST_PER_BYTE, max(LEAST_PER_BYTE, (self.tokens - self.parts) / self.bytes))

    @property
    def is_plausible(self) -> bool:
        """Can it be the whole of what was given? Some servers report only what they had not seen before."""
        return self.bytes < SMALLEST_SAMPLE or self.tokens - self.parts >= self.bytes * LEAST_PER_BYTE

    def fields(self) -> dict[str, int]:
        """As it is kept with the turn's usage."""
        return {
            "context_tokens": self.tokens,
            "context_bytes": self.bytes,
            "context_extra": self.extra,
            "context_parts": self.parts,
        }


def measured_in(usage: Mapping[str, Any] | None) -> Measured | None:
    """What a turn's usage holds of it. A program's own turn says only what went in: then nothing is known of
    the bytes, and nothing is learnt."""
    if not usage or not usage.get("context_tokens"):
        return None
    return Measured(
        usage["context_tokens"], usage["context_bytes"], usage["context_extra"], usage["context_parts"]
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """Turns weights into tokens: by the last report, if there is one."""

    measured: Measured | None = None
    same_context: bool = False
    """Was the report made of this very session, so that it is a base to count from?"""

    @property
    def ratio(self) -> float:
        return self.measured.ratio if self.measured else TOKENS_PER_BYTE

    def tokens(self, weight: Weight) -> int:
        """Of a part of a context."""
        return round(weight.bytes * self.ratio) + weight.parts

    def total(self, context: Weight, extra: int | None = None) -> int:
        """Of a whole context with `extra` bytes of instructions and tools; None: as many as the last time."""
        before = self.measured
        if extra is None:
            extra = before.extra if before else 0
        whole = Weight(context.bytes + extra, context.parts)
        if before is None or not self.same_context or whole.bytes < before.bytes:
            return self.tokens(whole)
        since = Weight(whole.bytes - before.bytes, whole.parts - before.parts)
        return max(0, before.tokens + self.tokens(since))


@dataclass(frozen=True, slots=True)
class Budget:
    """A context against its window."""

    tokens: int
    window: int
    threshold: float
    reserve: int = 0
    """Kept free for the answer."""

    @property
    def fits(self) -> bool:
        return self.tokens + self.reserve <= self.window

    @property
    def past_threshold(self) -> bool:
        return self.tokens > self.window * self.threshold

    @property
    def target(self) -> int:
        """What a compaction should bring it down to: below the threshold, with some room to go on."""
        return int(min(self.window * self.threshold * 0.8, max(self.window - self.reserve, self.window / 2)))


def reserve_of(options: Mapping[str, Any], window: int) -> int:
    """What to keep free for the answer: what the request asks for, else an eighth, at most 4096 tokens."""
    for name in ("max_completion_tokens", "max_tokens"):
        wanted = options.get(name)
        if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0:
            return min(wanted, window // 2)
    return min(window // 8, 4096)


def is_cut(before: Measured, now: Measured) -> bool | None:
    """Did the upstream silently leave something out? It was given much more than before, in the same session,
    and reports hardly more tokens. None: it was not given enough more to tell, or reports so few that it
    means something else by them."""
    grown = (now.bytes - before.bytes) * before.ratio + (now.parts - before.parts)
    if grown < max(GROWTH_TOKENS, before.tokens * GROWTH_SHARE) or now.tokens < before.tokens / 2:
        return None
    return now.tokens - before.tokens < grown * NOTICED_SHARE
