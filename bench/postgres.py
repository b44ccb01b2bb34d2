"""The PostgreSQL tables: holdfast and its peers on one server, two nodes against one, and many sessions.

The server is started here, on a real disk with every commit synced, and is the same for every row. Each
measurement has its own database.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contestants import NODE, SCALE, WRITERS, Row
from figures import Figures
from measure import Job
from runner import Runner, Unmeasured

if TYPE_CHECKING:
    from tests.postgres_server import PostgresServer

TOGETHER = 64
"""Writers, however many nodes they are spread over."""


class PostgresBench:
    def __init__(self, runner: Runner, seconds: float, progress: Callable[[str], None]) -> None:
        self.figures = Figures()
        self._runner = runner
        self._seconds = seconds
        self._progress = progress

    @contextmanager
    def server(self) -> Iterator[PostgresServer]:
        """A server for the whole run."""
        sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests know how to start one
        from tests import postgres_server

        # Beside the scratch directory: what is in that is nobody's but ours, and the server is another user.
        with postgres_server.private(
            durable=True, where=self._runner.scratch.parent, settings={"shared_buffers": "256MB"}
        ) as server:
            yield server

    def round(self, server: PostgresServer, rows: Sequence[Row]) -> None:
        for writers in WRITERS:
            for row in rows:
                self._progress(f"PostgreSQL, {writers} writers: {row.label}")
                self._note(server, row.key, writers, partial(self._run, row, writers))
        for nodes in (1, 2):
            self._progress(f"PostgreSQL, {nodes} nodes")
            self._note(server, "nodes", nodes, partial(self._nodes, nodes))

    def scale(self, server: PostgresServer, runs: int, sessions: int) -> None:
        self._progress(f"PostgreSQL, {sessions:,} sessions")
        with database(server) as few:
            row = replace(SCALE, options={**SCALE.options, "few_url": few})
            self._note(server, "scale", 0, partial(self._scale, row, runs, sessions))

    def _run(self, row: Row, writers: int, url: str) -> dict[str, Any]:
        return self._runner.run(row, _job(row, url, writers=writers, seconds=self._seconds))

    def _scale(self, row: Row, runs: int, sessions: int, url: str) -> dict[str, Any]:
        return self._runner.run(row, _job(row, url, runs=runs, size=sessions))

    def _nodes(self, nodes: int, url: str) -> dict[str, Any]:
        """Turns of so many nodes on one database at the same time, added up."""
        seconds, writers = 2 * self._seconds, TOGETHER // nodes
        rows = [replace(NODE, options={"name": f"node-{which}"}) for which in range(nodes)]
        jobs = [_job(row, url, writers=writers, seconds=seconds) for row in rows]
        with ThreadPoolExecutor(nodes) as together:
            done = list(together.map(partial(self._runner.run, NODE), jobs))
        return {"per_second": sum(each["per_second"] for each in done)}

    def _note(
        self, server: PostgresServer, key: str, setting: int, measure: Callable[[str], dict[str, Any]]
    ) -> None:
        if key in self.figures.unmeasured:
            return
        try:
            with database(server) as url:
                self.figures.add(key, setting, measure(url))
        except Unmeasured as reason:
            self.figures.unmeasured[key] = str(reason)


def _job(row: Row, url: str, **more: Any) -> Job:
    return Job(row.case, url, options=row.options, **more)


@contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    name = server.new_database()
    try:
        yield server.url(name, tcp=True)
    finally:
        server.drop(name)
