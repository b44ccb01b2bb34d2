"""How long a fault suite runs: a version that fits into `make test`, and the full one of `make soak`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

FACTOR = float(os.environ.get("HOLDFAST_TEST_FAULT_TIME") or 0.25)
"""How much of its `seconds` a short version goes on for. Its `least` rounds are always done."""


@dataclass(frozen=True)
class Size:
    name: str
    least: int
    seconds: float = 0.0

    def rounds(self) -> Iterator[int]:
        """Numbers from 0: at least `least`, and on until `seconds` have passed."""
        until = time.monotonic() + self.seconds
        number = 0
        while number < self.least or time.monotonic() < until:
            yield number
            number += 1

    def __str__(self) -> str:
        return self.name


def short_and_soak(short: Size, soak: Size) -> pytest.MarkDecorator:
    """Run the test with each of these as its `size`; the second only in a soak."""
    short = replace(short, seconds=short.seconds * FACTOR)
    return pytest.mark.parametrize("size", [short, pytest.param(soak, marks=pytest.mark.soak)], ids=str)
