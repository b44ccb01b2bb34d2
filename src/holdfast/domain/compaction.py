"""What a compaction keeps and what it summarises.

The first messages stay, the last stay, the middle becomes a summary. An earlier summary in the middle is
summarised again, with what came after it.

A tool call stays with its results, calls that are still awaited are never cut, and the newest thing a person
said stays whatever happens. Where keeping as much as the settings say would leave too much, less is kept: of
the last messages first, then of the first.

Only the view changes. No message is copied, moved or removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from .budgets import Weight, weigh
from .contexts import summary_body
from .views import Part, Range, Summary, View

SMALLEST_GAP = 32
"""Tokens; a summary of less than that would not be shorter."""
MUST_SHRINK_TO = 0.9
"""Of what the context was before; less of a gain does not count."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)


class Trigger(StrEnum):
    """Why a context is compacted."""

    THRESHOLD = "threshold"
    NO_FIT = "no_fit"
    REFUSED = "refused"
    CUT = "cut"
    BY_HAND = "by_hand"


class Failure(StrEnum):
    """Why a compaction did not come about."""

    NOTHING_TO_GAIN = "nothing_to_gain"
    SUMMARY_FAILED = "summary_failed"
    SUMMARY_TIMED_OUT = "summary_timed_out"
    SUMMARY_EMPTY = "summary_empty"
    SUMMARY_TOO_LONG = "summary_too_long"
    COOLING_DOWN = "cooling_down"
    BUSY = "busy"
    OUTDATED = "outdated"
    STOPPED = "stopped"

    @property
    def is_nobodys_fault(self) -> bool:
        """Did only something come between, so that the next try may well succeed?"""
        return self in (Failure.BUSY, Failure.OUTDATED, Failure.STOPPED)


@dataclass(frozen=True, slots=True)
class Entry:
    """A message of a context, or a summary, as the model gets it."""

    first: int
    last: int
    """The numbers it stands for; of a message both are its own."""
    role: str
    bodies: tuple[bytes, ...]
    """The message itself, then what is rendered right behind it."""
    part: int = 0
    """The place, in its view, of the part that shows it."""
    summary: str | None = None
    calls: bool = False
    answers: bool = False

    @property
    def weight(self) -> Weight:
        found = Weight()
        for body in self.bodies:
            found += weigh(body) + Weight(1)
        return found


@dataclass(frozen=True, slots=True)
class Gap:
    """Neighbours in a context that a summary is to stand for."""

    entries: tuple[Entry, ...]
    tokens: int

    @property
    def first(self) -> int:
        """0: nothing in it has a number here, being a summary of what was said elsewhere."""
        return min((entry.first for entry in self.entries if entry.first), default=0)

    @property
    def last(self) -> int:
        return max(entry.last for entry in self.entries)

    @property
    def messages(self) -> int:
        return sum(entry.summary is None for entry in self.entries)

    def filled(self, text: str) -> Summary:
        return Summary(text, self.first, self.last)


@dataclass(frozen=True, slots=True)
class Plan:
    """A context to come: what stays, and the gaps between."""

    pieces: tuple[Entry | Gap, ...]
    before: int
    """Tokens of the context now, without instructions and tools."""
    kept: int
    """Tokens of what stays."""
    last_seq: int
    """The number of the newest message there was: what comes behind it is shown too."""
    open_part: int
    """The place of the view's open-ended part."""

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Gap))

    @property
    def summarised(self) -> int:
        """How many messages leave the context."""
        return sum(gap.messages for gap in self.gaps)

    def view(self, texts: Sequence[str]) -> View:
        """The view with these summaries in its gaps."""
        filling = iter(texts)
        parts: list[Part] = []
        shown: int | None = None  # the place of the part that the last range comes from
        for piece in self.pieces:
            newest = parts[-1] if parts else None
            if isinstance(piece, Gap):
                parts.append(piece.filled(next(filling)))
                shown = None
            elif piece.summary is not None:
                parts.append(Summary(piece.summary, piece.first, piece.last))
                shown = None
            elif isinstance(newest, Range) and shown == piece.part:
                parts[-1] = Range(newest.first, piece.last)
            else:
                parts.append(Range(piece.first, piece.last))
                shown = piece.part
        newest = parts[-1] if parts else None
        if isinstance(newest, Range) and shown == self.open_part:
            parts[-1] = Range(newest.first)
        else:
            parts.append(Range(self.last_seq + 1))
        return View(tuple(parts))


@dataclass(frozen=True, slots=True)
class NothingToGain:
    """There is no plan that would help, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much of a context stays as it is, by the settings."""

    first: int
    last: int


def plan(
    entries: Sequence[Entry],
    keeping: Keeping,
    tokens: Callable[[Weight], int],
    target: int,
    *,
    last_seq: int,
    open_part: int,
) -> Plan | NothingToGain:
    """What to keep of this context so that, with a short summary, it comes to at most `target` tokens.

    If nothing comes to that, the most that can be done.
    """
    blocks = _blocks(entries)
    if len(blocks) < 2:
        return NothingToGain("there is only one message, or one exchange with tools")
    weights = [sum(tokens(entry.weight) for entry in block) for block in blocks]
    head, tail = _head(blocks, keeping.first), _tail(blocks, keeping.last)
    user = _newest_user(blocks)

    def planned(start: int, end: int) -> Plan | None:
        found = _pieces(blocks, weights, start, end, user)
        return None if found is None else Plan(found[0], sum(weights), found[1], last_seq, open_part)

    def is_enough(found: Plan | None) -> bool:
        return found is not None and found.kept + allowance(found.gaps, target) <= target

    def keeping_most(start: int, ends: range) -> Plan | None:
        """The further the gap reaches, the less is left: the first that is enough keeps the most."""
        at = bisect_left(ends, True, key=lambda end: is_enough(planned(start, end)))
        return planned(start, ends[min(at, len(ends) - 1)]) if ends else None

    best = keeping_most(head, range(max(head, tail), len(blocks)))
    if not is_enough(best):
        best = keeping_most(0, range(max(1, tail), len(blocks))) or best
    return best or NothingToGain("what must stay leaves too little to summarise")


def _pieces(
    blocks: Sequence[Sequence[Entry]],
    weights: Sequence[int],
    start: int,
    end: int,
    user: int | None,
) -> tuple[tuple[Entry | Gap, ...], int] | None:
    """The pieces of a context, and the tokens of what stays; None: there is no gap in it."""
    pieces: list[Entry | Gap] = []
    kept = 0

    def keep(which: range) -> None:
        nonlocal kept
        for at in which:
            pieces.extend(blocks[at])
            kept += weights[at]

    def close(which: range) -> None:
        """A gap, unless there is nothing in it that would become shorter."""
        size = sum(weights[at] for at in which)
        found = tuple(entry for at in which for entry in blocks[at])
        if all(entry.summary is not None for entry in found) or size < SMALLEST_GAP:
            keep(which)
        else:
            pieces.append(Gap(found, size))

    keep(range(start))
    if user is not None and start <= user < end:
        close(range(start, user))
        keep(range(user, user + 1))
        close(range(user + 1, end))
    else:
        close(range(start, end))
    keep(range(end, len(blocks)))
    if not any(isinstance(piece, Gap) for piece in pieces):
        return None
    return tuple(pieces), kept


def _blocks(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries that stay together: calls with the results behind them."""
    blocks: list[list[Entry]] = []
    for entry in entries:
        if entry.answers and blocks and blocks[-1][0].calls:
            blocks[-1].append(entry)
        else:
            blocks.append([entry])
    return blocks


def _head(blocks: Sequence[Sequence[Entry]], wanted: int) -> int:
    """How many blocks at the beginning hold so many messages; a summary is never among them."""
    count = messages = 0
    while messages < wanted and count < len(blocks) and blocks[count][0].summary is None:
        messages += len(blocks[count])
        count += 1
    return count


def _tail(blocks: Sequence[Sequence[Entry]], wanted: int) -> int:
    """Where the last blocks begin that hold so many messages; the newest is always among them."""
    start, messages = len(blocks) - 1, len(blocks[-1])
    while start > 0 and messages < wanted:
        start -= 1
        messages += len(blocks[start])
    return start


def _newest_user(blocks: Sequence[Sequence[Entry]]) -> int | None:
    for at in range(len(blocks) - 1, -1, -1):
        if blocks[at][0].role == "user" and blocks[at][0].summary is None:
            return at
    return None


def allowance(gaps: Sequence[Gap], target: int) -> int:
    """How many tokens the summaries of these may have together."""
    return sum(allowed(gap, target) for gap in gaps)


def allowed(gap: Gap, target: int) -> int:
    """How many tokens a summary may have: a fifth of what it stands for and a quarter of what there is room
    for at most, from 40 to 2,000."""
    return max(40, min(2000, gap.tokens // 5, target // 4))


def shrinks(found: Plan, texts: Sequence[str], tokens: Callable[[Weight], int]) -> tuple[bool, int]:
    """Is the context with these summaries really shorter? And how long it is then."""
    after = found.kept + sum(tokens(weigh(summary_body(text))) for text in texts)
    return after <= found.before * MUST_SHRINK_TO, after


def pause_after(failures: int) -> timedelta:
    """How long nothing is tried after so many failures in a row."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(10, max(0, failures - 1))))
