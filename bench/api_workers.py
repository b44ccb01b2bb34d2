"""Compares two workers with one: the same requests to `holdfast serve` and to `holdfast serve --workers 2`.

The model waits longer than it works: each reply is two chunks, 50 ms apart, so that many clients wait at the
same time and the server's own processor time is the limit. Two workers can only be faster where clients and
mock leave them the cores: with fewer than four cores the ratio is printed with the processor shares and is
not compared with a target.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from api import run_client
from api_client import ClientJob
from api_servers import HOLDFAST, KEY, MOCK, WORKERS, Kind, kept, started
from figures import Figures
from report import heading, number, table, verdicts
from runner import Unmeasured
from targets import Target

KINDS = (HOLDFAST, WORKERS)
WAITING = "stream-2-50"
CLIENTS = 90
"""Less than `limits.turns_per_key`."""
ENOUGH_CORES = 4
"""Two workers, the mock and the clients."""


class WorkersBench:
    """The rounds of one comparison, on a scratch directory."""

    def __init__(self, scratch: Path, seconds: float, progress: Callable[[str], None]) -> None:
        self.figures = Figures()
        self._scratch = scratch
        self._seconds = seconds
        self._progress = progress

    def round(self, kinds: Sequence[Kind]) -> None:
        """Measure each once, in this order; one that cannot be measured keeps its reason."""
        for kind in kinds:
            if kind.name not in self.figures.unmeasured:
                try:
                    self._measure(kind)
                except Unmeasured as reason:
                    self.figures.unmeasured[kind.name] = str(reason)

    def _measure(self, kind: Kind) -> None:
        self._progress(f"{kind.name}: {CLIENTS} clients of a model that waits")
        directory, python = self._scratch / "api", Path(sys.executable)
        directory.mkdir()
        try:
            with started(MOCK, python, 0, directory) as mock:
                with started(kind, python, mock.port, directory) as server:
                    began, before = time.perf_counter(), mock.cpu_seconds()
                    job = ClientJob(
                        "first", server.port, server.pid, CLIENTS, self._seconds, WAITING, turns=20, key=KEY
                    )
                    result = run_client(job)
                    result["mock_share"] = (mock.cpu_seconds() - before) / (time.perf_counter() - began)
                    result["memory_mb"] = server.memory_mb()
                stored = kept(kind, directory)
            if stored is not None and stored < result["acknowledged"]:
                raise Unmeasured(f"lost requests: {result['acknowledged']} acknowledged, {stored} stored")
        finally:
            shutil.rmtree(directory)
        self.figures.add(kind.name, 0, result)


def print_workers(figures: Figures) -> None:
    heading(f"Two workers and one: {CLIENTS} clients, replies of two chunks 50 ms apart, SQLite")
    lines = []
    for kind, label in zip(KINDS, ("one process", "two workers"), strict=True):
        lines.append(
            [
                f"{label}: {figures.unmeasured[kind.name]}" if kind.name in figures.unmeasured else label,
                number(figures.of(kind.name, "per_second"), 0),
                number(figures.of(kind.name, "cpu_us"), 0),
                number(figures.of(kind.name, "cpu_share"), 2),
                number(figures.of(kind.name, "mock_share"), 2),
                number(figures.of(kind.name, "memory_mb"), 0),
            ]
        )
    table(["server", "req/s", "CPU µs a request", "cores, server", "cores, mock", "RSS MB"], lines)
    ratio = figures.ratio("per_second", WORKERS.name, HOLDFAST.name)
    cores = os.cpu_count() or 1
    if ratio is None:
        return
    if cores < ENOUGH_CORES:
        print(
            f"\nTwo workers / one: {ratio.value:.2f} ×, not measurable here: {cores} cores for two workers,"
        )
        print("the mock and the clients. The columns of cores show who used them.")
    else:
        verdicts([Target("two workers / one", ratio, at_least=1.6)])
