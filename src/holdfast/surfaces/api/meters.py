"""What the server counts: requests, turns, time since anybody asked for anything.

Kept in Prometheus' client library; `/metrics` prints it. Labels are routes and statuses, never ids or owners.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

if TYPE_CHECKING:
    from .call import Call

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Meters:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "holdfast_requests", "Requests answered", ("route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "holdfast_request_seconds",
            "Time to answer a request",
            ("route",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._under_way = 0
        self._idle_since = time.monotonic()

    @contextmanager
    def request(self, route: str, call: Call) -> Iterator[None]:
        """One request, from its first line to its last byte."""
        started = time.monotonic()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            now = time.monotonic()
            self._requests.labels(route, str(call.status or 499)).inc()
            self._seconds.labels(route).observe(now - started)

    def spoken(self) -> None:
        """Somebody spoke, or was answered."""
        self._idle_since = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self._idle_since

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)
