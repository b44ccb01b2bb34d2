"""Processes: who is who, what counts as activity, and what holds a reset up."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.domain.nodes import Identity
from holdfast.domain.processes import (
    PROCESS_TRANSITIONS,
    Process,
    ProcessLimits,
    ProcessState,
    Sample,
    activity_between,
    check_process_step,
    end_of,
    hold_of,
    is_active,
    is_same,
    pinned_until,
    program_of,
    shown,
)
from holdfast.errors import BadInput, IllegalTransition

NOW = datetime(2026, 3, 4, 22, 10, tzinfo=UTC)
WHO = Identity("host", "boot", "pid:[1]", 552, "1234")
LIMITS = ProcessLimits()


def process(**changes: Any) -> Process:
    """An http.server, three days old, that nobody has looked at lately."""
    known = Process(
        id="proc_1",
        owner="ada",
        conversation_id="conv_1",
        session_id="sess_1",
        identity=WHO,
        command="python3 -m http.server 8765",
        cwd="/home/ada",
        state=ProcessState.RUNNING,
        started_at=NOW - timedelta(days=3),
        supervisor="node_1",
        last_active_at=NOW - timedelta(days=2),
        sampled_at=NOW - timedelta(seconds=20),
        listening=True,
    )
    return replace(known, **changes)


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


# --- states --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", ProcessState)
@pytest.mark.parametrize("new", ProcessState)
def test_a_process_goes_forward_and_ends_once(old: ProcessState, new: ProcessState) -> None:
    order = {ProcessState.STARTING: 0, ProcessState.RUNNING: 1}
    if order.get(old, 2) < order.get(new, 2):
        check_process_step("proc_1", old, new)
        assert new in PROCESS_TRANSITIONS[old]
    else:
        with pytest.raises(IllegalTransition, match="proc_1"):
            check_process_step("proc_1", old, new)


@pytest.mark.parametrize(
    ("changes", "code", "seen", "state"),
    [
        ({}, 0, True, ProcessState.EXITED),
        ({}, None, False, ProcessState.LOST),
        ({"watched": True}, None, False, ProcessState.EXITED),
        ({"stop_requested_at": NOW}, -15, True, ProcessState.STOPPED),
        ({"stop_requested_at": NOW}, None, False, ProcessState.STOPPED),
        ({"exit_code": 4}, 4, False, ProcessState.EXITED),
    ],
)
def test_how_it_ended_is_said_as_far_as_it_is_known(
    changes: dict[str, Any], code: int | None, seen: bool, state: ProcessState
) -> None:
    assert end_of(process(**changes), code, seen) is state


# --- identity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "same"),
    [
        (WHO, True),
        (replace(WHO, host="renamed"), True),
        (replace(WHO, pid_start="1235"), False),
        (replace(WHO, boot_id="after a restart"), False),
        (replace(WHO, pid_ns="pid:[2]"), False),
        (replace(WHO, pid=553), False),
        (None, False),
    ],
)
def test_a_pid_that_is_used_again_is_another_process(found: Identity | None, same: bool) -> None:
    assert is_same(process(), found) is same


# --- activity ------------------------------------------------------------------------------------------

BEFORE = Sample(at=100, cpu_seconds=10, io_bytes=50_000, output_bytes=700, listening=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"cpu_seconds": 10.02}, None),  # a server that wakes up twice a second to look around
        ({"cpu_seconds": 10.11}, "it used the CPU"),
        ({"cpu_seconds": 9}, None),  # something it had started has gone, and nobody has buried it
        ({"io_bytes": 50_080}, None),
        ({"io_bytes": 54_096}, "it read or wrote files"),
        ({"output_bytes": 701}, "it wrote output"),
        ({"connected": 1}, "client connected"),
        ({"connected": 1, "output_bytes": 900, "cpu_seconds": 15}, "client connected"),
    ],
)
def test_what_counts_as_activity(change: dict[str, Any], words: str | None) -> None:
    after = replace(BEFORE, at=105, **change)
    assert activity_between(BEFORE, after) == words


def test_a_tick_or_two_of_a_short_moment_are_not_work() -> None:
    short = replace(BEFORE, at=100.1)
    assert activity_between(BEFORE, replace(short, cpu_seconds=10.02)) is None
    assert activity_between(BEFORE, replace(short, cpu_seconds=10.05)) == "it used the CPU"


def test_the_first_sample_tells_only_who_is_connected() -> None:
    assert activity_between(None, replace(BEFORE, cpu_seconds=9999)) is None
    assert activity_between(None, replace(BEFORE, connected=2)) == "client connected"


@pytest.mark.parametrize(
    ("changes", "active"),
    [
        ({"last_active_at": NOW}, True),
        ({"last_active_at": ago(seconds=60)}, True),
        ({"last_active_at": ago(seconds=61)}, False),
        ({"last_active_at": None}, False),
        ({"last_active_at": NOW, "ended_at": NOW, "state": ProcessState.EXITED}, False),
    ],
)
def test_active_is_what_did_something_within_the_window(changes: dict[str, Any], active: bool) -> None:
    assert is_active(process(**changes), NOW, LIMITS) is active


# --- holding a reset up --------------------------------------------------------------------------------

DUE = NOW - timedelta(minutes=10)
BUSY: dict[str, Any] = {
    "command": "npm run build",
    "last_active_at": ago(seconds=4),
    "activity": "it used the CPU",
    "started_at": ago(hours=30),
    "listening": False,
}


def held(due_at: datetime | None = DUE, limits: ProcessLimits = LIMITS, **changes: Any) -> tuple[bool, str]:
    blocker = hold_of(process(**changes), due_at, NOW, limits, clock=lambda time: f"{time:%H:%M}")
    assert blocker.reason.process_id == "proc_1"
    assert blocker.holds is (blocker.reason.until is not None)
    return blocker.holds, blocker.reason.message


@pytest.mark.parametrize(
    ("changes", "holds", "message"),
    [
        (
            {},
            False,
            '"python3 -m http.server 8765" (3 days, no connections) does not delay it; it will be stopped',
        ),
        (BUSY, True, '"npm run build" (pid 552) may delay it until 00:00: it used the CPU 4 s ago'),
        (
            {"last_active_at": NOW, "activity": "client connected"},
            True,
            '"python3 -m http.server 8765" (pid 552) may delay it until 00:00: client connected just now',
        ),
        (
            {"listening": False, "last_active_at": ago(hours=2)},
            False,
            '"python3 -m http.server 8765" (3 days, idle for 2 h) does not delay it; it will be stopped',
        ),
        (
            {"sampled_at": ago(hours=2)},
            False,
            '"python3 -m http.server 8765" (3 days, last checked 2 h ago) does not delay it; '
            "it will be stopped",
        ),
        (
            {"pinned_until": NOW + timedelta(hours=5)},
            True,
            '"python3 -m http.server 8765" (pid 552) is pinned until 03:10',
        ),
        (
            {"pinned_until": ago(seconds=1)},
            False,
            '"python3 -m http.server 8765" (3 days, no connections) does not delay it; it will be stopped',
        ),
        (
            {"may_stop": False},
            False,
            '"python3 -m http.server 8765" (3 days, no connections) does not delay it; '
            "it will be left running",
        ),
        (
            {**BUSY, "stop_requested_at": ago(seconds=1)},
            False,
            '"npm run build" (pid 552) is being stopped',
        ),
        ({**BUSY, "ended_at": NOW}, False, '"npm run build" (pid 552) has ended'),
    ],
)
def test_only_an_active_or_pinned_process_holds_and_each_says_why(
    changes: dict[str, Any], holds: bool, message: str
) -> None:
    assert held(**changes) == (holds, message)


def test_past_its_limit_even_a_busy_process_lets_go() -> None:
    assert held(ago(minutes=119, seconds=59), **BUSY)[0] is True
    assert held(ago(minutes=120), **BUSY)[0] is False
    assert held(NOW - timedelta(hours=3), **BUSY) == (
        False,
        '"npm run build" (pid 552) is at work (it used the CPU 4 s ago), but has delayed it for 2 h, '
        "the longest allowed; it will be stopped",
    )


def test_where_nothing_is_due_nothing_is_held() -> None:
    assert held(None, **BUSY) == (False, '"npm run build" (pid 552) is at work: it used the CPU 4 s ago')


def test_processes_that_are_kept_are_said_to_be() -> None:
    _, message = held(limits=ProcessLimits(stop_on_reset=False))
    assert message.endswith("does not delay it; it will be left running")


def test_age_alone_decides_nothing() -> None:
    assert held(**{**BUSY, "started_at": ago(days=400)})[0] is True, "a real job keeps its protection"
    assert held(started_at=ago(minutes=2))[0] is False, "a forgotten server has none however young"


def test_a_long_command_is_shortened_to_one_line() -> None:
    assert shown("echo one\n  echo two") == "echo one echo two"
    assert shown("x" * 100) == "x" * 59 + "…"


# --- pins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_agent", [True, False])
def test_a_pin_lasts_as_long_as_it_says(by_agent: bool) -> None:
    assert pinned_until(1.5, NOW, by_agent=by_agent) == NOW + timedelta(minutes=90)
    assert pinned_until(24, NOW, by_agent=by_agent) == NOW + timedelta(hours=24)
    assert pinned_until(0, NOW, by_agent=by_agent) is None


def test_an_agent_pins_for_a_day_at_most_and_a_person_for_longer() -> None:
    with pytest.raises(BadInput, match="24 hours"):
        pinned_until(24.01, NOW, by_agent=True)
    assert pinned_until(1000, NOW, by_agent=False) == NOW + timedelta(hours=1000)


@pytest.mark.parametrize("hours", [-1, float("nan"), float("inf"), 1e12])
def test_a_pin_for_no_time_or_for_ever_is_refused(hours: float) -> None:
    with pytest.raises(BadInput):
        pinned_until(hours, NOW, by_agent=False)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("sleep 1000", "sleep"),
        ("/usr/bin/python3 -m http.server", "python3"),
        ("TOKEN=hunter2 PATH+=x ./deploy --key abc", "deploy"),
        ("TOKEN=hunter2", "a command"),
        ("'/opt/my/tool' x", "tool"),
        ("$(curl https://user:hunter2@host) x", "a command"),
        ("\x1b[2Jls", "a command"),
        ("a" * 500, "a command"),
        ("", "a command"),
    ],
)
def test_a_program_is_named_without_its_arguments_and_variables(command: str, program: str) -> None:
    assert program_of(command) == program
