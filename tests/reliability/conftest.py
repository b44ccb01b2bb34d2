"""Shared by the fault suites: how long they run, from which seed, and where their figures go.

Each suite ends with one line of figures. They are part of the test's report and are printed after the last
test, also under `-q`. With pytest-xdist the workers print them, because the process that writes the summary
does not load this file.

    HOLDFAST_TEST_SOAK=1        run the full versions (`make soak`)
    HOLDFAST_TEST_FAULT_TIME=1  the short versions run four times as long as in `make test`
    HOLDFAST_TEST_SEED=n        replay a failure: its seed is in the failed test's output
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent

Tell = Callable[[str], None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without HOLDFAST_TEST_SOAK=1 the full versions are left out, whatever `-m` says."""
    if os.environ.get("HOLDFAST_TEST_SOAK") == "1":
        return
    long = [item for item in items if HERE in item.path.parents and item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture
def seed() -> int:
    """What everything random in the test follows from. Shown when the test fails."""
    chosen = int(os.environ.get("HOLDFAST_TEST_SEED") or random.SystemRandom().randrange(1_000_000_000))
    print(f"seed {chosen}: replay with HOLDFAST_TEST_SEED={chosen}")
    return chosen


_lines: list[str] = []


@pytest.fixture
def figures() -> Tell:
    """Call it with the suite's line of figures."""
    return _lines.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _lines:
        terminalreporter.section("fault suites", sep="-")
        for line in _lines:
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        sys.stderr.write("".join(f"\n{line}" for line in _lines) + "\n" * bool(_lines))
        sys.stderr.flush()
