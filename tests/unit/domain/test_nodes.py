"""Is a node dead (by proof), or hung (by its beat)?"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.domain.nodes import BeatWatch, Identity, Liveness, Node, NodeKind, proof_of_death
from holdfast.domain.pages import NodeReport, why_gone

HERE = Identity(host="reef", boot_id="boot-1", pid_ns="ns-1", pid=100, pid_start="5000", machine="m-1")
THEIRS = replace(HERE, pid=200, pid_start="6000")
OTHER_BOOT = replace(THEIRS, boot_id="boot-0")
OTHER_NAMESPACE = replace(THEIRS, pid_ns="ns-2")
OTHER_MACHINE = replace(THEIRS, host="shore", boot_id="boot-9", machine="m-9")
SAME_NAME = replace(OTHER_MACHINE, host="reef")
UNKNOWN_MACHINE = replace(OTHER_BOOT, machine="")


@pytest.mark.parametrize(
    ("theirs", "lock_free", "start", "proof"),
    [
        # A lock that can be tested alone decides.
        (THEIRS, True, "6000", "lock is free"),
        (THEIRS, True, None, "lock is free"),
        (THEIRS, False, "6000", None),
        (THEIRS, False, None, None),
        (THEIRS, False, "9999", None),
        (OTHER_BOOT, False, None, None),
        (OTHER_MACHINE, True, None, "lock is free"),
        # Without one: the boot, then the process.
        (THEIRS, None, "6000", None),
        (THEIRS, None, None, "no process 200"),
        (THEIRS, None, "9999", "process 200 is another one"),
        (OTHER_BOOT, None, "6000", "restarted"),
        (OTHER_BOOT, None, None, "restarted"),
        # Another namespace or machine: our pids say nothing about theirs.
        (OTHER_NAMESPACE, None, None, None),
        (OTHER_NAMESPACE, None, "9999", None),
        (OTHER_MACHINE, None, None, None),
        (OTHER_MACHINE, None, "9999", None),
        (SAME_NAME, None, None, None),
        (SAME_NAME, None, "9999", None),
        (UNKNOWN_MACHINE, None, None, None),
        (replace(THEIRS, host="renamed"), None, None, "no process 200"),
        (replace(OTHER_BOOT, host="renamed"), None, None, "restarted"),
        (replace(OTHER_BOOT, pid_ns="ns-2"), None, None, "restarted"),
    ],
)
def test_death_is_proven_never_guessed(
    theirs: Identity, lock_free: bool | None, start: str | None, proof: str | None
) -> None:
    found = proof_of_death(theirs, lock_free=lock_free, here=HERE, start_of_their_pid=start, one_machine=True)
    if proof is None:
        assert found is None
    else:
        assert found is not None
        assert proof in found


@pytest.mark.parametrize("theirs", [OTHER_BOOT, OTHER_MACHINE, SAME_NAME, UNKNOWN_MACHINE])
def test_where_several_machines_share_a_store_another_boot_proves_nothing(theirs: Identity) -> None:
    """It may be a clone: cloned machines share their machine id, and each has a boot id of its own."""
    assert proof_of_death(theirs, lock_free=None, here=HERE, start_of_their_pid=None) is None


def test_a_machine_that_is_not_known_is_no_other() -> None:
    nameless = replace(HERE, machine="", boot_id="boot-7")
    assert not replace(nameless, boot_id="boot-8").is_on(nameless)
    assert nameless.is_on(nameless)
    assert OTHER_BOOT.is_on(HERE) and not SAME_NAME.is_on(HERE)


STALE, GAP = 90.0, 30.0


def watch() -> BeatWatch:
    return BeatWatch(stale_seconds=STALE, longest_gap=GAP)


def test_a_node_hangs_when_its_beat_stood_still_for_a_whole_window() -> None:
    seen = watch()
    hung = [seen.look({"n": 7}, 15.0 * step) for step in range(8)]
    assert hung == [{}] * 6 + [{"n": 7}] * 2


def test_a_first_look_says_nothing_however_late_it_is() -> None:
    assert watch().look({"n": 7}, 1_000_000.0) == {}


def test_a_beat_that_moves_starts_the_window_anew() -> None:
    seen = watch()
    for step in range(6):
        assert seen.look({"n": 7}, 15.0 * step) == {}
    assert seen.look({"n": 8}, 90.0) == {}
    assert [seen.look({"n": 8}, 90.0 + 15.0 * step) for step in range(1, 6)] == [{}] * 5
    assert seen.look({"n": 8}, 180.0) == {"n": 8}


def test_a_beat_that_went_backwards_has_moved_too() -> None:
    seen = watch()
    for step in range(6):
        seen.look({"n": 7}, 15.0 * step)
    assert seen.look({"n": 3}, 90.0) == {}


def test_a_sleep_of_the_observer_counts_as_one_gap() -> None:
    seen = watch()
    assert seen.look({"n": 7}, 0.0) == {}
    assert seen.look({"n": 7}, 8 * 3600.0) == {}
    assert seen.look({"n": 7}, 16 * 3600.0) == {}
    assert seen.look({"n": 7}, 24 * 3600.0) == {"n": 7}  # three gaps of 30 s: a whole window awake


def test_a_clock_that_goes_backwards_counts_nothing() -> None:
    seen = watch()
    seen.look({"n": 7}, 1000.0)
    for moment in (900.0, 800.0, 700.0, 600.0):
        assert seen.look({"n": 7}, moment) == {}
    assert seen.look({"n": 7}, 629.0) == {}


def test_each_node_has_a_window_of_its_own() -> None:
    seen = watch()
    for step in range(4):
        seen.look({"old": 1}, 20.0 * step)
    assert seen.look({"old": 1, "young": 1}, 80.0) == {}
    assert seen.look({"old": 1, "young": 1}, 100.0) == {"old": 1}


def test_a_node_that_was_gone_from_a_look_starts_anew() -> None:
    seen = watch()
    for step in range(6):
        seen.look({"n": 7}, 15.0 * step)
    assert seen.look({}, 90.0) == {}
    assert seen.look({"n": 7}, 105.0) == {}


def test_forgetting_starts_every_window_anew() -> None:
    seen = watch()
    for step in range(6):
        seen.look({"n": 7}, 15.0 * step)
    seen.forget()
    assert seen.look({"n": 7}, 90.0) == {}
    assert seen.look({"n": 7}, 105.0) == {}


@pytest.mark.parametrize(
    ("left", "reaped", "gone"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_a_node_is_gone_when_it_left_or_was_reaped(left: bool, reaped: bool, gone: bool) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    node = Node(
        "node_1", NodeKind.CLI, HERE, left_at=noon if left else None, reaped_at=noon if reaped else None
    )
    assert node.gone is gone


@pytest.mark.parametrize(
    ("end", "why", "minutes"),
    [
        ({}, "", 60),
        ({"left_at": 30}, "left cleanly", 30),
        ({"reaped_at": 40, "reaped_why": "it hangs"}, "reaped: it hangs", 20),
        ({"reaped_at": 40}, "reaped: its process ended, or it hung", 20),
    ],
)
def test_a_node_says_why_it_is_gone_and_how_long_it_ran(end: dict[str, Any], why: str, minutes: int) -> None:
    """One that was reaped is known to have run until its last heartbeat."""
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    given: dict[str, Any] = {
        name: noon + timedelta(minutes=value) if name.endswith("_at") else value
        for name, value in end.items()
    }
    node = Node(
        "node_1", NodeKind.CLI, HERE, started_at=noon, heartbeat_at=noon + timedelta(minutes=20), **given
    )
    assert why_gone(node) == why
    report = NodeReport(node, Liveness.UNKNOWN, "")
    assert report.running_for(noon + timedelta(hours=1)) == timedelta(minutes=minutes)


def test_slow_sweeps_do_not_stretch_the_window() -> None:
    """Looks are 60 s apart, because a sweep takes so long; ticks say that the observer is awake."""
    seen = watch()
    hung = []
    for second in range(181):
        seen.tick(float(second))
        if second % 60 == 0:
            hung.append(seen.look({"n": 7}, float(second)))
    assert hung == [{}, {}, {"n": 7}, {"n": 7}]


def test_a_node_is_judged_by_what_it_declares_not_by_the_observer() -> None:
    impatient = BeatWatch(stale_seconds=3.0, longest_gap=10.0)
    declared = {"server": 90.0, "old": None}
    looks = [impatient.look({"server": 1, "old": 1}, 5.0 * step, declared) for step in range(20)]
    assert looks[2] == {"old": 1}
    assert all("server" not in look for look in looks[:18])
    assert looks[18] == {"server": 1, "old": 1}
