"""Prints what was measured as Markdown tables that also read well in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from contestants import WRITERS, Row
from figures import Figures
from targets import (
    Target,
    append_targets,
    history_targets,
    open_targets,
    postgres_targets,
    resolve_targets,
    sweep_targets,
)

NOT_MEASURED = "–"
SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def print_append(figures: Figures, rows: Sequence[Row]) -> None:
    heading("Durable append: 1 KB messages, acknowledged after commit, synchronous=FULL, messages a second")
    header = ["store", *(f"{n} writer{'s' * (n > 1)}" for n in WRITERS)]
    header += ["p50 ms at 1", "p50 / p99 ms at 64", "× Hermes at 64", "of group commit at 64"]
    lines = []
    for row in rows:
        rates = [number(figures.of(row.key, "per_second", writers), 0) for writers in WRITERS]
        p50, p99 = (figures.of(row.key, name, 64) for name in ("p50_ms", "p99_ms"))
        beside = [figures.ratio("per_second", row.key, other, 64) for other in ("hermes", "group")]
        lines.append(
            [
                named(row, figures),
                *rates,
                number(figures.of(row.key, "p50_ms", 1), 2),
                f"{number(p50, 1)} / {number(p99, 1)}",
                *(number(ratio.value if ratio else None, 2) for ratio in beside),
            ]
        )
    table(header, lines)
    durability(figures, rows)
    index_lag(figures)
    single(figures)
    verdicts(append_targets(figures))


def print_history(figures: Figures, rows: Sequence[Row], messages: int) -> None:
    heading(f"History as the model needs it: {messages:,} messages of 1 KB, median")
    lines = []
    for row in rows:
        ratio = figures.ratio("ms", row.key, "joined")
        lines.append(
            [
                named(row, figures),
                number(figures.of(row.key, "ms"), 2),
                number(ratio.value if ratio else None, 2),
            ]
        )
    table(["store", "ms", "× joined, never decoded"], lines)
    verdicts(history_targets(figures))


def print_resolve(figures: Figures, rows: Sequence[Row]) -> None:
    heading("Resolving a stale session id to the newest session of its line")
    lines = [
        [f"{length:,}", number(scaled(figures.of("resolve", name), 1e3), 0)]
        for length, name in zip(rows[0].options["lines"], ("short_ms", "long_ms"), strict=True)
    ]
    table(["sessions in the line", "µs"], lines)
    own_troubles(figures)
    verdicts(resolve_targets(figures))


def print_open(figures: Figures, sessions: int) -> None:
    heading("A store full of sessions: from nothing to the first resolved key, a page of them, an idle sweep")
    lines = [
        [held, *(number(figures.of("open", f"{name}_{what}"), 2) for what in ("ms", "page_ms", "sweep_ms"))]
        for held, name in (("1", "empty"), (f"{sessions:,}", "full"))
    ]
    table(["sessions in it", "open ms", "page of 20 ms", "idle sweep ms"], lines)
    own_troubles(figures)
    verdicts(open_targets(figures))


def print_sweep(figures: Figures, few: int, many: int) -> None:
    heading("A sweep of open sessions: with nothing due, and with 100 whose reset is due")
    lines = [
        [f"{held:,}", *(number(figures.of("sweep", f"{name}_{what}_ms"), 2) for what in ("idle", "due"))]
        for held, name in ((few, "few"), (many, "many"))
    ]
    table(["open sessions", "nothing due, ms", "100 due, ms"], lines)
    own_troubles(figures)
    verdicts(sweep_targets(figures))


def print_postgres(figures: Figures, rows: Sequence[Row], sessions: int) -> None:
    heading("PostgreSQL: 1 KB messages, acknowledged after a synced commit, messages a second")
    header = ["store", *(f"{n} writer{'s' * (n > 1)}" for n in WRITERS)]
    header += ["p50 ms at 1", "p50 / p99 ms at 64", "of group commit at 64"]
    lines = []
    for row in rows:
        p50, p99 = (figures.of(row.key, name, 64) for name in ("p50_ms", "p99_ms"))
        ratio = figures.ratio("per_second", row.key, "group", 64)
        lines.append(
            [
                named(row, figures),
                *(number(figures.of(row.key, "per_second", writers), 0) for writers in WRITERS),
                number(figures.of(row.key, "p50_ms", 1), 2),
                f"{number(p50, 1)} / {number(p99, 1)}",
                number(ratio.value if ratio else None, 2),
            ]
        )
    table(header, lines)
    turns = [number(figures.of("nodes", "per_second", nodes), 0) for nodes in (1, 2)]
    print(f"\nTurns a second of 64 writers on one node: {turns[0]}; spread over two nodes: {turns[1]}.")
    heading("PostgreSQL: one store beside a larger one")
    lines = [
        [held, *(number(figures.of("scale", f"{name}_{what}_ms"), 2) for what in ("idle", "due", "page"))]
        for held, name in (("10,000", "few"), (f"{sessions:,}", "many"))
    ]
    table(["open sessions", "sweep, nothing due, ms", "sweep, 100 due, ms", "page of 20, ms"], lines)
    for key in ("nodes", "scale"):
        if key in figures.unmeasured:
            print(f"\n{key}: {figures.unmeasured[key]}")
    verdicts(postgres_targets(figures))


def own_troubles(figures: Figures) -> None:
    """Why a table that only holdfast is in has no figures."""
    for reason in figures.unmeasured.values():
        print(f"\nholdfast: {reason}")


def heading(text: str) -> None:
    print(f"\n## {text}\n")


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """The first column to the left, the others to the right."""
    widths = [max(len(line[column]) for line in [header, *lines]) for column in range(len(header))]

    def row(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join([first, *rest])} |"

    print(row(header))
    print(f"|{'-' * (widths[0] + 2)}|" + "|".join("-" * (width + 1) + ":" for width in widths[1:]) + "|")
    for line in lines:
        print(row(line))


def named(row: Row, figures: Figures) -> str:
    """The row's label, and if it has no figures, why."""
    return f"{row.label}: {figures.unmeasured[row.key]}" if row.key in figures.unmeasured else row.label


def durability(figures: Figures, rows: Sequence[Row]) -> None:
    """Where FULL had to be set, and what the store would have done by itself."""
    print("\nEach commit is synced to disk: where `synchronous=FULL` was set, and what it was before.")
    said = set()
    for row in rows:
        place = figures.fact(row.key, "set_at")
        if place is None or (row.script, place) in said:
            continue
        said.add((row.script, place))
        default = SYNCHRONOUS.get(figures.fact(row.key, "synchronous_default"), "its own choice")
        version = figures.fact(row.key, "sqlite")
        name = f"{row.package.name} {row.package.version}" if row.package else row.script.replace("_", " ")
        print(f"- {name}: SQLite {version}, set at {place}; before: {default}")


def index_lag(figures: Figures) -> None:
    """The search index is outside the commit path: how far behind it was, and how long until it caught up."""
    lag, drain = (figures.of("append", name, 64) for name in ("index_lag", "index_drain_ms"))
    if lag is not None and drain is not None:
        print(f"\nholdfast's search index at 64 writers: {lag:,.0f} messages behind at the end, ", end="")
        print(f"caught up {drain / 1e3:.2f} s later.")


def single(figures: Figures) -> None:
    """What one append costs beyond its commit; on a slow disk the ratio alone would hide it."""
    ours, bare = (figures.of("single", name) for name in ("p50_ms", "bare_p50_ms"))
    if ours is not None and bare is not None:
        print(f"One append of a single writer: p50 {ours:.2f} ms; one bare commit beside it: {bare:.2f} ms.")
    elif "single" in figures.unmeasured:
        print(f"One append of a single writer: {figures.unmeasured['single']}")


def verdicts(targets: Sequence[Target]) -> None:
    print("\nTargets, in this run:")
    for target in targets:
        print(f"- {target.verdict()}")


def number(value: float | None, digits: int) -> str:
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}"


def scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
