"""Token size of a context in a model's window: the model's last report plus an estimate of what came since.

A model reports how many tokens it was given. Stored with the number of bytes sent, that gives a base to count
from and the tokens per byte, for this model and this kind of text. Before the first report, TOKENS_PER_BYTE
is assumed. Content that is not text (images, sound, files) counts as a fixed number of tokens each, never by
its length; the next report corrects it.

An estimate is not a guarantee: an upstream may still refuse a context as too long. Neither is a report: it
corrects the estimate if it is plausible, and never causes messages to leave a context without a summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .value import Value

TOKENS_PER_BYTE = 0.3
LEAST_PER_BYTE, MOST_PER_BYTE = 0.05, 1.0
SMALLEST_SAMPLE = 1000
"""Bytes; in smaller contexts the fixed overhead is too large to learn a ratio from."""

PART_TOKENS: Mapping[bytes, int] = {
    b'"type":"image_url"': 1000,
    b'"type":"input_image"': 1000,
    b'"type":"input_audio"': 1500,
    b'"type":"file"': 4000,
    b'"type":"input_file"': 4000,
}
"""Tokens assumed for a part that is not text. The quoted marks occur only in JSON itself: within a text they
would be escaped."""
_PART = b'"type":"'
_HAS_BYTES = re.compile(rb'"(?:data|file_data|url)":"(?:data:[^",]*,)?([A-Za-z0-9+/=_-]{256,})"')

GROWTH_TOKENS, GROWTH_SHARE, NOTICED_SHARE = 256, 0.1, 0.2
"""If a context grew by this many tokens and this share, and less than NOTICED_SHARE of the growth is
reported, the upstream may have truncated it."""
RISES_NEEDED, FLAT_NEEDED, PLATEAU_SHARE = 2, 3, 0.75
"""How many reports must have risen first, how many must then have stayed level, and how near to the
highest."""
SPARE_TOKENS = 1000
"""Tokens that an upstream may add to its input."""


class Size(Value, frozen=True):
    bytes: int = 0
    """Bytes of text, as JSON."""
    parts: int = 0
    """Tokens assumed for images, sound and files."""

    def __add__(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.parts + other.parts)

    @property
    def most(self) -> int:
        """Upper bound in tokens."""
        return int(self.bytes * MOST_PER_BYTE) + self.parts


def weigh(body: bytes) -> Size:
    """Size of these messages, given as compact JSON."""
    if _PART not in body:
        return Size(len(body))
    parts = sum(body.count(mark) * tokens for mark, tokens in PART_TOKENS.items())
    if not parts:
        return Size(len(body))
    encoded = sum(len(found[1]) for found in _HAS_BYTES.finditer(body))
    return Size(len(body) - encoded, parts)


class TokenReport(Value, frozen=True):
    """A model's token report for the last input of a turn."""

    tokens: int
    bytes: int
    extra: int = 0
    """Bytes outside the context: instructions and tools."""
    parts: int = 0

    @property
    def ratio(self) -> float:
        """Tokens per byte."""
        if self.bytes < SMALLEST_SAMPLE:
            return TOKENS_PER_BYTE
        return min(MOST_PER_BYTE, max(LEAST_PER_BYTE, (self.tokens - self.parts) / self.bytes))

    @property
    def is_plausible(self) -> bool:
        """True if it can be the count of the whole input, and no more. Some servers report only uncached
        tokens, or arbitrary numbers. Images may be more than assumed."""
        if self.tokens > self.bytes * MOST_PER_BYTE + 3 * self.parts + SPARE_TOKENS:
            return False
        return self.bytes < SMALLEST_SAMPLE or self.tokens - self.parts >= self.bytes * LEAST_PER_BYTE

    def fields(self) -> dict[str, int]:
        """The fields as stored in the turn's usage."""
        return {
            "context_tokens": self.tokens,
            "context_bytes": self.bytes,
            "context_extra": self.extra,
            "context_parts": self.parts,
        }


def measured_in(usage: Mapping[str, Any] | None) -> TokenReport | None:
    """The report stored in a turn's usage. A program's own turn reports only input tokens: the bytes are
    unknown then, and nothing is learnt."""
    if not usage or not usage.get("context_tokens"):
        return None
    return TokenReport(
        usage["context_tokens"], usage["context_bytes"], usage["context_extra"], usage["context_parts"]
    )


class TokenEstimator(Value, frozen=True):
    """Converts sizes to tokens, by the last report if there is one."""

    measured: TokenReport | None = None
    same_context: bool = False
    """True: the report is of this same session, so it is a base to count from."""

    @property
    def ratio(self) -> float:
        return self.measured.ratio if self.measured else TOKENS_PER_BYTE

    def tokens(self, weight: Size) -> int:
        """Tokens of a part of a context."""
        return round(weight.bytes * self.ratio) + weight.parts

    def total(self, context: Size, extra: int | None = None) -> int:
        """Tokens of a whole context with `extra` bytes of instructions and tools; None: as many as last
        time."""
        before = self.measured
        if extra is None:
            extra = before.extra if before else 0
        whole = Size(context.bytes + extra, context.parts)
        if before is None or not self.same_context or whole.bytes < before.bytes:
            return self.tokens(whole)
        since = Size(whole.bytes - before.bytes, whole.parts - before.parts)
        return max(0, before.tokens + self.tokens(since))


class Budget(Value, frozen=True):
    """A context's size compared with its window."""

    tokens: int
    window: int
    threshold: float
    reserve: int = 0
    """Reserved for the answer."""

    @property
    def fits(self) -> bool:
        return self.tokens + self.reserve <= self.window

    @property
    def past_threshold(self) -> bool:
        return self.tokens > self.window * self.threshold

    @property
    def target(self) -> int:
        """Target size of a compaction: below the threshold, with room to continue."""
        return int(min(self.window * self.threshold * 0.8, max(self.window - self.reserve, self.window / 2)))


def reserve_of(options: Mapping[str, Any], window: int) -> int:
    """Tokens to reserve for the answer: what the request asks for, else an eighth, at most 4096 tokens."""
    for name in ("max_completion_tokens", "max_tokens"):
        wanted = options.get(name)
        if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0:
            return min(wanted, window // 2)
    return min(window // 8, 4096)


class Growth(Value, frozen=True):
    """A series of reports about one session of one model, and whether they show that it drops input.

    Only a model whose reports first rose with its input, and then stopped while the input grew, is suspected:
    reports that never follow the input (constant, falling, without cached tokens) say nothing about a window.
    Images, sound and files are not counted: many reports leave them out.
    """

    base: TokenReport
    """The last report that rose."""
    rises: int = 0
    flat: int = 0
    """How many reports in a row have not risen since."""

    @property
    def is_cut(self) -> bool:
        """True: several consistent reports show that the upstream silently dropped input."""
        return self.rises >= RISES_NEEDED and self.flat >= FLAT_NEEDED

    def followed_by(self, now: TokenReport) -> Growth:
        """The series with one more report."""
        base = self.base
        if now.bytes < base.bytes:
            return Growth(now)
        grown = (now.bytes - base.bytes) * base.ratio
        if grown < max(GROWTH_TOKENS, base.tokens * GROWTH_SHARE):
            return self  # too little growth to decide
        if now.tokens - base.tokens >= grown * NOTICED_SHARE:
            return Growth(now, self.rises + 1)
        if now.tokens < base.tokens * PLATEAU_SHARE:
            return Growth(now)  # its reports have another meaning: start over
        return Growth(base, self.rises, self.flat + 1)


def weight_of(bodies: Iterable[bytes]) -> Size:
    """The total size of these messages."""
    size = parts = 0
    for body in bodies:
        if _PART not in body:  # most: no call for each message of a context
            size += len(body) + 1
            continue
        weight = weigh(body)
        size += weight.bytes + 1
        parts += weight.parts
    return Size(size, parts)


def extra_of(instructions: Iterable[bytes], options: Mapping[str, Any]) -> Size:
    """The size of what is sent besides the context: instructions, tools, response format."""
    found = weight_of(instructions)
    for name in ("tools", "functions", "response_format"):
        if options.get(name):
            found += Size(len(msgspec.json.encode(options[name])))
    return found
