"""The clock of promises in seconds: it never runs faster than time, and stops while the machine is busy."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests import quiet_time

BUSY = "some avg10=96.85 avg60=96.64 avg300=65.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def test_time_in_which_a_process_waited_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressure = tmp_path / "cpu"
    monkeypatch.setattr(quiet_time, "PRESSURE", pressure)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    pressure.write_text(BUSY.format(2_500_000))
    assert quiet_time.now() == 97.5
    pressure.write_text(BUSY.format(0))
    assert quiet_time.now() == 100.0


def test_a_kernel_that_does_not_count_it_has_the_ordinary_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet_time, "PRESSURE", tmp_path / "none")
    before = time.monotonic()
    assert before <= quiet_time.now() <= time.monotonic()


def test_it_never_runs_faster_than_time() -> None:
    before, quiet = time.monotonic(), quiet_time.now()
    deadline = before + 0.05
    while time.monotonic() < deadline:
        pass
    assert -0.01 < quiet_time.now() - quiet <= time.monotonic() - before + 0.01
