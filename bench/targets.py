"""The performance targets of holdfast, and whether a run met them.

A missed target is printed as missed, one that could not be measured as not measured. Neither changes the exit
status: on a shared machine a single run proves little either way.
"""

from __future__ import annotations

from dataclasses import dataclass

from figures import Figures, Ratio

SAME = 1.25
"""Two costs that do not differ, as far as a shared machine can tell."""


@dataclass(frozen=True)
class Target:
    """A bound on a measured ratio (`unit` ×) or value."""

    sentence: str
    measured: Ratio | None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "×"

    def verdict(self) -> str:
        bound = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        opening = f"{self.sentence} ({bound} {self.unit})"
        if self.measured is None:
            return f"? {opening}: not measured"
        value, rounds = self.measured.value, sorted(self.measured.rounds)
        met = value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0)
        spread = f" (rounds {rounds[0]:.2f} to {rounds[-1]:.2f})" if len(rounds) > 1 else ""
        return f"{'✓' if met else '✗'} {opening}: {value:.2f} {self.unit}{spread}"


def append_targets(figures: Figures) -> list[Target]:
    def rate(above: str, below: str) -> Ratio | None:
        return figures.ratio("per_second", above, below, 64)

    return [
        Target("append under a lease / Hermes as shipped, 64 writers", rate("append", "hermes"), 18),
        Target("append under a lease / Hermes without triggers", rate("append", "hermes_bare"), 5),
        Target("append under a lease / bare group commit", rate("append", "group"), 0.5),
        Target("begin turn / Hermes as shipped", rate("begin", "hermes"), 7),
        Target(
            "begin turn + commit reply, 64 writers",
            figures.within("turn", "per_second", setting=64),
            3000,
            unit="turns/s",
        ),
        Target(
            "p50 of one append / one bare FULL commit, 1 writer, taking turns",
            figures.within("single", "p50_ms", "bare_p50_ms"),
            at_most=1.7,
        ),
    ]


def history_targets(figures: Figures) -> list[Target]:
    return [
        Target("cold context / joined, never decoded", figures.ratio("ms", "cold", "joined"), at_most=1.3),
        Target(
            "hot context, on the node that served the last turn",
            figures.within("hot", "ms"),
            at_most=0.3,
            unit="ms",
        ),
    ]


def resolve_targets(figures: Figures) -> list[Target]:
    ratio = figures.within("resolve", "long_ms", "short_ms")
    return [Target("resolving in a line of 2,000 / in a line of 2: the same", ratio, at_most=SAME)]


def open_targets(figures: Figures) -> list[Target]:
    return [
        Target(
            "opening the full store / the empty one: the same",
            figures.within("open", "full_ms", "empty_ms"),
            at_most=SAME,
        ),
        Target(
            "a page of sessions of the full store",
            figures.within("open", "full_page_ms"),
            at_most=1,
            unit="ms",
        ),
        Target(
            "a sweep of the full store with nothing due",
            figures.within("open", "full_sweep_ms"),
            at_most=1,
            unit="ms",
        ),
    ]


def sweep_targets(figures: Figures) -> list[Target]:
    return [
        Target(
            "resetting 100 among very many sessions / among 10,000: the same",
            figures.within("sweep", "many_due_ms", "few_due_ms"),
            at_most=SAME,
        ),
        Target(
            "sweeping very many sessions with nothing due / 10,000: the same",
            figures.within("sweep", "many_idle_ms", "few_idle_ms"),
            at_most=SAME,
        ),
    ]


def postgres_targets(figures: Figures) -> list[Target]:
    def rate(above: str, below: str) -> Ratio | None:
        return figures.ratio("per_second", above, below, 64)

    def larger(what: str) -> Ratio | None:
        return figures.within("scale", f"many_{what}_ms", f"few_{what}_ms")

    return [
        Target("append under a lease / bare group commit, 64 writers", rate("append", "group"), 0.4),
        Target("append under a lease / openai-agents", rate("append", "openai"), 12),
        Target("append under a lease / langgraph", rate("append", "langgraph"), 16),
        Target("begin turn + commit reply / append under a lease", rate("turn", "append"), 0.3),
        Target("turns of two nodes / of one", figures.between("per_second", "nodes", 2, 1), 1.6),
        Target("a sweep with nothing due, of very many sessions / of 10,000", larger("idle"), at_most=SAME),
        Target("resetting 100 among very many sessions / among 10,000", larger("due"), at_most=SAME),
        Target("a page of very many sessions / of 10,000", larger("page"), at_most=SAME),
        Target("a page of 10,000 sessions", figures.within("scale", "few_page_ms"), at_most=2, unit="ms"),
        Target("a page of very many", figures.within("scale", "many_page_ms"), at_most=2, unit="ms"),
    ]
