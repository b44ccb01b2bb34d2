"""The figures of all rounds of a run, by row, and ratios of them.

A ratio is computed within each round; the median of the rounds is reported. Rounds are interleaved across the
stores, so a disturbance of the machine in one round affects both sides of the ratio.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """The median of the rounds' ratios, and each of them."""

    rounds: tuple[float, ...]

    @property
    def value(self) -> float:
        return median(self.rounds)


@dataclass
class Figures:
    """Results by row and setting (the number of writers, or 0), one per round; or why a row has none."""

    rounds: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    unmeasured: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, setting: int, result: dict[str, Any]) -> None:
        self.rounds[key, setting].append(result)

    def of(self, key: str, name: str, setting: int = 0) -> float | None:
        """The median of the rounds, or None if the row was not measured."""
        values = self._values(key, name, setting)
        return median(values) if values else None

    def ratio(self, name: str, above: str, below: str, setting: int = 0) -> Ratio | None:
        """`above` over `below`, round by round."""
        pairs = list(
            zip(self._values(above, name, setting), self._values(below, name, setting), strict=False)
        )
        return Ratio(tuple(a / b for a, b in pairs)) if pairs else None

    def between(self, name: str, key: str, above: int, below: int) -> Ratio | None:
        """One row in two settings, round by round."""
        pairs = list(zip(self._values(key, name, above), self._values(key, name, below), strict=False))
        return Ratio(tuple(a / b for a, b in pairs)) if pairs else None

    def within(self, key: str, above: str, below: str | None = None, setting: int = 0) -> Ratio | None:
        """Of one row: the figure `above`, or how it compares with `below`, round by round."""
        values = self._values(key, above, setting)
        others = self._values(key, below, setting) if below else [1.0] * len(values)
        return Ratio(tuple(a / b for a, b in zip(values, others, strict=True))) if values else None

    def fact(self, key: str, name: str) -> Any:
        """Something every round of a row says alike, such as its SQLite version."""
        for (row, _), results in self.rounds.items():
            if row == key and results and name in results[0]:
                return results[0][name]
        return None

    def _values(self, key: str, name: str, setting: int) -> list[float]:
        if key in self.unmeasured:
            return []
        return [result[name] for result in self.rounds.get((key, setting), [])]

    def as_json(self) -> dict[str, Any]:
        return {
            "unmeasured": self.unmeasured,
            "rounds": [
                {"row": key, "writers": setting or None, "results": results}
                for (key, setting), results in self.rounds.items()
            ],
        }
