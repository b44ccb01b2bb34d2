"""`make bench`: holdfast and its peers, in one run, as ratios. Absolute numbers depend on the machine.

Every measurement is a separate process on its own database, on a real disk. The rounds are interleaved across
the stores, so that noise affects all equally, and the median of the rounds is printed. Peers are installed
from PyPI into environments outside the tree (environments.py); an unavailable one is listed with the reason.

    python bench/run.py                          everything, about sixteen minutes
    python bench/run.py --quick                  one short round, about three minutes
    python bench/run.py --only history,resolve   some of the tables
    python bench/run.py --json FILE              every figure of every round as well
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import api
import report
from adapters import AdapterBench, print_adapters
from api_report import print_api
from api_workers import KINDS, WorkersBench, print_workers
from contestants import (
    ADAPTERS,
    APPEND,
    HISTORY,
    HISTORY_MESSAGES,
    OPEN,
    POSTGRES,
    RESOLVE,
    SINGLE,
    SWEEP,
    WRITERS,
    Row,
)
from figures import Figures
from measure import fsyncs_per_second
from postgres import PostgresBench
from runner import Runner, Unmeasured

ROWS = {
    "append": APPEND,
    "history": HISTORY,
    "resolve": RESOLVE,
    "open": OPEN,
    "sweep": SWEEP,
    "api": (),
    "postgres": POSTGRES,
    "adapters": ADAPTERS,
}

T = TypeVar("T")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rounds: int
    seconds: float
    runs: int
    sessions: int


THOROUGH = Effort(rounds=3, seconds=1.5, runs=15, sessions=1_000_000)
QUICK = Effort(rounds=1, seconds=0.6, runs=7, sessions=100_000)


class Bench:
    """One run: measures the tables asked for, and prints each as soon as it is complete."""

    def __init__(self, runner: Runner, effort: Effort) -> None:
        self.runner = runner
        self.effort = effort
        self.results: dict[str, Figures] = {}
        self.fsyncs: list[tuple[float, float]] = []

    def calibrate(self) -> tuple[float, float]:
        """How fast the disk is right now: the limit of everything that commits alone."""
        self.fsyncs.append(fsyncs_per_second(str(self.runner.scratch), seconds=1.0))
        return self.fsyncs[-1]

    def append(self) -> None:
        figures = self._figures("append")
        for number in range(self.effort.rounds):
            self.calibrate()
            for writers in WRITERS:
                for row in rotated(APPEND, number):
                    progress(f"append, round {number + 1}, {writers} writers: {row.label}")
                    job = {"writers": writers, "seconds": self.effort.seconds}
                    self._note(figures, row, writers, self.runner.fresh, job)
            self._note(figures, SINGLE, 0, self.runner.fresh, {"seconds": self.effort.seconds})
        report.print_append(figures, APPEND)

    def history(self) -> None:
        figures = self._figures("history")
        self._read(figures, HISTORY, size=HISTORY_MESSAGES)
        report.print_history(figures, HISTORY, HISTORY_MESSAGES)

    def resolve(self) -> None:
        figures = self._figures("resolve")
        self._read(figures, RESOLVE, runs=self.effort.runs * 20)
        report.print_resolve(figures, RESOLVE)

    def open(self) -> None:
        figures = self._figures("open")
        self._read(figures, OPEN, size=self.effort.sessions)
        report.print_open(figures, self.effort.sessions)

    def sweep(self) -> None:
        figures = self._figures("sweep")
        self._read(figures, SWEEP, size=self.effort.sessions)
        report.print_sweep(figures, SWEEP[0].options["few"], self.effort.sessions)

    def api(self) -> None:
        # Half a second more: the slowest server takes one to answer 64 clients.
        table = api.ApiBench(self.runner.scratch, self.effort.seconds + 0.5, progress)
        self.results["api"] = table.figures
        table.install()
        for number in range(self.effort.rounds):
            self.calibrate()
            table.round(rotated(api.ROWS, number))
            table.help()
        print_api(table.figures)
        workers = WorkersBench(self.runner.scratch, self.effort.seconds + 0.5, progress)
        self.results["workers"] = workers.figures
        for number in range(self.effort.rounds):
            workers.round(rotated(KINDS, number))
        print_workers(workers.figures)

    def postgres(self) -> None:
        table = PostgresBench(self.runner, self.effort.seconds, progress)
        self.results["postgres"] = table.figures
        with table.server() as server:
            for number in range(self.effort.rounds):
                self.calibrate()
                table.round(server, rotated(POSTGRES, number))
            table.scale(server, self.effort.runs, self.effort.sessions)
        report.print_postgres(table.figures, POSTGRES, self.effort.sessions)

    def adapters(self) -> None:
        bench = AdapterBench(self.runner, self.effort.seconds, self.effort.runs, progress)
        self.results["adapters"] = bench.figures
        bench.measure(self.effort.rounds, rotated)
        print_adapters(bench.figures)

    def _read(self, figures: Figures, rows: Sequence[Row], **job: Any) -> None:
        for number in range(self.effort.rounds):
            self.calibrate()
            for row in rotated(rows, number):
                progress(f"{row.label}, round {number + 1}")
                self._note(figures, row, 0, self.runner.kept, {"runs": self.effort.runs, **job})

    def _note(
        self,
        figures: Figures,
        row: Row,
        setting: int,
        measure: Callable[..., dict[str, Any]],
        job: dict[str, Any],
    ) -> None:
        """Add one measurement; a row that cannot be measured keeps its reason, and the others go on."""
        if row.key in figures.unmeasured:
            return
        try:
            figures.add(row.key, setting, measure(row, **job))
        except Unmeasured as reason:
            figures.unmeasured[row.key] = str(reason)

    def as_json(self) -> dict[str, Any]:
        return {
            "python": platform.python_version(),
            "effort": asdict(self.effort),
            "fsyncs": self.fsyncs,
            "tables": {name: figures.as_json() for name, figures in self.results.items()},
        }

    def _figures(self, name: str) -> Figures:
        self.results[name] = Figures()
        return self.results[name]


def rotated(rows: Sequence[T], number: int) -> list[T]:
    """Each round begins with another row, so that no store always runs behind the same one."""
    shift = number * 2 % len(rows)
    return [*rows[shift:], *rows[:shift]]


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K… {text}", end="\r", file=sys.stderr, flush=True)


def filesystem(directory: Path) -> str:
    """The type of the filesystem a directory is on, as far as /proc tells."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, where, what, *_ = line.split()
        inside = where == "/" or str(directory) == where or str(directory).startswith(f"{where}/")
        if inside and len(where) >= len(best):
            best, kind = where, what
    return kind


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure holdfast beside its peers, as ratios in one run.")
    parser.add_argument("--quick", action="store_true", help="one short round, and a smaller full store")
    parser.add_argument("--only", default=",".join(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every round here")
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp"), help="a directory on a real disk")
    parsed = parser.parse_args()
    parsed.only = [name for name in ROWS if name in parsed.only.split(",")]
    if not parsed.only:
        parser.error(f"--only takes some of {', '.join(ROWS)}")
    if filesystem(parsed.scratch.resolve()) in ("tmpfs", "ramfs"):
        parser.error(
            f"{parsed.scratch} is in memory: nothing there is durable; choose another with --scratch"
        )
    return parsed


def conditions(effort: Effort, disk: str) -> str:
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores, {disk}"
    load = f"load before the run {os.getloadavg()[0]:.1f}"
    return f"{machine}, {load}; {effort.rounds} × {effort.seconds:g} s a measurement"


def main() -> int:
    chosen = arguments()
    began = time.monotonic()
    # Told to stop, it still removes its scratch directory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scratch = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=chosen.scratch))
    bench = Bench(Runner(scratch), QUICK if chosen.quick else THOROUGH)
    try:
        print(conditions(bench.effort, filesystem(scratch.resolve())))
        bench.runner.install([row for name in chosen.only for row in ROWS[name]])
        growing, within = bench.calibrate()
        print(f"raw fsync/s: {growing:,.0f} growing a file, {within:,.0f} within it", flush=True)
        for name in chosen.only:
            getattr(bench, name)()
            sys.stdout.flush()
        slowest, fastest = min(bench.fsyncs)[0], max(bench.fsyncs)[0]
        print(f"\nTook {time.monotonic() - began:.0f} s, in which raw fsync/s, growing a file, went ", end="")
        print(f"from {slowest:,.0f} to {fastest:,.0f}: the further apart, the less a single figure means.")
        if chosen.json:
            chosen.json.write_text(json.dumps(bench.as_json(), indent=1))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
