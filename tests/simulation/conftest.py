"""Prints a simulation run's line of figures after the last test."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

_lines: list[str] = []


@pytest.fixture
def figures() -> Callable[[str], None]:
    """Call it with the line."""
    return _lines.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _lines:
        terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With pytest-xdist nobody but the worker has the line."""
    if hasattr(session.config, "workerinput") and _lines:
        capture = session.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            sys.stderr.write("".join(f"\n{line}" for line in _lines) + "\n")
            sys.stderr.flush()
