"""Time as people read it: spans, hours of the clock, boundaries of local days; correct over DST changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo


def minutes(span: timedelta) -> str:
    """A time span, formatted for people."""
    total = span.total_seconds()
    if total >= 2 * 86400 and total % 86400 == 0:
        return f"{total / 86400:g} days"
    if total >= 3600 and total % 3600 == 0:
        return f"{total / 3600:g} h"
    return f"{total / 60:g} min" if total >= 60 else f"{total:g} s"


def wall_clock(at_hour: float) -> str:
    """Wall-clock text of this hour: 04:30, or 04:30:36 if it has seconds."""
    return _time_of(at_hour).isoformat().removesuffix(":00")


def _time_of(at_hour: float) -> time:
    seconds = min(round(at_hour * 3600), 86_399)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60)


def boundary_after(instant: datetime, at_hour: float, timezone: str) -> datetime | None:
    """The first day boundary after this instant."""
    start = instant.astimezone(ZoneInfo(timezone)).date()
    days = (start + timedelta(days=offset) for offset in range(-1, 5))
    found = (boundary_of(day, at_hour, timezone) for day in days)
    return min((each for each in found if each is not None and each > instant), default=None)


@lru_cache(4096)
def boundary_of(day: date, at_hour: float, timezone: str) -> datetime | None:
    """The first instant of this local date at or after the hour, in UTC; None: there is none.

    In a DST gap it is the end of the gap. A repeated hour counts once, the first time.
    """
    zone = ZoneInfo(timezone)
    wall = datetime.combine(day, _time_of(at_hour))
    instant = wall.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant
    instant = _end_of_gap(wall, zone)
    return instant if instant.astimezone(zone).date() == day else None


def _end_of_gap(wall: datetime, zone: ZoneInfo) -> datetime:
    """The instant at which the clock jumped over this wall time."""
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)  # with the offset that applies after the gap
    after = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    jumped = after.astimezone(zone).utcoffset()
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // 2
        if middle.astimezone(zone).utcoffset() == jumped:
            after = middle
        else:
            before = middle
    return after.replace(microsecond=0)
