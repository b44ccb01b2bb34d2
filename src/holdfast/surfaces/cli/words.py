"""Times, numbers and names as people say them."""

from __future__ import annotations

from datetime import datetime, timedelta


def ago(then: datetime | None, now: datetime) -> str:
    """How long since, in the one unit that matters: `3 min ago`."""
    if then is None:
        return "never"
    return f"{span(now - then)} ago" if now - then >= timedelta(seconds=1) else "just now"


def span(time: timedelta) -> str:
    seconds = int(time.total_seconds())
    for size, name in ((86_400, "day"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            number = seconds // size
            return f"{number} {name}{'s' if name == 'day' and number != 1 else ''}"
    return f"{seconds} s"


def took(time: timedelta) -> str:
    seconds = time.total_seconds()
    return f"{seconds:.1f} s" if 0 <= seconds < 60 else span(time)


def moment(then: datetime | None, now: datetime) -> str:
    """A time on this machine's clock, and how long ago that was."""
    if then is None:
        return "—"
    return f"{then.astimezone():%Y-%m-%d %H:%M:%S} ({ago(then, now)})"


def clock(then: datetime, now: datetime) -> str:
    """A time on this machine's clock, as short as it can be."""
    local = then.astimezone()
    return f"{local:%H:%M:%S}" if local.date() == now.astimezone().date() else f"{local:%Y-%m-%d %H:%M}"


def count(number: int, noun: str) -> str:
    """`1 session`, `2 sessions`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}es" if noun.endswith("s") else f"{number:,} {noun}s"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "—"


def size(number: int) -> str:
    amount = float(number)
    for unit in ("bytes", "KB", "MB", "GB"):
        if amount < 1024 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError
