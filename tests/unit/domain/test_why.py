"""What a person is told about a session's reset, word for word."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from holdfast.domain.nodes import Identity
from holdfast.domain.processes import Process, ProcessLimits, ProcessState, hold_of
from holdfast.domain.resets import Blocker, Decision, Reason, ResetMode, ResetPolicy, due, verdict
from holdfast.domain.sessions import Session
from holdfast.domain.views import View
from holdfast.domain.why import PolicyValue, ResetDecision, clock_of, policy_values, sentence

BERLIN = "Europe/Berlin"
FILE = "/etc/holdfast.toml"
LIMITS = ProcessLimits()


def at(text: str, zone: str = BERLIN) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


OPENED = at("2026-10-30 20:00")
SPOKEN = at("2026-11-02 22:10")  # a Monday
SESSION = Session(
    "sess_1", "conv_1", "default", "telegram:dm:42", None, "telegram", False, None, None, None, "sess_1",
    1, OPENED, SPOKEN, None, None, None, None, View.fresh(0), 1, 2, None, None,
)  # fmt: skip


def policy(mode: str, zone: str = BERLIN, **minutes: float) -> ResetPolicy:
    return ResetPolicy(
        ResetMode(mode),
        timedelta(minutes=minutes.get("idle", 120)),
        6,
        timedelta(minutes=15),
        zone,
        {
            "mode": f"[reset] in {FILE}",
            "idle_minutes": f"[reset.sources.telegram] in {FILE}",
            "at_hour": "HOLDFAST_RESET__AT_HOUR",
        },
    )


def process(command: str, now: datetime, *, age: timedelta, active: timedelta | None, pid: int) -> Process:
    return Process(
        f"proc_{pid}",
        "default",
        "conv_1",
        "sess_1",
        Identity("host", "boot", "ns", pid, "1"),
        command,
        "/",
        ProcessState.RUNNING,
        now - age,
        None,
        last_active_at=None if active is None else now - active,
        activity=None if active is None else "it used the CPU",
        listening=active is None,
        sampled_at=now,
    )


def said(rule: ResetPolicy, now: str, *running: Process, session: Session = SESSION, **more: Blocker) -> str:
    moment = at(now)
    wanted = None if session.ended else due(rule, session.since, session.last_activity_at)
    clock = clock_of(rule, moment)
    holds = [hold_of(each, wanted.at if wanted else None, moment, LIMITS, clock) for each in running]
    found = verdict(session, rule, [*more.values(), *holds], moment, timedelta(seconds=30))
    return sentence(ResetDecision(session, rule, found), moment)


def test_it_reads_as_the_one_that_was_asked_for() -> None:
    now = at("2026-11-03 00:05")
    build = process("npm run build", now, age=timedelta(hours=1), active=timedelta(seconds=4), pid=552)
    server = process("python3 -m http.server 8765", now, age=timedelta(days=3), active=None, pid=9)
    assert said(policy("idle"), "2026-11-03 00:05", build, server) == (
        "telegram:dm:42 has been idle since Mon 22:10 and will be reset at 00:10 "
        "(idle 120 min, from [reset.sources.telegram]). "
        '"npm run build" (pid 552) may delay it until 02:10: it used the CPU 4 s ago. '
        '"python3 -m http.server 8765" (3 days, no connections) does not delay it; it will be stopped.'
    )


def test_the_page_about_resets_quotes_it_word_for_word() -> None:
    now = at("2026-11-03 00:05")
    build = process("npm run build", now, age=timedelta(hours=1), active=timedelta(seconds=4), pid=552)
    server = process("python3 -m http.server 8765", now, age=timedelta(days=3), active=None, pid=9)
    talking = replace(SESSION, last_activity_at=at("2026-11-03 06:20"), opened_at=at("2026-11-02 20:00"))
    page = (Path(__file__).parents[3] / "docs/explanation/resets.md").read_text("utf-8")
    (quoted,) = re.findall(r"^```text\n(telegram:.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert [" ".join(each.split()) for each in quoted.split("\n\n")] == [
        said(policy("idle"), "2026-11-03 00:05", build, server),
        said(policy("both"), "2026-11-03 06:25", session=talking),
    ]


IDLE = "idle 120 min, from [reset.sources.telegram]"
DAILY = "daily at 06:00 Europe/Berlin, from HOLDFAST_RESET__AT_HOUR"


@pytest.mark.parametrize(
    ("mode", "now", "expected"),
    [
        ("none", "2026-11-09 12:00", "telegram:dm:42 is never reset (mode none, from [reset])."),
        (
            "idle",
            "2026-11-02 22:30",
            f"telegram:dm:42 has been idle since 22:10 and will be reset at Tue 00:10 ({IDLE}).",
        ),
        (
            "idle",
            "2026-11-03 00:11",
            f"telegram:dm:42 has been idle since Mon 22:10 and due to be reset since 00:10 ({IDLE}); "
            "the next sweep does it.",
        ),
        (
            "idle",
            "2026-11-20 00:11",
            "telegram:dm:42 has been idle since 2026-11-02 22:10 and due to be reset since 2026-11-03 00:10 "
            f"({IDLE}); the next sweep does it.",
        ),
    ],
)
def test_what_is_said_of_an_open_session(mode: str, now: str, expected: str) -> None:
    assert said(policy(mode), now) == expected


def test_a_day_that_waits_for_quiet_says_so() -> None:
    talking = replace(SESSION, last_activity_at=at("2026-11-03 06:20"))
    opened = replace(talking, opened_at=at("2026-11-02 20:00"))
    assert said(policy("both"), "2026-11-03 06:25", session=opened) == (
        "telegram:dm:42 has been idle since 06:20 and will be reset at 06:35 "
        "(daily at 06:00 Europe/Berlin, once there was no message for 15 min, from HOLDFAST_RESET__AT_HOUR)."
    )
    quiet = replace(SESSION, opened_at=at("2026-11-02 20:00"))
    assert said(policy("daily"), "2026-11-02 23:00", session=quiet) == (
        f"telegram:dm:42 has been idle since 22:10 and will be reset at Tue 06:00 ({DAILY})."
    )


def test_a_deferral_names_what_holds_it_and_until_when() -> None:
    until = at("2026-11-03 02:10")
    awaited = "the result of 1 tool call is awaited, until 02:10 at most"
    calls = Blocker(Reason("tool_calls", awaited, until=until), True)
    assert said(policy("idle"), "2026-11-03 00:30", calls=calls) == (
        f"telegram:dm:42 has been idle since Mon 22:10 and due to be reset since 00:10 ({IDLE}), "
        "but it is deferred. The result of 1 tool call is awaited, until 02:10 at most."
    )
    running = replace(SESSION, running_turn="turn_1", running_node="node_1")
    turn = Blocker(Reason("turn", "turn turn_1 is running"), True)
    assert said(policy("idle"), "2026-11-03 00:30", session=running, turn=turn) == (
        f"telegram:dm:42 is being answered and due to be reset since 00:10 ({IDLE}), but it is deferred. "
        "Turn turn_1 is running."
    )
    waiting = replace(SESSION, running_turn="turn_1")
    limit = "turn turn_1 waits for a retry by a server, until 02:10 at most"
    retry = Blocker(Reason("turn", limit, until=until), True)
    assert said(policy("idle"), "2026-11-02 23:00", session=waiting, turn=retry) == (
        f"telegram:dm:42 waits for a retry of its last turn and will be reset at Tue 00:10 ({IDLE}). "
        "Turn turn_1 waits for a retry by a server, until 02:10 at most."
    )


@pytest.mark.parametrize(
    ("mode", "reason", "tip", "now", "expected"),
    [
        (
            "idle",
            "idle",
            "sess_1",
            "2026-11-03 09:00",
            "was reset at 00:10 (idle). The next message starts a new session.",
        ),
        (
            "idle",
            "new",
            "sess_1",
            "2026-11-03 09:00",
            "ended at 00:10 (new). The next message starts a new session.",
        ),
        (
            "idle",
            "idle",
            "sess_2",
            "2026-11-03 09:00",
            "was reset at 00:10 (idle). The conversation continues in sess_2.",
        ),
        (
            "none",
            "closed",
            "sess_1",
            "2026-12-03 09:00",
            "ended at 2026-11-03 00:10 (closed). The next message continues from there, whenever it comes "
            "(mode none, from [reset]).",
        ),
        (
            "idle",
            "closed",
            "sess_1",
            "2026-11-03 00:05",
            "ended at 00:10 (closed). A message before 00:10 continues from there, "
            f"a later one starts a new session ({IDLE}).",
        ),
        (
            "idle",
            "reaped",
            "sess_1",
            "2026-11-03 09:00",
            f"ended at 00:10 (reaped). The next message starts a new session, since 00:10 ({IDLE}).",
        ),
    ],
)
def test_what_is_said_of_a_session_that_has_ended(
    mode: str, reason: str, tip: str, now: str, expected: str
) -> None:
    ended = replace(SESSION, ended_at=at("2026-11-03 00:10"), end_reason=reason, tip_id=tip)
    assert said(policy(mode), now, session=ended) == f"telegram:dm:42 {expected}"


@pytest.mark.parametrize(
    ("zone", "spoken", "due_at"),
    [
        ("UTC", "Mon 21:10", "Mon 23:10"),
        ("Asia/Tokyo", "06:10", "08:10"),
        ("America/New_York", "16:10", "18:10"),
    ],
)
def test_times_are_those_of_the_policys_zone(zone: str, spoken: str, due_at: str) -> None:
    told = said(policy("idle", zone), "2026-11-03 00:05" if zone != "UTC" else "2026-11-03 01:05")
    assert f"since {spoken}" in told and due_at in told


@pytest.mark.parametrize(
    ("idle", "words"), [(0.5, "idle 30 s"), (1.5, "idle 1.5 min"), (1440, "idle 1440 min")]
)
def test_the_rule_is_said_in_the_words_of_its_setting(idle: float, words: str) -> None:
    assert f"({words}, from" in said(policy("idle", idle=idle), "2026-11-02 22:10")


def test_a_session_without_a_key_is_named_by_its_title_or_its_id() -> None:
    nameless = replace(SESSION, key=None)
    assert said(policy("none"), "2026-11-03", session=nameless).startswith("sess_1 is never")
    assert said(policy("none"), "2026-11-03", session=replace(nameless, title="Trip")).startswith(
        "Trip is never"
    )


def test_each_value_of_the_policy_is_told_with_its_origin() -> None:
    assert policy_values(policy("both")) == {
        "mode": PolicyValue("both", f"[reset] in {FILE}"),
        "idle_minutes": PolicyValue(120, f"[reset.sources.telegram] in {FILE}"),
        "at_hour": PolicyValue(6, "HOLDFAST_RESET__AT_HOUR"),
        "quiet_minutes": PolicyValue(15, "the default"),
        "timezone": PolicyValue(BERLIN, "the default"),
    }


def test_a_verdict_that_will_come_does_not_speak_as_if_it_had() -> None:
    before = verdict(SESSION, policy("idle"), (), at("2026-11-03 00:00"), timedelta(seconds=30))
    after = verdict(SESSION, policy("idle"), (), at("2026-11-03 00:10"), timedelta(seconds=30))
    assert (before.decision, before.reasons[0].message) == (
        Decision.NOT_DUE,
        "it is reset after 2 h without a message",
    )
    assert (after.decision, after.reasons[0].message) == (Decision.DUE, "no message for 2 h")
