"""How much of a model's window a context takes: what the model reported, and an estimate of what came since.

A model that answers says how many tokens it was given. Kept beside how many bytes that was, it gives both a
base to count from and the number of tokens in a byte, for this model and this kind of talk. Before the first
such report a byte is taken for TOKENS_PER_BYTE. What is not text (images, sound, files) counts as a stated
number of tokens each, never by its length; the next report corrects it.

An estimate is not a promise: an upstream may still find a context too long, and says so. Nor is a report: it
corrects the estimate if it is plausible, and never decides that messages leave a context without a summary.
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
may have been cut by whoever reported it."""
RISES_NEEDED, FLAT_NEEDED, PLATEAU_SHARE = 2, 3, 0.75
"""How many reports must have risen before, how many must then have stayed, and how near to the highest."""
SPARE_TOKENS = 1000
"""What an upstream may add to what it is given."""


@dataclass(frozen=True, slots=True)
class Size:
    bytes: int = 0
    """Of text, as JSON."""
    parts: int = 0
    """Tokens that images, sound and files stand for."""

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.parts + other.parts)

    @property
    def most(self) -> int:
        """More tokens than this it cannot be."""
        return int(self.bytes * MOST_PER_BYTE) + self.parts


def weigh(body: bytes) -> Size:
    """What these messages, as compact JSON, weigh."""
    if b'"type":"' not in body:
        return Size(len(body))
    parts = sum(body.count(mark) * tokens for mark, tokens in PART_TOKENS.items())
    if not parts:
        return Size(len(body))
    encoded = sum(len(found[1]) for found in _HAS_BYTES.finditer(body))
    return Size(len(body) - encoded, parts)


@dataclass(frozen=True, slots=True)
class TokenReport:
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
        """Can it be the whole of what was given, and no more? Some servers report only what they had not seen
        before, or anything at all. Images may be more than they are taken for."""
        if self.tokens > self.bytes * MOST_PER_BYTE + 3 * self.parts + SPARE_TOKENS:
            return False
        return self.bytes < SMALLEST_SAMPLE or self.tokens - self.parts >= self.bytes * LEAST_PER_BYTE

    def fields(self) -> dict[str, int]:
        """As it is kept with the turn's usage."""
        return {
            "context_tokens": self.tokens,
            "context_bytes": self.bytes,
            "context_extra": self.extra,
            "context_parts": self.parts,
        }


def measured_in(usage: Mapping[str, Any] | None) -> TokenReport | None:
    """What a turn's usage holds of it. A program's own turn says only what went in: then nothing is known of
    the bytes, and nothing is learnt."""
    if not usage or not usage.get("context_tokens"):
        return None
    return TokenReport(
        usage["context_tokens"], usage["context_bytes"], usage["context_extra"], usage["context_parts"]
    )


@dataclass(frozen=True, slots=True)
class TokenEstimator:
    """Turns weights into tokens: by the last report, if there is one."""

    measured: TokenReport | None = None
    same_context: bool = False
    """Was the report made of this very session, so that it is a base to count from?"""

    @property
    def ratio(self) -> float:
        return self.measured.ratio if self.measured else TOKENS_PER_BYTE

    def tokens(self, weight: Size) -> int:
        """Of a part of a context."""
        return round(weight.bytes * self.ratio) + weight.parts

    def total(self, context: Size, extra: int | None = None) -> int:
        """Of a whole context with `extra` bytes of instructions and tools; None: as many as the last time."""
        before = self.measured
        if extra is None:
            extra = before.extra if before else 0
        whole = Size(context.bytes + extra, context.parts)
        if before is None or not self.same_context or whole.bytes < before.bytes:
            return self.tokens(whole)
        since = Size(whole.bytes - before.bytes, whole.parts - before.parts)
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


@dataclass(frozen=True, slots=True)
class Growth:
    """A series of reports about one session of one model, and whether they show that it leaves something out.

    Only a model whose reports first rose with what it was given, and then stopped while it was given more, is
    suspected: a report that never follows (constant, falling, without what was cached) says nothing about a
    window. Images, sound and files are not counted: many reports leave them out.
    """

    base: TokenReport
    """The last report that rose."""
    rises: int = 0
    flat: int = 0
    """How many reports in a row have not risen since."""

    @property
    def is_cut(self) -> bool:
        """Has the upstream, by several reports that agree, silently left something out?"""
        return self.rises >= RISES_NEEDED and self.flat >= FLAT_NEEDED

    def followed_by(self, now: TokenReport) -> Growth:
        """The series with one more report."""
        base = self.base
        if now.bytes < base.bytes:
            return Growth(now)
        grown = (now.bytes - base.bytes) * base.ratio
        if grown < max(GROWTH_TOKENS, base.tokens * GROWTH_SHARE):
            return self  # not enough more to tell
        if now.tokens - base.tokens >= grown * NOTICED_SHARE:
            return Growth(now, self.rises + 1)
        if now.tokens < base.tokens * PLATEAU_SHARE:
            return Growth(now)  # it means something else by its reports
        return Growth(base, self.rises, self.flat + 1)
