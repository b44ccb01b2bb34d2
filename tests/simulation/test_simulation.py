"""The real runtime on real SQL, in virtual time, with every fault that can occur: every promise holds.

HOLDFAST_TEST_SOAK=1      the long version (`make soak`)
HOLDFAST_TEST_SEED=n      one seed only: to replay a failure, which names its seed
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.postgres import deadlines

from . import mutants
from .checks import Violation
from .world import SEASON, STALLS, STORM, Plan, World

pytestmark = pytest.mark.timeout(900)

SOAK = os.environ.get("HOLDFAST_TEST_SOAK") == "1"
SEED = os.environ.get("HOLDFAST_TEST_SEED")
DAYS = replace(SEASON, seconds=2 * 86_400.0)

Tell = Callable[[str], None]


class Tally:
    """What runs have come to, in one line."""

    def __init__(self) -> None:
        self.seeds = 0
        self.seconds = 0.0
        self.steps = 0
        self.messages = 0
        self.effects = 0
        self.seen: Counter[str] = Counter()

    def add(self, world: World) -> None:
        self.seeds += 1
        self.seconds += world.seconds
        self.steps += world.watcher.commits
        self.messages += len(world.ledger.begun)
        self.effects += len(world.ledger.effects)
        self.seen += world.watcher.seen

    def __str__(self) -> str:
        days = self.seconds / 86_400
        time = f"{days / 365.25:.1f} simulated years" if days > 400 else f"{days:.1f} simulated days"
        return (
            f"simulation: {self.seeds} seeds, {time}, {self.steps:,} steps, 0 violations "
            f"({self.messages:,} messages acknowledged, {self.seen['node.reaped']:,} nodes reaped, "
            f"{self.seen['session.reset']:,} resets, {self.seen['compaction.completed']:,} compactions, "
            f"{self.seen['flush.done']:,} flushes, "
            f"{self.seen['turn.taken_up by recovery']:,} turns taken up, "
            f"{self.seen['turn.given_up']:,} given up, {self.seen['turn.queued']:,} queued, "
            f"{self.seen['turn.joined']:,} joined, {self.effects:,} tools run)"
        )


def run_all(plans: Sequence[tuple[Plan, Sequence[int]]]) -> Tally:
    tally = Tally()
    for plan, seeds in plans:
        for seed in [int(SEED)] if SEED else seeds:
            tally.add(World(seed, plan).run())
    return tally


def test_whatever_goes_wrong_every_promise_holds(figures: Tell) -> None:
    tally = run_all([(STORM, range(2)), (STALLS, range(1)), (DAYS, range(1))])
    more = iter(range(2, 15))  # what a seed does changes with the code: some may be too quiet
    while not SEED and (never := [each for each in HAPPENS if not tally.seen[each]]):
        seed = next(more, None)
        assert seed is not None, f"{never} never happened, so nothing was shown about it"
        tally.add(World(seed, STORM).run())
    figures(str(tally))


HAPPENS = (
    "turn.completed",
    "turn.interrupted",
    "turn.failed",
    "turn.taken_up",
    "turn.taken_up by recovery",
    "turn.waiting death",
    "turn.waiting model",
    "turn.given_up",
    "turn.queued",
    "turn.joined",
    "node.left",
    "node.reaped",
    "node.reaped alive",
    "session.reset",
    "session.reset_deferred",
    "compaction.completed",
    "flush.done",
    "flush.failed",
    "process.started",
    "process.adopted",
    "process.stopping",
)


LONG = ((STORM, 300), (STALLS, 100), (SEASON, 60))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.skipif(not SOAK, reason="only with HOLDFAST_TEST_SOAK=1")
def test_whatever_goes_wrong_for_years_every_promise_holds(figures: Tell) -> None:
    first = random.SystemRandom().randrange(1_000_000)
    tally = run_all([(plan, range(first, first + seeds)) for plan, seeds in LONG])
    figures(str(tally))


def test_a_seed_replays_exactly_also_in_another_process() -> None:
    brief = replace(STORM, seconds=20)
    here = [World(7, brief).run().digest for _ in range(2)]
    assert here[0] == here[1]
    assert World(8, brief).run().digest != here[0]
    program = (
        "from dataclasses import replace\n"
        "from tests.simulation.world import STORM, World\n"
        "print(World(7, replace(STORM, seconds=20)).run().digest)\n"
    )
    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": "."},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    assert there.stdout.split() == here[0].split()


def test_a_thread_of_another_test_keeps_the_real_clock() -> None:
    """Its `time` is a name of a module of holdfast, which the simulation replaces for itself alone."""
    troubles: list[BaseException] = []
    over = threading.Event()

    def other() -> None:
        try:
            while not over.is_set():
                theirs: Any = vars(deadlines)["time"]
                before = theirs.monotonic()
                theirs.sleep(0.01)
                assert 0.005 < theirs.monotonic() - before < 60
                assert abs(theirs.time() - time.time()) < 60
        except BaseException as error:
            troubles.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        World(7, replace(STORM, seconds=5)).run()
    finally:
        over.set()
        thread.join()
    assert troubles == []


PLANS: dict[Callable[[mutants.Put], None], Plan] = {
    mutants.no_fencing: STALLS,
    mutants.processes_block_for_ever: DAYS,
}
"""Those that a storm shows seldom, or that take longer to show."""
MOST_SEEDS = 40
"""Enough for a mistake that one seed in ten shows; only one that is not seen takes so many."""
SEEN_BY: dict[Callable[[mutants.Put], None], int] = {
    mutants.no_fencing: 1,
    mutants.reaping_by_wall_clock: 3,
    mutants.flushed_set_in_memory: 6,
    mutants.no_tip_resolution: 2,
    mutants.recovery_counts_as_activity: 3,
    mutants.reset_in_mid_turn: 6,
    mutants.processes_block_for_ever: 7,
    mutants.no_fencing_on_recovery: 3,
    mutants.attempts_counted_in_memory: 6,
    mutants.cancelled_turns_are_taken_up: 1,
}
"""The seed to begin with. What a seed does changes with the code; the others are tried after it."""


@pytest.mark.parametrize("mutant", mutants.ALL, ids=lambda mutant: mutant.__name__)
def test_a_mistake_put_in_on_purpose_is_seen(mutant: Callable[[mutants.Put], None]) -> None:
    seen = []
    with mutants.broken_by(mutant):
        first = SEEN_BY.get(mutant, 0)
        for seed in (first, *(each for each in range(MOST_SEEDS) if each != first)):
            try:
                World(seed, PLANS.get(mutant, STORM)).run()
            except Violation as violation:
                seen.append(violation)
                break
    assert seen, "no seed has seen it: the simulation proves nothing about this"
