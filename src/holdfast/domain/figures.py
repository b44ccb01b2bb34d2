"""Figures of a store: counts, sizes and backlogs, for people and for metrics."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from .turns import Turn, TurnStatus
from .usage import input_tokens, tokens_in
from .value import Value


class OwnerUsage(Value, frozen=True):
    """How much an owner has stored."""

    owner: str
    conversations: int
    bytes: int
    """Bytes of its message bodies."""


@dataclass(frozen=True, slots=True)
class Statistics:
    sessions: int
    open: int
    messages: int
    conversations: int
    end_reasons: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)


FIRST_TOKEN = "first_token_ms"
"""Stored with a turn's usage: milliseconds from its beginning to the first output of the model."""

# --- turns ---------------------------------------------------------------------------------------------


class EndedTurn(Value, frozen=True):
    """A turn that has ended, as far as figures need it. Times in milliseconds; None: unknown."""

    owner: str
    status: TurnStatus
    started_at: datetime
    ended_at: datetime
    model: str | None
    problem: str | None
    """Why it has no answer."""
    input_tokens: int = 0
    output_tokens: int = 0
    first_token_ms: int | None = None

    @property
    def total_ms(self) -> float:
        return (self.ended_at - self.started_at) / timedelta(milliseconds=1)


class EndedTurns(Value, frozen=True):
    """The turns of an owner, or of all, that ended since then, newest first."""

    turns: Sequence[EndedTurn]
    is_complete: bool
    """False: there may be older ones, which were not looked at."""


Prices = Mapping[str, tuple[float, float]]
"""What a million input and a million output tokens of a model cost, by its name."""


class Cost(Value, frozen=True):
    """What some turns cost."""

    amount: float | None = None
    """In the money of the prices; None: no price is known."""
    unpriced_tokens: int = 0
    """Tokens of models without a price: the amount does not contain them."""


NO_COST = Cost()


def cost_of(turns: Iterable[Turn], prices: Prices) -> Cost:
    """What these turns cost, as far as the model reported tokens and has a price."""
    amount, unpriced = None, 0
    for turn in turns:
        used = turn.usage or {}
        price = prices.get(turn.model or "")
        if price is None:
            unpriced += tokens_in(used)
        else:
            given = input_tokens(used)
            amount = (amount or 0.0) + (given * price[0] + (tokens_in(used) - given) * price[1]) / 1e6
    return Cost(amount, unpriced)


class TurnTotals(Value, frozen=True):
    """Sums and percentiles of some turns. Durations, in milliseconds, are those of answered turns."""

    turns: int = 0
    answered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    first_token: tuple[float, float] | None = None
    """Half of the answers began within the first figure, 95 % within the second."""
    total: tuple[float, float] | None = None
    cost: float | None = None
    """In the money of the prices; None: no price is known."""
    unpriced_tokens: int = 0
    """Tokens of models without a price: the cost does not contain them."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


NO_PRICES: Prices = MappingProxyType({})


def totals(turns: Iterable[EndedTurn], prices: Prices = NO_PRICES) -> TurnTotals:
    """What these turns add up to."""
    turns = list(turns)
    answered = [turn for turn in turns if turn.status is TurnStatus.COMPLETED]
    priced = [(turn, prices[turn.model]) for turn in turns if turn.model and turn.model in prices]
    tokens = sum(turn.input_tokens + turn.output_tokens for turn in turns)
    return TurnTotals(
        len(turns),
        len(answered),
        sum(turn.input_tokens for turn in turns),
        sum(turn.output_tokens for turn in turns),
        _percentiles([turn.first_token_ms for turn in answered if turn.first_token_ms is not None]),
        _percentiles([turn.total_ms for turn in answered]),
        sum((turn.input_tokens * price[0] + turn.output_tokens * price[1]) / 1e6 for turn, price in priced)
        if priced
        else None,
        tokens - sum(turn.input_tokens + turn.output_tokens for turn, _ in priced),
    )


def totals_by(
    turns: Iterable[EndedTurn], name_of: Callable[[EndedTurn], str], prices: Prices = NO_PRICES
) -> list[tuple[str, TurnTotals]]:
    """The totals of each group of turns, the groups with the most tokens first, then turns."""
    groups: defaultdict[str, list[EndedTurn]] = defaultdict(list)
    for turn in turns:
        groups[name_of(turn)].append(turn)
    found = [(name, totals(group, prices)) for name, group in groups.items()]
    return sorted(found, key=lambda each: (-each[1].tokens, -each[1].turns, each[0]))


def problems(turns: Iterable[EndedTurn]) -> list[tuple[TurnStatus, str, int]]:
    """Status, cause and number of the turns without an answer, the most frequent first. Ids in a cause are
    left out, so that turns that failed alike are counted together."""
    counts = Counter(
        (turn.status, _ID.sub(r"\1…", turn.problem or "")[:LONGEST_CAUSE])
        for turn in turns
        if turn.status is not TurnStatus.COMPLETED
    )
    return [(status, cause, number) for (status, cause), number in counts.most_common()]


def over_time(
    turns: Iterable[EndedTurn], since: datetime, step: timedelta, count: int
) -> Sequence[Mapping[TurnStatus, int]]:
    """How many turns ended in each of `count` steps from `since` on, by status."""
    ended: list[Counter[TurnStatus]] = [Counter() for _ in range(count)]
    for turn in turns:
        place = (turn.ended_at - since) // step
        if 0 <= place < count:
            ended[place][turn.status] += 1
    return ended


_ID = re.compile(r"\b((?:turn|sess|conv|node|req|proc|key)_)[0-9a-f]{8,}\b")
LONGEST_CAUSE = 200


def _percentiles(values: Sequence[float]) -> tuple[float, float] | None:
    """The median and the 95th percentile: the smallest values that so many are not above."""
    if not values:
        return None
    ordered = sorted(values)
    median, most = (ordered[-(-len(ordered) * share // 100) - 1] for share in (50, 95))
    return median, most


# --- the store -----------------------------------------------------------------------------------------


class FlushFigures(Value, frozen=True):
    """Size of the flush backlog."""

    pending: int
    running: int
    dead: int
    """Dead letters: only a person retries them."""
    coming: int
    """Sessions due for a reset: most of them will then be flushed."""


LEAST_FREE_BYTES = 64 * 1024 * 1024
"""A store's disk with less free space is nearly full: people are warned."""


class Figures(Value, frozen=True):
    """Figures of a store that are cheap to read at any time."""

    open_sessions: int
    running_turns: int
    messages: int
    """Ever written, including deleted ones."""
    events: int
    undelivered_notices: int
    log_bytes: int
    """Size of the write-ahead log (WAL) that no WAL checkpoint has moved yet."""
    free_bytes: int | None
    """Free space on the disk of the store; None: unknown (PostgreSQL)."""
    unindexed: int | None
    """Messages that are not indexed for search yet; None: unknown."""

    @property
    def disk_nearly_full(self) -> bool:
        return self.free_bytes is not None and self.free_bytes < LEAST_FREE_BYTES
