"""Prints the API table, and compares it with its targets."""

from __future__ import annotations

from collections.abc import Sequence

from api import CLIENTS, DIRECT, ROWS, ApiRow
from figures import Figures
from report import heading, number, scaled, table, verdicts
from targets import SAME, Target

RECOVERY = 1.05
"""What turns that finish themselves may cost."""
HEADROOM = 3
"""How many times what is measured the mock and the clients must manage by themselves."""


def print_api(figures: Figures) -> None:
    heading(
        "API overhead in front of a fast mock model: one process, 1 KB messages and replies, FULL durability"
    )
    print_rates(figures)
    print_streams(figures)
    print_headroom(figures)
    ours, bare = figures.of("help", "seconds"), figures.of("help", "bare_seconds")
    if ours is not None and bare is not None:
        print(f"`holdfast --help`: {ours:.3f} s; a Python that does nothing: {bare:.3f} s.")
    verdicts(api_targets(figures))


def print_rates(figures: Figures) -> None:
    header = [
        "path",
        *(f"req/s at {clients}" for clients in CLIENTS),
        "p50 / p99 ms at 16",
        "CPU µs a request (rounds)",
        "of its mock",
    ]
    header += ["× LiteLLM at 16", "of the journalled at 16"]
    lines = []
    for row in ROWS:
        p50, p99 = (figures.of(row.key, name, 16) for name in ("p50_ms", "p99_ms"))
        beside = [figures.ratio("per_second", row.key, other, 16) for other in ("litellm", "journalled")]
        lines.append(
            [
                named(row, figures),
                *(number(figures.of(row.key, "per_second", clients), 0) for clients in CLIENTS),
                f"{number(p50, 1)} / {number(p99, 1)}",
                spread(figures, row.key, "cpu_us"),
                spread(figures, row.key, "mock_cpu_us"),
                *(number(ratio.value if ratio else None, 2) for ratio in beside),
            ]
        )
    table(header, lines)
    print("\nA mock does the same work in every round: where its CPU time differs, the machine did.")


def spread(figures: Figures, key: str, name: str) -> str:
    """The median of a figure at 16 clients, and its range over the rounds."""
    rounds = figures.within(key, name, setting=16)
    if rounds is None:
        return number(None, 0)
    return f"{rounds.value:.0f} ({min(rounds.rounds):.0f}–{max(rounds.rounds):.0f})"


def print_streams(figures: Figures) -> None:
    """Added times are at one client. A chunk costs less where many arrive together, hence both figures."""
    print(
        "\nAdded to asking directly, at one client. CPU µs a chunk: one more of 2,000 that come back to back;"
    )
    print("paced: a 40th of the whole request, 16 streams at once, each 40 chunks 5 ms apart.\n")
    header = ["path", "added p50 µs", "added first token µs", "first token ms, p50 / p99 of 16 streams"]
    header += ["CPU µs a chunk", "paced, all in", "RSS MB, idle / after", "ready s"]
    lines = []
    for row in ROWS:
        among = [figures.of(row.key, name) for name in ("first_among_ms", "first_among_p99_ms")]
        memory = [figures.of(row.key, name) for name in ("idle_mb", "after_mb")]
        own = row.key == DIRECT
        lines.append(
            [
                row.label,
                "–" if own else number(scaled(figures.of(row.key, "added_p50_ms", 1), 1e3), 0),
                "–" if own else number(scaled(figures.of(row.key, "added_first_ms"), 1e3), 0),
                " / ".join(number(value, 1) for value in among),
                number(figures.of(row.key, "chunk_cpu_us"), 1),
                number(figures.of(row.key, "paced_chunk_cpu_us"), 0),
                " / ".join(number(value, 0) for value in memory),
                number(figures.of(row.key, "ready_seconds"), 2),
            ]
        )
    table(header, lines)


def print_headroom(figures: Figures) -> None:
    """Whether the mock and the clients could have been what was measured."""
    limit = figures.of(DIRECT, "per_second", 16)
    others = [figures.of(row.key, "per_second", 16) for row in ROWS if row.key != DIRECT]
    fastest = max((rate for rate in others if rate is not None), default=None)
    if limit is None or fastest is None:
        return
    enough = "enough" if limit >= HEADROOM * fastest else f"too little: less than {HEADROOM} ×"
    print(f"\nThe mock and the clients alone manage {limit / fastest:.1f} × the fastest server: {enough}.")


def named(row: ApiRow, figures: Figures) -> str:
    """The row's label, and if it has no figures, why."""
    return f"{row.label}: {figures.unmeasured[row.key]}" if row.key in figures.unmeasured else row.label


def api_targets(figures: Figures) -> Sequence[Target]:
    def rate(key: str, beside: str, at_least: float) -> Target:
        other = {"litellm": "LiteLLM", "journalled": "the journalled pass-through"}[beside]
        sentence = f"{labels[key]} / {other}, 16 clients"
        return Target(sentence, figures.ratio("per_second", key, beside, 16), at_least)

    def processor(key: str) -> Target:
        sentence = f"processor time of a plain request, {labels[key].removeprefix('holdfast, ')}, 16 clients"
        return Target(sentence, figures.within(key, "cpu_us", setting=16), at_most=1000, unit="µs")

    def value(sentence: str, name: str, at_most: float, unit: str, key: str = "holdfast") -> Target:
        return Target(sentence, figures.within(key, name), at_most=at_most, unit=unit)

    labels = {row.key: row.label for row in ROWS}
    return [
        rate("holdfast", "litellm", 15),
        rate("opening", "litellm", 15),
        rate("holdfast", "journalled", 0.35),
        rate("opening", "journalled", 0.35),
        processor("holdfast"),
        processor("opening"),
        Target(
            "processor time of a request, usage misreported / reported truly, 16 clients",
            figures.ratio("cpu_us", "misreported", "holdfast", 16),
            at_most=SAME,
        ),
        Target(
            'processor time of a request, recover = "all" / "never", 16 clients',
            figures.ratio("cpu_us", "recovering", "not_recovering", 16),
            at_most=RECOVERY,
        ),
        value("added time to the first token, p50", "added_first_ms", 3, "ms"),
        Target(
            "time to the first token of 16 streams, p50 / the journalled pass-through",
            figures.ratio("first_among_ms", "holdfast", "journalled"),
            at_most=2,
        ),
        value("processor time of a streamed chunk", "chunk_cpu_us", 40, "µs"),
        value("resident memory, idle", "idle_mb", 75, "MB"),
        value("from start to ready", "ready_seconds", 0.8, "s"),
        value("holdfast --help", "seconds", 0.25, "s", "help"),
    ]
