"""Runs one measurement in a separate process; returns its figures, or the reason there are none.

A run's claims are verified: it must have committed with `synchronous=FULL`, and every message it counts as
acknowledged must be in the database afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contestants import Row
from environments import CannotInstall, Package, interpreter
from measure import Job

HERE = Path(__file__).resolve().parent
FULL = 2
PATIENCE_SECONDS = 240


class Unmeasured(Exception):
    """Why a row has no figures."""


class Runner:
    """Measures rows on a scratch directory; `install` comes first."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._pythons: dict[Package | None, Path] = {None: Path(sys.executable)}
        self._hopeless: dict[Package | None, str] = {}

    def install(self, rows: Sequence[Row]) -> None:
        """Have every environment ready before anything is measured."""
        for package in {row.package for row in rows if row.package}:
            try:
                self._pythons[package] = interpreter(package)
            except CannotInstall as error:
                self._hopeless[package] = f"not installed: {error}"

    def run(self, row: Row, job: Job) -> dict[str, Any]:
        """The figures of this job. Raises Unmeasured."""
        if row.package in self._hopeless:
            raise Unmeasured(self._hopeless[row.package])
        python = self._pythons[row.package]
        return _checked(self._execute(python, HERE / "peers" / f"{row.script}.py", job))

    def fresh(self, row: Row, **job: Any) -> dict[str, Any]:
        """Run on a new database, and remove it afterwards."""
        directory = self.scratch / "fresh"
        directory.mkdir()
        try:
            case = job.pop("case", row.case)
            return self.run(row, Job(case, str(directory / "bench.db"), options=row.options, **job))
        finally:
            shutil.rmtree(directory)

    def kept(self, row: Row, **job: Any) -> dict[str, Any]:
        """Run on a database that stays for the next round: the first run fills it."""
        directory = self.scratch / f"{row.script}-{row.case}"
        directory.mkdir(exist_ok=True)
        return self.run(row, Job(row.case, str(directory / "bench.db"), options=row.options, **job))

    def _execute(self, python: Path, script: Path, job: Job) -> dict[str, Any]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "src")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HERMES_HOME": str(self.scratch / "hermes-home"),
            "LANGSMITH_TRACING": "false",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        try:
            done = subprocess.run(
                [str(python), str(script), job.encode()],
                env=environment,
                cwd=self.scratch,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unmeasured(f"gave no answer within {PATIENCE_SECONDS} s") from error
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise Unmeasured(f"failed: {last[0][:200]}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if answer.get("synchronous", FULL) != FULL:
        raise Unmeasured(f"ran with synchronous={answer['synchronous']}, not FULL: not comparable")
    if answer.get("stored", 0) < answer.get("acknowledged", 0):
        raise Unmeasured(f"lost messages: {answer['acknowledged']} acknowledged, {answer['stored']} stored")
    return answer
