"""Computes the coordinates of the bar chart and of the session graph. Templates draw them as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..domain.figures import Pulse
from ..domain.sessions import Edge, Session, SessionState
from ..domain.turns import TurnStatus
from ..domain.views import Summary

# --- bars ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True, slots=True)
class Chart:
    width: int
    height: int
    bars: tuple[Bar, ...]
    highest: int
    total: int
    rate: float
    """The mean count per step, over the last LATELY complete steps."""


LATELY = 5
GOOD = "good"
BAD = "bad"


def chart_of(pulse: Pulse, width: int = 360, height: int = 64) -> Chart:
    """Stacked bars of the turns that ended in each step: completed ones below, the others on top."""
    counts = [(each.get(TurnStatus.COMPLETED, 0), sum(each.values())) for each in pulse.ended]
    highest = max((total for _, total in counts), default=0)
    wide = width / max(1, len(counts))
    bars: list[Bar] = []
    for place, (good, total) in enumerate(counts):
        x, above = place * wide, 0.0
        for kind, number in ((GOOD, good), (BAD, total - good)):
            if number:
                tall = max(1.5, number / highest * (height - 2))
                above += tall
                bars.append(
                    Bar(round(x, 2), round(height - above, 2), round(wide * 0.8, 2), round(tall, 2), kind)
                )
    lately = [total for _, total in counts[-LATELY - 1 : -1]]
    rate = sum(lately) / max(1, len(lately))
    return Chart(width, height, tuple(bars), highest, sum(total for _, total in counts), rate)


# --- session graph -------------------------------------------------------------------------------------

ROW = 46
TRUNK = 18
BRANCH = 46
MOST_SHOWN = 24


@dataclass(frozen=True, slots=True)
class Knot:
    """A node of the graph: a session, or a conversation that was forked from one."""

    session: Session
    state: SessionState
    x: int
    y: int
    here: bool
    """True: the page shows this session."""
    fork: bool = False
    edge: str = ""
    """The kind of edge from its parent."""
    summary: str = ""
    """The summary that replaces older messages in its context, if a compaction opened it."""


@dataclass(frozen=True, slots=True)
class Picture:
    knots: tuple[Knot, ...]
    strands: tuple[tuple[str, str], ...]
    """The edges of the graph: kind and SVG path of each."""
    height: int
    left_out: int
    """Older sessions that are not drawn."""
    came_from: str | None
    """The session this conversation was forked from."""


def picture_of(
    line: Sequence[Session], forks: Sequence[Session], states: Mapping[str, SessionState], here: str
) -> Picture:
    """The graph of a conversation's newest sessions, oldest on top, each with the forks from it."""
    shown = line[-MOST_SHOWN:]
    y, places, knots, strands = ROW // 2, {}, [], []
    for number, session in enumerate(shown):
        places[session.id] = y
        summary = summary_in(session)
        inside = session.edge if number and session.edge is not Edge.FORK else None
        edge = inside.value if inside else ""
        knots.append(
            Knot(session, states[session.id], TRUNK, y, session.id == here, edge=edge, summary=summary)
        )
        above = places.get(session.parent_id or "") if number else None
        if above is not None:
            strands.append((edge or "next", _strand(above, y)))
        y += ROW
        for fork in [each for each in forks if each.parent_id == session.id][-MOST_SHOWN:]:
            strands.append(("fork", f"M{TRUNK} {places[session.id]} C{TRUNK} {y} {TRUNK} {y} {BRANCH} {y}"))
            knots.append(Knot(fork, states[fork.id], BRANCH, y, fork.id == here, fork=True, edge="fork"))
            y += ROW
    first = line[0] if line else None
    came_from = first.parent_id if first is not None and first.edge in (Edge.FORK, Edge.SUBAGENT) else None
    return Picture(tuple(knots), tuple(strands), y - ROW // 2 + 4, len(line) - len(shown), came_from)


def summary_in(session: Session) -> str:
    """The summary that replaces older messages in a session that a compaction opened; else empty."""
    if session.edge is not Edge.COMPACTION:
        return ""
    return "\n\n".join(part.text for part in session.view.parts if isinstance(part, Summary))


def _strand(above: int, below: int) -> str:
    """The SVG path of an edge: straight to the next row, in a curve around rows in between."""
    if below - above <= ROW:
        return f"M{TRUNK} {above} V{below}"
    middle = (above + below) // 2
    return (
        f"M{TRUNK} {above} C4 {above + ROW // 2} 4 {middle} 4 {middle} S4 {below - ROW // 2} {TRUNK} {below}"
    )
