"""The adapters table: each beside its framework's own SQLite and PostgreSQL store, interleaved in one run.

Durable appends of one writer and of 64, and reading one thread. `framework` is the share of an append's
processor time that the framework itself takes to make and encode it, whichever the store: no store can save
that. Every measurement is a separate process on a database of its own; the PostgreSQL server is one for the
whole table, with every commit synced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from contestants import ADAPTERS, Row
from figures import Figures, Ratio
from measure import Job
from postgres import PostgresBench, database
from report import NOT_MEASURED, heading, named, number, table, verdicts
from runner import Runner, Unmeasured
from targets import SAME, Target

WRITERS = (1, 64)
READ_MESSAGES = 2_000
FRAMEWORKS = ("openai_agents", "langgraph", "google_adk")
ENGINES = ("sqlite", "postgres")


class AdapterBench:
    def __init__(self, runner: Runner, seconds: float, runs: int, progress: Callable[[str], None]) -> None:
        self.figures = Figures()
        self._runner = runner
        self._seconds = seconds
        self._runs = runs
        self._progress = progress
        self._postgres = PostgresBench(runner, seconds, progress)

    def measure(self, rounds: int, rotated: Callable[[Sequence[Row], int], list[Row]]) -> None:
        with self._postgres.server() as server:
            for round_ in range(rounds):
                for row in rotated(ADAPTERS, round_):
                    self._progress(f"adapters, round {round_ + 1}: {row.label}")
                    for writers in WRITERS:
                        self._note(server, row, writers, case="append", seconds=self._seconds)
                    self._note(server, row, 0, case="history", runs=self._runs, size=READ_MESSAGES)

    def _note(self, server: Any, row: Row, writers: int, case: str, **job: Any) -> None:
        if row.key in self.figures.unmeasured:
            return
        job["writers"] = writers or 1
        try:
            if row.case == "postgres":
                with database(server) as url:
                    result = self._runner.run(row, Job(case, url, options=row.options, **job))
            else:
                result = self._runner.fresh(row, case=case, **job)
            self.figures.add(row.key, writers, result)
        except Unmeasured as reason:
            self.figures.unmeasured[row.key] = str(reason)


def print_adapters(figures: Figures) -> None:
    heading("Adapters beside the frameworks' own stores: 1 KB messages, acknowledged after a synced commit")
    lines = [
        [
            named(row, figures),
            *(number(figures.of(row.key, "per_second", writers), 0) for writers in WRITERS),
            number(figures.of(row.key, "cpu_us", WRITERS[-1]), 0),
            _share(figures, row.key),
            number(figures.of(row.key, "ms"), 2),
        ]
        for row in ADAPTERS
    ]
    columns = ["store", "1 writer, /s", "64 writers, /s", "CPU µs an append", "framework", "read, ms"]
    table(columns, lines)
    print(f"\nRead: a thread of {READ_MESSAGES:,} messages.")
    verdicts(adapter_targets(figures))


def _share(figures: Figures, key: str) -> str:
    """The framework's share of an append, measured beside our adapter."""
    of = figures.of(key, "cpu_us", WRITERS[-1])
    own = figures.of(key.removesuffix("_own"), "framework_us", WRITERS[-1])
    return NOT_MEASURED if not of or own is None else f"{own / of:.0%}"


def adapter_targets(figures: Figures) -> list[Target]:
    targets = []
    for framework in FRAMEWORKS:
        for engine in ENGINES:
            ours, own = f"{framework}_{engine}", f"{framework}_{engine}_own"

            def ratio(name: str, setting: int, ours: str = ours, own: str = own) -> Ratio | None:
                return figures.ratio(name, ours, own, setting)

            what = f"{framework} on {engine}"
            targets += [
                Target(f"{what}: appends of 64 writers / its own store", ratio("per_second", 64), 5),
                Target(f"{what}: appends of one writer / its own store", ratio("per_second", 1), 1 / SAME),
                Target(f"{what}: reading / its own store", ratio("ms", 0), at_most=SAME),
            ]
    return targets
