"""Prometheus metrics of the server: requests, turns, flush attempts, idle time.

Kept in Prometheus' client library. `/metrics` exports them together with the store's figures at that moment.
Labels are routes, statuses, flush states and outcomes, never ids or owners.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from ..domain.figures import Figures, FlushFigures
from ..domain.turns import TurnStatus

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "holdfast_requests", "HTTP requests answered", ("route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "holdfast_request_seconds",
            "Seconds to answer a request",
            ("route",),
            buckets=BUCKETS,
            registry=registry,
        )
        self._under_way = 0
        self._at_once = Gauge("holdfast_requests_under_way", "Requests in progress", registry=registry)
        self._turns = Counter("holdfast_turns", "Ended turns of this process", ("status",), registry=registry)
        for status in TurnStatus:
            if status is not TurnStatus.RUNNING:
                self._turns.labels(status.value)
        self._running = Gauge("holdfast_running_turns", "Turns running in this process", registry=registry)
        self._idle = Gauge(
            "holdfast_idle_seconds",
            "Seconds without a turn in this process",
            registry=registry,
        )
        self._figures = {
            name: Gauge(f"holdfast_store_{name}", meaning, registry=registry)
            for name, meaning in STORE_FIGURES.items()
        }
        self._flushes = Gauge(
            "holdfast_flushes",
            "Flushes by state; coming: sessions that are due to be reset and then flushed",
            ("state",),
            registry=registry,
        )
        self._flush_attempts = Counter(
            "holdfast_flush_attempts", "Flush attempts of this process", ("outcome",), registry=registry
        )
        self._attempts_told: defaultdict[str, int] = defaultdict(int)
        self._idle_since = time.monotonic()
        # Cached: finding a labelled child costs more than incrementing it.
        self._counter = cache(lambda route, status: self._requests.labels(route, str(status)))
        self._timer = cache(self._seconds.labels)

    def begin(self) -> None:
        """Count a request that has started."""
        self._under_way += 1

    def end(self, route: str, status: int, began: float) -> None:
        """Count a request that has ended. Status 0 (the client disconnected) is counted as 499."""
        self._under_way -= 1
        self._counter(route, status or 499).inc()
        self._timer(route).observe(time.monotonic() - began)

    def spoken(self) -> None:
        """Restart the idle time: a turn has started or ended."""
        self._idle_since = time.monotonic()

    def ended(self, status: TurnStatus) -> None:
        """Count a turn that has ended."""
        self._turns.labels(status.value).inc()

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self._idle_since

    def text(
        self, running: int, figures: Figures, flushes: FlushFigures, attempts: Mapping[str, int]
    ) -> bytes:
        """All metrics in Prometheus' text format. `attempts`: flush attempts of this process since its start,
        by outcome."""
        for name in FLUSH_FIGURES:
            self._flushes.labels(name).set(getattr(flushes, name))
        for outcome in FLUSH_OUTCOMES:
            counter = self._flush_attempts.labels(outcome)
            counter.inc(max(0, attempts.get(outcome, 0) - self._attempts_told[outcome]))
            self._attempts_told[outcome] = attempts.get(outcome, 0)
        self._at_once.set(self._under_way)
        self._running.set(running)
        self._idle.set(0 if running else self.idle_seconds)
        for name, gauge in self._figures.items():
            value = getattr(figures, name)
            gauge.set(float("nan") if value is None else value)
        return generate_latest(self.registry)


FLUSH_FIGURES = ("pending", "running", "dead", "coming")
FLUSH_OUTCOMES = ("done", "failed", "dead")

STORE_FIGURES = {
    "open_sessions": "Open sessions",
    "running_turns": "Running turns of all nodes",
    "messages": "Messages written since the store was created",
    "events": "Events written since the store was created",
    "undelivered_notices": "Notices that are not delivered",
    "log_bytes": "Bytes of the write-ahead log",
    "unindexed": "Messages that are not in the search index yet",
}
