"""Measures the API table: holdfast's server, a journalled pass-through and LiteLLM, with one mock model.

Each round restarts every server on its own new store and sends each the same requests: whole replies at 1, 16
and 64 clients, the first token of a stream alone and among 16, and CPU time per streamed chunk. A server's
overhead is its figure minus that of the mock called directly, in the same round.

All servers of a round run at once, and each phase asks them one after the other: what is compared was
measured within seconds. On a machine with other load even the processor time of the same work changes by a
factor of two from minute to minute. The processor time of each row's mock, whose work is the same in every
round, is printed beside the server's: where both changed, the machine did.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from api_client import ClientJob
from api_mock import PACED, PLAIN, SHORT, Manner
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


@dataclass(frozen=True)
class Phase:
    """One job of the clients, the same for every row."""

    name: str
    job: str
    clients: int = 1
    model: str = PLAIN
    apart: bool = False
    """True: each request in a conversation of its own."""


PHASES = (
    Phase("check", "check", apart=True),
    *(Phase(f"plain {clients}", "plain", clients) for clients in CLIENTS),
    Phase("first", "first", model=SHORT),
    Phase("among", "first", 16, PACED),
    # A stream of 2,000 chunks is a long message.
    Phase("chunk", "chunk", apart=True),
)


@dataclass
class Asked:
    """A row's running server in one round, and what its phases measured."""

    row: ApiRow
    directory: Path
    server: Server
    mock: Server
    idle_mb: float
    running: ExitStack
    """Stops the server and its mock."""
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ask(self, phase: Phase, seconds: float) -> None:
        """Run one phase. Raises Unmeasured."""
        turns = min(self.row.turns, 1) if phase.apart else self.row.turns
        job = ClientJob(
            phase.job, self.server.port, self.server.pid, phase.clients, seconds, phase.model, turns, KEY
        )
        before = self.mock.cpu_seconds()
        answer = run_client(job)
        spent = self.mock.cpu_seconds() - before
        self.measured[phase.name] = {**answer, "mock_cpu_us": spent / answer["acknowledged"] * 1e6}

    def results(self) -> dict[int, dict[str, Any]]:
        """All figures, after the last phase: by the number of clients, and under 0 what there is one of."""
        alone, among, chunk = (self.measured[name] for name in ("first", "among", "chunk"))
        return {
            **{clients: self.measured[f"plain {clients}"] for clients in CLIENTS},
            0: {
                "ready_seconds": self.server.ready_seconds,
                "idle_mb": self.idle_mb,
                "after_mb": self.server.memory_mb(),
                "first_ms": alone["p50_ms"],
                "first_among_ms": among["p50_ms"],
                "first_among_p99_ms": among["p99_ms"],
                "chunk_cpu_us": chunk["cpu_us"],
                "paced_chunk_cpu_us": among["cpu_us"] / Manner.of(PACED).chunks,
            },
        }

    def verify(self) -> None:
        """Raises Unmeasured if the stopped server has not kept what it acknowledged."""
        acknowledged = sum(answer["acknowledged"] for answer in self.measured.values())
        stored = kept(self.row.kind, self.directory)
        if stored is not None and stored < acknowledged:
            raise Unmeasured(f"lost requests: {acknowledged} acknowledged, {stored} stored")


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
            with ExitStack() as directories, self._noting(row):
                self._pythons[row.key] = install(row.kind)
                with self._started(row, directories).running:
                    self._progress(f"{row.label}: started once")

    def round(self, rows: Sequence[ApiRow]) -> None:
        """Measure every row once, in this order in each phase; one that cannot be measured keeps its
        reason."""
        measured: dict[str, dict[int, dict[str, Any]]] = {}
        with ExitStack() as directories:
            asked = list[Asked]()
            for row in rows:
                if row.key not in self.figures.unmeasured:
                    with self._noting(row):
                        asked.append(self._started(row, directories))
            for phase in PHASES:
                for each in asked:
                    if each.row.key not in self.figures.unmeasured:
                        several = "s" * (phase.clients > 1)
                        self._progress(f"{each.row.label}: {phase.job}, {phase.clients} client{several}")
                        with self._noting(each.row):
                            each.ask(phase, self._seconds)
            for each in asked:
                if each.row.key not in self.figures.unmeasured:
                    with self._noting(each.row):
                        results = each.results()
                        each.running.close()
                        each.verify()
                        measured[each.row.key] = results
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

    @contextmanager
    def _noting(self, row: ApiRow) -> Iterator[None]:
        """Keep the reason if the row turns out not to be measurable."""
        try:
            yield
        except Unmeasured as reason:
            self.figures.unmeasured[row.key] = str(reason)

    def _started(self, row: ApiRow, directories: ExitStack) -> Asked:
        """The row's server and its own mock, in a directory of their own; the mock's row asks the mock. Both
        stop, and the directory is removed, when `directories` is closed. Raises Unmeasured."""
        directory = self._scratch / f"api-{row.key}"
        directory.mkdir()
        directories.callback(shutil.rmtree, directory)
        with ExitStack() as starting:
            mock = server = starting.enter_context(started(row.mock, Path(sys.executable), 0, directory))
            if row.kind is not MOCK:
                server = starting.enter_context(
                    started(row.kind, self._pythons[row.key], mock.port, directory)
                )
            running = starting.pop_all()
        directories.push(running)
        return Asked(row, directory, server, mock, server.memory_mb(), running)


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
