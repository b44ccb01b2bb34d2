"""PostgreSQL: two writes meet at every statement, and it is as if one had come after the other."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.postgres_gate import patient_locks

from .conftest import Tell
from .schedules import ACTS, SCENES, combinations, stage
from .sizes import Size, short_and_soak

pytestmark = pytest.mark.postgres

CERTAIN = (
    ("resting", "leave", "begin"),
    ("running", "leave", "interrupt"),
    ("resting", "begin a new key", "begin a new key"),
)
"""Run first, however short it is: these went wrong once."""


@short_and_soak(Size("sample", 3, 15.0), Size("every pair", len(SCENES) * len(ACTS) ** 2))
async def test_two_writes_that_meet_are_as_if_one_came_after_the_other(
    new_database: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    size: Size,
    figures: Tell,
) -> None:
    patient_locks(monkeypatch)
    began = time.monotonic()
    async with stage(new_database()) as staged:
        pairs = (*CERTAIN, *combinations(seed))
        for _, pair in zip(size.rounds(), pairs, strict=False):
            await staged.both(*pair)
            assert len(staged.tally.violations) < 20, staged.tally.violations
    tally = staged.tally
    figures(
        f"schedules, {size}: {tally.pairs:,} pairs of writes, {tally.schedules:,} schedules in "
        f"{time.monotonic() - began:.0f} s, {len(tally.violations)} violations"
    )
    assert tally.violations == []
