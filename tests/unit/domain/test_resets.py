"""When a session is reset, as tables: modes, days, what defers and for how long."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from holdfast.domain.local_time import boundary_after, boundary_of, minutes, wall_clock
from holdfast.domain.resets import (
    Blocker,
    Decision,
    Due,
    Reason,
    ResetMode,
    ResetPolicy,
    due,
    verdict,
)
from holdfast.domain.sessions import EndReason, Session
from holdfast.domain.views import View

BERLIN = "Europe/Berlin"
LOOK_AGAIN = timedelta(seconds=30)


def at(text: str, zone: str = BERLIN) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def policy(
    mode: str, *, idle: float = 120, at_hour: int = 6, quiet: float = 15, zone: str = BERLIN
) -> ResetPolicy:
    return ResetPolicy(ResetMode(mode), timedelta(minutes=idle), at_hour, timedelta(minutes=quiet), zone)


def session(opened: datetime, spoken: datetime) -> Session:
    return Session(
        "sess_1", "conv_1", "default", "telegram:dm:42", None, "telegram", False, None, None, None, "sess_1",
        1, opened, spoken, None, None, None, None, View.fresh(0), 1, 2, None, None,
    )  # fmt: skip


OPENED = at("2026-11-02 20:00")  # a Monday
SPOKEN = at("2026-11-02 22:10")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("none", None),
        ("idle", Due(at("2026-11-03 00:10"), EndReason.IDLE)),
        ("daily", Due(at("2026-11-03 06:00"), EndReason.DAILY)),
        ("both", Due(at("2026-11-03 00:10"), EndReason.IDLE)),
    ],
)
def test_when_each_mode_wants_a_reset(mode: str, expected: Due | None) -> None:
    assert due(policy(mode), OPENED, SPOKEN) == expected


def test_of_both_the_earlier_counts() -> None:
    spoken = at("2026-11-03 05:30")
    assert due(policy("both"), OPENED, spoken) == Due(at("2026-11-03 06:00"), EndReason.DAILY)


def test_a_daily_reset_waits_until_nobody_has_spoken_for_a_while() -> None:
    spoken = at("2026-11-03 05:58")
    assert due(policy("daily"), OPENED, spoken) == Due(at("2026-11-03 06:13"), EndReason.DAILY)


def test_a_day_that_was_missed_stays_due_and_several_are_one() -> None:
    week_later = OPENED + timedelta(days=7)
    assert due(policy("daily"), OPENED, SPOKEN) == Due(at("2026-11-03 06:00"), EndReason.DAILY)
    fresh = due(policy("daily"), week_later, week_later)
    assert fresh is not None and fresh.at > week_later


@pytest.mark.parametrize(
    ("now", "decision"),
    [
        ("2026-11-03 00:09", Decision.NOT_DUE),
        ("2026-11-03 00:10", Decision.DUE),
        ("2026-11-05", Decision.DUE),
    ],
)
def test_a_verdict_says_when_and_why(now: str, decision: Decision) -> None:
    found = verdict(session(OPENED, SPOKEN), policy("both"), (), at(now), LOOK_AGAIN)
    assert found.decision is decision
    assert found.next_due_at == at("2026-11-03 00:10")
    assert found.end_reason is EndReason.IDLE
    assert [reason.code for reason in found.reasons] == ["idle"]


def test_mode_none_never_resets_however_old_it_is() -> None:
    found = verdict(session(OPENED, SPOKEN), policy("none"), (), at("2036-01-01"), LOOK_AGAIN)
    assert (found.decision, found.next_due_at) == (Decision.NOT_DUE, None)


def test_an_ended_session_is_not_reset_again() -> None:
    ended = replace(session(OPENED, SPOKEN), ended_at=SPOKEN, end_reason="closed")
    assert verdict(ended, policy("idle"), (), at("2026-11-05"), LOOK_AGAIN).decision is Decision.ENDED


def blocker(holds: bool, until: datetime | None = None) -> Blocker:
    return Blocker(Reason("process", "npm run build used the CPU 4 s ago", "proc_1", until), holds)


def test_what_holds_a_due_reset_defers_it_and_is_named() -> None:
    now, until = at("2026-11-03 00:20"), at("2026-11-03 02:10")
    found = verdict(session(OPENED, SPOKEN), policy("idle"), [blocker(True, until)], now, LOOK_AGAIN)
    assert found.decision is Decision.DEFERRED
    assert found.recheck_at == now + LOOK_AGAIN
    assert [(reason.code, reason.process_id) for reason in found.reasons] == [
        ("idle", None),
        ("process", "proc_1"),
    ]


def test_a_deferral_is_looked_at_again_when_the_first_of_its_reasons_ends() -> None:
    now = at("2026-11-03 00:20")
    holding = [blocker(True, now + timedelta(seconds=5)), blocker(True, now + timedelta(hours=1))]
    found = verdict(session(OPENED, SPOKEN), policy("idle"), holding, now, LOOK_AGAIN)
    assert found.recheck_at == now + timedelta(seconds=5)


def test_what_does_not_hold_is_told_and_does_not_defer() -> None:
    found = verdict(session(OPENED, SPOKEN), policy("idle"), [blocker(False)], at("2026-11-05"), LOOK_AGAIN)
    assert found.decision is Decision.DUE
    assert [reason.code for reason in found.reasons] == ["idle", "process"]


# --- days ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "day", "hour", "instant"),
    [
        pytest.param(BERLIN, "2026-11-03", 6, "2026-11-03T05:00+00:00", id="an ordinary day"),
        pytest.param(
            BERLIN, "2026-03-29", 2, "2026-03-29T01:00+00:00", id="a skipped hour ends with its gap"
        ),
        pytest.param(BERLIN, "2026-10-25", 2, "2026-10-25T00:00+00:00", id="a repeated hour, the first time"),
        pytest.param("America/Havana", "2026-03-08", 0, "2026-03-08T05:00+00:00", id="midnight skipped"),
        pytest.param(
            "Australia/Lord_Howe", "2026-10-04", 2, "2026-10-03T15:30+00:00", id="half an hour skipped"
        ),
        pytest.param("Pacific/Apia", "2011-12-30", 4, None, id="a date that does not exist"),
        pytest.param(BERLIN, "2026-11-03", 6.5, "2026-11-03T05:30+00:00", id="half past"),
        pytest.param(BERLIN, "2026-03-29", 2.5, "2026-03-29T01:00+00:00", id="half past, skipped"),
        pytest.param(BERLIN, "2026-11-03", 23.99999, "2026-11-03T22:59:59+00:00", id="the last second"),
    ],
)
def test_the_boundary_of_a_day(zone: str, day: str, hour: float, instant: str | None) -> None:
    found = boundary_of(date.fromisoformat(day), hour, zone)
    assert found == (datetime.fromisoformat(instant) if instant else None)


@pytest.mark.parametrize(
    ("hour", "shown"), [(4.0, "04:00"), (4.5, "04:30"), (0.1, "00:06"), (0.01, "00:00:36")]
)
def test_an_hour_is_told_as_clocks_show_it(hour: float, shown: str) -> None:
    assert wall_clock(hour) == shown


def test_behind_a_date_that_does_not_exist_comes_the_next() -> None:
    opened = datetime(2011, 12, 29, 20, tzinfo=ZoneInfo("Pacific/Apia"))
    found = boundary_after(opened.astimezone(UTC), 4, "Pacific/Apia")
    assert found is not None
    assert found.astimezone(ZoneInfo("Pacific/Apia")) == datetime(
        2011, 12, 31, 4, tzinfo=ZoneInfo("Pacific/Apia")
    )


def changes(zone: ZoneInfo, first: date, last: date) -> set[date]:
    """The local dates around which the offset changes, found without the code under test."""
    found: set[date] = set()
    instant = datetime(first.year, first.month, first.day, tzinfo=UTC) - timedelta(days=2)
    before = instant.astimezone(zone).utcoffset()
    while instant.date() <= last + timedelta(days=2):
        instant += timedelta(days=1)
        after = instant.astimezone(zone).utcoffset()
        if after != before:
            found |= {(instant.astimezone(zone) + timedelta(days=days)).date() for days in (-2, -1, 0, 1)}
        before = after
    return found


def by_walking(day: date, hour: int, zone: ZoneInfo) -> datetime | None:
    """The same by brute force: from well before the date to well behind it, by quarters of an hour (no clock
    changes by less), and minute by minute through the first quarter behind which it is true."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(hours=30)

    def is_behind(minute: int) -> bool:
        local = (start + timedelta(minutes=minute)).astimezone(zone)
        return local.date() == day and local.hour >= hour

    for quarter in range(0, 84 * 60, 15):
        if is_behind(quarter):
            first = next(minute for minute in range(quarter - 14, quarter + 1) if is_behind(minute))
            return start + timedelta(minutes=first)
    return None


@pytest.mark.slow
def test_in_every_zone_over_ten_years_each_local_date_has_one_boundary_at_the_right_instant() -> None:
    first, last = date(2020, 1, 1), date(2029, 12, 31)
    checked = walked = 0
    distinct: dict[object, str] = {}
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        rules = tuple(
            datetime(year, month, 15, tzinfo=zone).utcoffset()
            for year in range(2020, 2030)
            for month in range(1, 13)
        )
        distinct.setdefault(rules, name)
    for name in distinct.values():
        zone = ZoneInfo(name)
        special = changes(zone, first, last)
        previous = boundary_of(first - timedelta(days=1), 4, name)
        day = first
        while day <= last:
            found = boundary_of(day, 4, name)
            assert found is not None and previous is not None
            local = found.astimezone(zone)
            assert local.date() == day
            assert found > previous
            if day in special:
                walked += 1
                assert found == by_walking(day, 4, zone), (name, day)
            else:
                assert (local.hour, local.minute) == (4, 0)
            previous, day, checked = found, day + timedelta(days=1), checked + 1
    assert checked > 100_000 and walked > 500


@pytest.mark.parametrize("hour", [0, 2, 3])
def test_on_the_days_when_clocks_change_the_boundary_is_what_walking_finds(hour: int) -> None:
    for name in (
        *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Africa/Casablanca"),
        *("Asia/Beirut", "America/Asuncion", "Antarctica/Troll", "Atlantic/Azores", "Asia/Tehran"),
    ):
        zone = ZoneInfo(name)
        for day in sorted(changes(zone, date(2021, 1, 1), date(2023, 12, 31))):
            assert boundary_of(day, hour, name) == by_walking(day, hour, zone), (name, day)


@pytest.mark.parametrize(
    ("span", "said"),
    [(30, "30 s"), (90, "1.5 min"), (7200, "2 h"), (86400, "24 h"), (259200, "3 days"), (5400, "90 min")],
)
def test_spans_are_said_as_people_say_them(span: float, said: str) -> None:
    assert minutes(timedelta(seconds=span)) == said
