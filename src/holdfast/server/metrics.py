"""Prometheus metrics of the server: requests, turns, model calls, flush attempts, idle time.

Kept in Prometheus' client library. `/metrics` exports them together with the store's figures at that moment.
Labels are routes, statuses, models, flush states and outcomes, never ids or owners.

With several workers the counters of each are in a file that all can read, and any worker exports the sums. A
worker's successor continues its file, so counters never decrease while the server runs.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    values,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from ..app import Recoverer
from ..domain.figures import Figures, FlushFigures
from ..domain.recovery import Cause
from ..domain.turns import TurnStatus
from .workers.board import Row, RowColumn

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


MOST_MODELS = 50
"""How many models have figures of their own; further ones are `other`."""
FILES_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where Prometheus' client library keeps the files of several processes."""
MOST_WAITING = 1000
"""How many durations may wait until they are added to their histogram."""
LATEST: Final = "mostrecent"
"""Of a gauge in several files the one counts that was set last: by the worker that exports it."""


def keep_in_files(directory: Path, worker: int) -> None:
    """From now on, keep the metrics of this process in files of this directory, under the number of its
    worker. Values of an earlier process of that worker are continued."""
    os.environ[FILES_VARIABLE] = str(directory)
    values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]


class _ModelFigures(NamedTuple):
    """The labelled metrics of one model."""

    first_token: Histogram
    seconds: Histogram
    input_tokens: Counter
    output_tokens: Counter


class Metrics:
    def __init__(self, workers: Row | None = None) -> None:
        """`workers`: this worker's row, if the server has several; then `keep_in_files` was called before."""
        self._workers = workers
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode=LATEST)
        histogram = partial(Histogram, registry=registry, buckets=BUCKETS)
        self._requests = counter("holdfast_requests", "HTTP requests answered", ("route", "status"))
        self._seconds = histogram("holdfast_request_seconds", "Seconds to answer a request", ("route",))
        self._under_way = 0
        self._at_once = gauge("holdfast_requests_under_way", "Requests in progress")
        self._turns = counter("holdfast_turns", "Ended turns of this server", ("status",))
        ends = [status for status in TurnStatus if status not in (TurnStatus.QUEUED, TurnStatus.RUNNING)]
        self._turns_by_status: dict[TurnStatus, Counter] = {
            status: self._turns.labels(status.value) for status in ends
        }
        self._running = gauge("holdfast_running_turns", "Turns running in this server")
        self._queued = gauge("holdfast_turns_queued", "Queued turns of all conversations")
        self._dequeued = counter("holdfast_queued_turns_begun", "Queued turns that this server has begun")
        self._dequeued_told = 0
        self._idle = gauge("holdfast_idle_seconds", "Seconds without a turn in this server")
        self._figures = {
            name: gauge(f"holdfast_store_{name}", meaning) for name, meaning in STORE_FIGURES.items()
        }
        self._flushes = gauge(
            "holdfast_flushes",
            "Flushes by state; coming: sessions that are due to be reset and then flushed",
            ("state",),
        )
        self._flush_attempts = counter(
            "holdfast_flush_attempts", "Flush attempts of this server", ("outcome",)
        )
        self._attempts_told: defaultdict[str, int] = defaultdict(int)
        self._waiting = gauge("holdfast_turns_waiting", "Turns of all nodes that wait for a retry")
        self._taken_up = counter(
            "holdfast_turns_taken_up", "Waiting turns that this process retried", ("why",)
        )
        for cause in Cause:
            self._taken_up.labels(cause.value)
        self._given_up = counter("holdfast_turns_given_up", "Waiting turns that this process gave up")
        self._recovery_seconds = histogram(
            "holdfast_turn_recovery_seconds", "Seconds from the end of a turn's last attempt to its answer"
        )
        self._model_seconds = histogram(
            "holdfast_model_seconds", "Seconds of a model call, to its end", ("model",)
        )
        self._first_token = histogram(
            "holdfast_model_first_token_seconds", "Seconds of a model call, to its first token", ("model",)
        )
        self._tokens = counter(
            "holdfast_model_tokens", "Tokens of model calls, as the model reports them", ("model", "kind")
        )
        self._model_errors = counter(
            "holdfast_model_errors",
            "Model calls that failed, by the status that the model answered",
            ("model", "status"),
        )
        self._models: set[str] = set()
        self._counts: defaultdict[Counter, int] = defaultdict(int)
        self._durations: defaultdict[Histogram, list[float]] = defaultdict(list)
        """What was counted and measured since it was last added to the metrics."""
        self._idle_since = time.monotonic()
        # Cached: finding a labelled child costs more than incrementing it.
        self._counter = cache(lambda route, status: self._requests.labels(route, str(status)))
        self._timer = cache(self._seconds.labels)
        self._of_model = cache(self._labelled)

    def begin(self) -> None:
        """Count a request that has started."""
        self._under_way += 1
        if self._workers is not None:
            self._workers.set(RowColumn.UNDER_WAY, self._under_way)

    def end(self, route: str, status: int, began: float) -> None:
        """Count a request that has ended. Status 0 (the client disconnected) is counted as 499."""
        self._under_way -= 1
        if self._workers is not None:
            self._workers.set(RowColumn.UNDER_WAY, self._under_way)
        self._count(self._counter(route, status or 499))
        self._measure(self._timer(route), time.monotonic() - began)

    def spoken(self) -> None:
        """Restart the idle time: a turn has started or ended."""
        self._idle_since = time.monotonic()
        if self._workers is not None:
            self._workers.set(RowColumn.IDLE_SINCE, time.monotonic_ns())

    def ended(self, status: TurnStatus) -> None:
        """Count a turn that has ended."""
        self._count(self._turns_by_status[status])

    def first_token(self, model: str, seconds: float) -> None:
        """Note the first token of a model call."""
        self._measure(self._of_model(self._model(model)).first_token, seconds)

    def answered(self, model: str, seconds: float, input_tokens: int, output_tokens: int) -> None:
        """Note a model call that was answered to its end."""
        figures = self._of_model(self._model(model))
        self._measure(figures.seconds, seconds)
        self._count(figures.input_tokens, input_tokens)
        self._count(figures.output_tokens, output_tokens)

    # The library takes a lock and several calls for each figure, and every turn has seven. They are added up
    # here, and to the metrics when those are exported. The files of a worker are read by others at any time.

    def _count(self, counter: Counter, number: int = 1) -> None:
        self._counts[counter] += number
        if self._workers is not None:
            self._add_waiting()

    def _measure(self, histogram: Histogram, seconds: float) -> None:
        waiting = self._durations[histogram]
        waiting.append(seconds)
        if self._workers is not None or len(waiting) >= MOST_WAITING:
            self._add_waiting()

    def _add_waiting(self) -> None:
        """Add to the metrics what was counted and measured since the last call."""
        for counter, number in self._counts.items():
            counter.inc(number)
        self._counts.clear()
        for histogram, waiting in self._durations.items():
            for seconds in waiting:
                histogram.observe(seconds)
        self._durations.clear()

    def _labelled(self, name: str) -> _ModelFigures:
        return _ModelFigures(
            self._first_token.labels(name),
            self._model_seconds.labels(name),
            self._tokens.labels(name, "input"),
            self._tokens.labels(name, "output"),
        )

    def failed(self, model: str, status: int | None) -> None:
        """Count a model call that failed. Without a status: no connection, or one that broke."""
        self._model_errors.labels(self._model(model), str(status or "none")).inc()

    def _model(self, name: str) -> str:
        """The label of a model. Clients choose names freely, so only the first MOST_MODELS have their own."""
        name = name or "default"
        if name not in self._models:
            if len(self._models) >= MOST_MODELS:
                return "other"
            self._models.add(name)
        return name

    def note_queue(self, queued: int, begun: int) -> None:
        """Set how many turns are queued, and count those that this process has begun since its start."""
        self._queued.set(queued)
        self._dequeued.inc(max(0, begun - self._dequeued_told))
        self._dequeued_told = begun

    def note_attempts(self, attempts: Mapping[str, int]) -> None:
        """Count the flush attempts of this process, given as numbers since its start, by outcome."""
        for outcome in FLUSH_OUTCOMES:
            counter = self._flush_attempts.labels(outcome)
            counter.inc(max(0, attempts.get(outcome, 0) - self._attempts_told[outcome]))
            self._attempts_told[outcome] = attempts.get(outcome, 0)

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self._idle_since

    def note_recoveries(self, recoverer: Recoverer) -> None:
        """Count what this process has done about waiting turns since the last call."""
        done = recoverer.take_counts()
        for cause, count in done.taken_up.items():
            self._taken_up.labels(cause).inc(count)
        self._given_up.inc(done.given_up)
        for seconds in done.seconds:
            self._recovery_seconds.observe(seconds)

    def text(
        self,
        running: int,
        idle: float,
        figures: Figures,
        flushes: FlushFigures,
        attempts: Mapping[str, int],
        waiting: int = 0,
        recoverer: Recoverer | None = None,
    ) -> bytes:
        """All metrics in Prometheus' text format. `running` and `idle`: the server's running turns and the
        seconds since the last one. `attempts`: flush attempts of this process since its start, by outcome.
        `waiting`: turns that wait to be retried."""
        self._add_waiting()
        self._waiting.set(waiting)
        if recoverer is not None:
            self.note_recoveries(recoverer)
        for name in FLUSH_FIGURES:
            self._flushes.labels(name).set(getattr(flushes, name))
        self.note_attempts(attempts)
        self._at_once.set(
            self._under_way if self._workers is None else self._workers.total(RowColumn.UNDER_WAY)
        )
        self._running.set(running)
        self._idle.set(idle)
        for name, gauge in self._figures.items():
            value = getattr(figures, name)
            gauge.set(float("nan") if value is None else value)
        return generate_latest(self.registry if self._workers is None else _summed(self._workers))


def _summed(workers: Row) -> CollectorRegistry:
    """The metrics of all workers, from their files, and those of their processes."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, os.environ[FILES_VARIABLE])  # type: ignore[no-untyped-call]
    registry.register(_WorkerProcesses(workers))
    return registry


class _WorkerProcesses(Collector):
    """CPU time and memory of all processes of a server: its workers, those that have ended, its supervisor.
    Shared pages count once for each process."""

    def __init__(self, workers: Row) -> None:
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        summed: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            "process_cpu_seconds": CounterMetricFamily(
                "process_cpu_seconds", "CPU seconds of all processes of this server"
            ),
            "process_resident_memory_bytes": GaugeMetricFamily(
                "process_resident_memory_bytes", "Resident memory of all processes of this server"
            ),
            "process_virtual_memory_bytes": GaugeMetricFamily(
                "process_virtual_memory_bytes", "Virtual memory of all processes of this server"
            ),
        }
        totals = dict.fromkeys(summed, 0.0)
        totals["process_cpu_seconds"] = self._workers.board.ended_cpu
        for pid in (*self._workers.pids(), os.getppid()):
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                if metric.name in totals:
                    totals[metric.name] += metric.samples[0].value
        for name, family in summed.items():
            family.add_metric([], totals[name])
        return summed.values()


FLUSH_FIGURES = ("pending", "running", "dead", "coming")
FLUSH_OUTCOMES = ("done", "failed", "dead")

STORE_FIGURES = {
    "open_sessions": "Open sessions",
    "running_turns": "Running turns of all nodes",
    "messages": "Messages written since the store was created",
    "events": "Events written since the store was created",
    "undelivered_notices": "Notices that are not delivered",
    "log_bytes": "Bytes of the write-ahead log",
    "free_bytes": "Bytes free on the disk of the store (SQLite)",
    "unindexed": "Messages that are not in the search index yet",
}
