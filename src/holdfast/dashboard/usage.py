"""`/usage`: turns, tokens, latency and cost, by model and by owner; and what the overview shows of them.

Made of the turns that are stored, so a restart loses no figure; deleted conversations take their turns with
them. Only the newest turns are looked at, and the page says if that was not enough for the range.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

from ..app import Holdfast
from ..domain.figures import (
    EndedTurn,
    OwnerUsage,
    Prices,
    Statistics,
    TurnTotals,
    over_time,
    problems,
    totals,
    totals_by,
)
from ..domain.turns import TurnStatus
from ..server.response_writer import HttpResponse
from .charts import Chart, chart_of
from .pages import html
from .request import PageRequest

USAGE_SECONDS = 30.0
MOST_REMEMBERED = 1_000
MOST_OWNERS = 20
MOST_PROBLEMS = 5
UNNAMED = "not named"
"""The model of turns whose model is unknown: the library's, and those without an answer."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    name: str
    step: timedelta
    steps: int
    words: str


RANGES = {
    each.name: each
    for each in (
        TimeRange("1h", timedelta(minutes=1), 60, "the last hour"),
        TimeRange("24h", timedelta(minutes=30), 48, "the last 24 hours"),
        TimeRange("7d", timedelta(hours=3), 56, "the last 7 days"),
        TimeRange("30d", timedelta(hours=12), 60, "the last 30 days"),
    )
}


@dataclass(frozen=True, slots=True)
class RangeFigures:
    """The figures of one owner, or of all, for a range of time."""

    range: TimeRange
    chart: Chart
    totals: TurnTotals
    by_model: list[tuple[str, TurnTotals]]
    by_owner: list[tuple[str, TurnTotals]]
    problems: list[tuple[TurnStatus, str, int]]
    is_complete: bool
    """False: the range has more turns than were looked at."""


def range_of(visit: PageRequest) -> TimeRange:
    """The range that the URL names; the first if it names none that exists."""
    return RANGES.get(visit.query("range"), next(iter(RANGES.values())))


def figures_of(
    turns: list[EndedTurn], wanted: TimeRange, now: datetime, prices: Prices, *, is_complete: bool
) -> RangeFigures:
    since = _since(wanted, now)
    ended = over_time(turns, since, wanted.step, wanted.steps)
    return RangeFigures(
        wanted,
        chart_of(ended, since, wanted.step),
        totals(turns, prices),
        totals_by(turns, lambda turn: turn.model or UNNAMED, prices),
        totals_by(turns, lambda turn: turn.owner, prices),
        problems(turns)[:MOST_PROBLEMS],
        is_complete,
    )


def _since(wanted: TimeRange, now: datetime) -> datetime:
    """The beginning of the range, in this machine's time zone, at a full step: the last step is under way."""
    here = now.astimezone()
    midnight = here.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + ((here - midnight) // wanted.step - wanted.steps + 1) * wanted.step


@dataclass(slots=True)
class _Remembered:
    """Answers by what was asked, each with the time until which it is given again."""

    answers: dict[tuple[Any, ...], tuple[float, Any]]

    def get(self, asked: tuple[Any, ...]) -> Any:
        until, answer = self.answers.get(asked, (0.0, None))
        return answer if time.monotonic() < until else None

    def keep(self, asked: tuple[Any, ...], answer: Any, seconds: float) -> None:
        if len(self.answers) >= MOST_REMEMBERED:
            self.answers.clear()
        self.answers[asked] = time.monotonic() + seconds, answer


_remembered: WeakKeyDictionary[Holdfast, _Remembered] = WeakKeyDictionary()


def _cache(visit: PageRequest) -> _Remembered:
    return _remembered.setdefault(visit.hf, _Remembered({}))


async def range_figures(visit: PageRequest, owner: str | None, wanted: TimeRange) -> RangeFigures:
    """The figures of this owner (None: all). Given again for 20 times as long as they took to make, because a
    page is rendered again at every event."""
    asked = ("figures", owner, wanted.name)
    found: RangeFigures | None = _cache(visit).get(asked)
    if found is None:
        began = time.monotonic()
        read = await visit.hf.turns_ended(owner, _since(wanted, visit.now))
        found = await asyncio.to_thread(
            figures_of,
            list(read.turns),
            wanted,
            visit.now,
            visit.services.settings.model.price_table,
            is_complete=read.is_complete,
        )
        _cache(visit).keep(asked, found, 20 * (time.monotonic() - began))
    return found


async def stored(visit: PageRequest) -> list[OwnerUsage]:
    """Storage used per owner: for admins all owners, for others their own. Cached for USAGE_SECONDS, because
    it reads every conversation."""
    owner = None if visit.is_admin else visit.caller.owner
    asked = ("stored", owner)
    found: list[OwnerUsage] | None = _cache(visit).get(asked)
    if found is None:
        found = await visit.hf.usage(owner, limit=MOST_OWNERS)
        _cache(visit).keep(asked, found, USAGE_SECONDS)
    return found


async def statistics(visit: PageRequest) -> Statistics:
    """Counts of the sessions that lists show. Cached as long."""
    asked = ("statistics", visit.owner)
    found: Statistics | None = _cache(visit).get(asked)
    if found is None:
        found = await visit.hf.statistics(visit.owner)
        _cache(visit).keep(asked, found, USAGE_SECONDS)
    return found


async def owners_for(visit: PageRequest) -> list[str]:
    """The owners that an admin may choose from, those with the most data first; none if there is one."""
    if not visit.is_admin:
        return []
    names = [each.owner for each in await stored(visit)]
    others = [name for name in names if name != visit.caller.owner]
    return [visit.caller.owner, *others] if others else []


async def usage(visit: PageRequest) -> HttpResponse:
    """For admins who name no owner: all owners."""
    owner = None if visit.is_admin and not visit.owner_named else visit.owner
    figures, kept, owners = await asyncio.gather(
        range_figures(visit, owner, range_of(visit)), stored(visit), owners_for(visit)
    )
    sizes: Mapping[str, OwnerUsage] = {each.owner: each for each in kept}
    return html(
        visit,
        "usage.html",
        figures=figures,
        ranges=RANGES,
        sizes={name: sizes[name] for name in sizes if owner in (None, name)},
        by_owner=dict(figures.by_owner),
        owners=owners,
        all_owners=owner is None,
        unnamed=UNNAMED,
    )
