"""Measures the API table: holdfast's server, a journalled pass-through and LiteLLM, with one mock model.

Each round restarts every server on its own new store and sends each the same requests: whole replies at 1, 16
and 64 clients, the first token of a stream alone and among 16, and CPU time per streamed chunk. A server's
overhead is its figure minus that of the mock called directly, in the same round.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from api_client import ClientJob
from api_mock import PACED, SHORT, Manner
from api_servers import (
    HOLDFAST,
    JOURNALLED,
    KEY,
    MISREPORTING,
    MOCK,
    NOT_RECOVERING,
    PROXY,
    RECOVERING,
    Kind,
    Server,
    environment,
    install,
    kept,
    started,
)
from figures import Figures
from runner import HERE, Unmeasured

CLIENTS = (1, 16, 64)
TURNS = 20
HELP_RUNS = 7
PATIENCE_SECONDS = 240
DIRECT = "direct"


@dataclass(frozen=True)
class ApiRow:
    """A row of the table. `turns`: how many a conversation has; 0: the server is told of none."""

    key: str
    label: str
    kind: Kind
    turns: int = 0
    mock: Kind = MOCK
    """The model behind it."""


ROWS = (
    ApiRow(DIRECT, "the mock model itself, asked directly", MOCK),
    ApiRow("litellm", "LiteLLM proxy 1.106", PROXY),
    ApiRow("journalled", "pass-through with a FULL journal", JOURNALLED),
    ApiRow("holdfast", f"holdfast, conversations of {TURNS} turns", HOLDFAST, TURNS),
    ApiRow("opening", "holdfast, every request a new conversation", HOLDFAST),
    ApiRow("misreported", f"holdfast, {TURNS} turns, usage misreported", HOLDFAST, TURNS, MISREPORTING),
    ApiRow("recovering", f'holdfast, {TURNS} turns, recover = "all"', RECOVERING, TURNS),
    ApiRow("not_recovering", f'holdfast, {TURNS} turns, recover = "never"', NOT_RECOVERING, TURNS),
)


class ApiBench:
    """The rounds of the API table, on a scratch directory."""

    def __init__(self, scratch: Path, seconds: float, progress: Callable[[str], None]) -> None:
        self.figures = Figures()
        self._scratch = scratch
        self._seconds = seconds
        self._progress = progress
        self._pythons: dict[str, Path] = {}

    def install(self) -> None:
        """Have every environment ready, and every bytecode compiled, before anything is measured."""
        for row in ROWS:
            try:
                self._pythons[row.key] = install(row.kind)
                with self._directory() as directory, self._running(row, directory):
                    self._progress(f"{row.label}: started once")
            except Unmeasured as reason:
                self.figures.unmeasured[row.key] = str(reason)

    def round(self, rows: Sequence[ApiRow]) -> None:
        """Measure every row once, in this order; one that cannot be measured keeps its reason."""
        measured: dict[str, dict[int, dict[str, Any]]] = {}
        for row in rows:
            if row.key in self.figures.unmeasured:
                continue
            try:
                measured[row.key] = self._measure(row)
            except Unmeasured as reason:
                self.figures.unmeasured[row.key] = str(reason)
        direct = measured.get(DIRECT)
        for key, results in measured.items():
            for setting, result in results.items():
                self.figures.add(
                    key, setting, {**result, **(added(results, direct, setting) if direct else {})}
                )

    def help(self) -> None:
        """How long `holdfast --help` takes, and an interpreter that does nothing."""
        python, variables = Path(sys.executable), environment(HOLDFAST, self._scratch / "api")
        try:
            ours = median_seconds([str(python.parent / "holdfast"), "--help"], variables)
            bare = median_seconds([str(python), "-c", "pass"], variables)
        except (OSError, subprocess.CalledProcessError) as error:
            self.figures.unmeasured["help"] = str(error)
        else:
            self.figures.add("help", 0, {"seconds": ours, "bare_seconds": bare})

    def _measure(self, row: ApiRow) -> dict[int, dict[str, Any]]:
        """All figures of one row: by the number of clients, and under 0 what there is one of."""
        with self._directory() as directory:
            with self._running(row, directory) as server:
                results, acknowledged = self._ask(row, server)
            stored = kept(row.kind, directory)
        if stored is not None and stored < acknowledged:
            raise Unmeasured(f"lost requests: {acknowledged} acknowledged, {stored} stored")
        return results

    @contextmanager
    def _running(self, row: ApiRow, directory: Path) -> Iterator[Server]:
        """The row's server in front of a mock of its own; the mock's own row asks the mock."""
        with started(row.mock, Path(sys.executable), 0, directory) as mock:
            if row.kind is MOCK:
                yield mock
                return
            with started(row.kind, self._pythons[row.key], mock.port, directory) as server:
                yield server

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        directory = self._scratch / "api"
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory)

    def _ask(self, row: ApiRow, server: Server) -> tuple[dict[int, dict[str, Any]], int]:
        acknowledged = 0

        def client(phase: str, clients: int = 1, **more: Any) -> dict[str, Any]:
            nonlocal acknowledged
            self._progress(f"{row.label}: {phase}, {clients} client{'s' * (clients > 1)}")
            asked = {"turns": row.turns, "seconds": self._seconds, "key": KEY, **more}
            answer = run_client(ClientJob(phase, server.port, server.pid, clients, **asked))
            acknowledged += answer["acknowledged"]
            return answer

        idle = server.memory_mb()
        client("check", turns=min(row.turns, 1))
        results = {clients: client("plain", clients) for clients in CLIENTS}
        alone = client("first", model=SHORT)
        among = client("first", 16, model=PACED)
        # A stream of 2,000 chunks is a long message: each in a conversation of its own.
        chunk = client("chunk", turns=min(row.turns, 1))
        results[0] = {
            "ready_seconds": server.ready_seconds,
            "idle_mb": idle,
            "after_mb": server.memory_mb(),
            "first_ms": alone["p50_ms"],
            "first_among_ms": among["p50_ms"],
            "first_among_p99_ms": among["p99_ms"],
            "chunk_cpu_us": chunk["cpu_us"],
            "paced_chunk_cpu_us": among["cpu_us"] / Manner.of(PACED).chunks,
        }
        return results, acknowledged


def added(
    results: dict[int, dict[str, Any]], direct: dict[int, dict[str, Any]], setting: int
) -> dict[str, float]:
    """What the server adds to the time of asking the mock directly, in ms."""
    if setting:
        return {"added_p50_ms": results[setting]["p50_ms"] - direct[setting]["p50_ms"]}
    names = ("first_ms", "first_among_ms")
    return {f"added_{name}": results[0][name] - direct[0][name] for name in names}


def run_client(job: ClientJob) -> dict[str, Any]:
    """The figures of one job, from a process of its own. Raises Unmeasured."""
    try:
        done = subprocess.run(
            [sys.executable, str(HERE / "api_client.py"), job.encode()],
            env={**os.environ, "PYTHONPATH": str(HERE)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unmeasured(f"{job.phase}: gave no answer within {PATIENCE_SECONDS} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise Unmeasured(f"{job.phase} at {job.clients}: {last[0][:200]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def median_seconds(command: Sequence[str], variables: dict[str, str]) -> float:
    """The median time a command takes, after one run that is not counted."""
    times = []
    for _ in range(HELP_RUNS + 1):
        since = time.perf_counter()
        subprocess.run(command, env=variables, capture_output=True, check=True)
        times.append(time.perf_counter() - since)
    return median(times[1:])
