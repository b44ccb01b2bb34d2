"""Coordinates of the bar chart, the waterfall of turns and the session graph, which templates draw as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..domain.figures import FIRST_TOKEN
from ..domain.messages import Message
from ..domain.sessions import Edge, Session, SessionState
from ..domain.turns import Turn, TurnStatus
from ..domain.views import Summary

MILLISECOND = timedelta(milliseconds=1)


# --- bars ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True, slots=True)
class ChartStep:
    """One step of time: its bars, and what a pointer over it shows."""

    x: float
    width: float
    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    width: int
    height: int
    columns: tuple[ChartStep, ...]
    marks: tuple[str, ...]
    """Labels of the time axis, at equal distances from the first step to now."""
    highest: int
    total: int


GOOD = "good"
BAD = "bad"
MARKS = 5
LONG = timedelta(days=2)


def chart_of(
    ended: Sequence[Mapping[TurnStatus, int]],
    since: datetime,
    step: timedelta,
    width: int = 720,
    height: int = 96,
) -> Chart:
    """Stacked bars of the turns that ended in each step: completed ones below, the others on top. Times are
    written in the time zone of `since`."""
    highest = max((sum(each.values()) for each in ended), default=0)
    wide = width / max(1, len(ended))
    dated = step * len(ended) >= LONG
    columns = []
    for place, counts in enumerate(ended):
        good, total = counts.get(TurnStatus.COMPLETED, 0), sum(counts.values())
        begins = since + place * step
        said = [f"{number} {status.value}" for status, number in sorted(counts.items()) if number]
        title = f"{begins:%a %d %b, %H:%M} to {begins + step:%H:%M}: {', '.join(said) or 'no turns'}"
        x, above, bars = place * wide, 0.0, []
        for kind, number in ((GOOD, good), (BAD, total - good)):
            if number:
                tall = max(1.5, number / highest * (height - 2))
                above += tall
                bars.append(
                    Bar(round(x, 2), round(height - above, 2), round(wide * 0.8, 2), round(tall, 2), kind)
                )
        columns.append(ChartStep(round(x, 2), round(wide, 2), title, tuple(bars)))
    whole = step * len(ended)
    marks = [since + whole * mark / (MARKS - 1) for mark in range(MARKS - 1)]
    written = tuple(f"{each:%a %d %b}" if dated else f"{each:%H:%M}" for each in marks)
    total = sum(sum(each.values()) for each in ended)
    return Chart(width, height, tuple(columns), (*written, "now"), highest, total)


# --- waterfall -----------------------------------------------------------------------------------------

MOST_TURNS_DRAWN = 20


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a turn. Kinds: `wait` (for the first token), `model`, `tool`."""

    kind: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class TurnBar:
    turn: Turn
    milliseconds: float
    spans: tuple[Span, ...]


def waterfall_of(
    turns: Sequence[Turn], messages: Sequence[Message], now: datetime, width: int = 1000
) -> list[TurnBar]:
    """What the time of each turn went to, newest turn first, all on the scale of the longest.

    A turn's messages are stored as they come to be: the time before a reply is the model's, the time before
    a tool's result is the tool's. A turn whose messages are not given is one span of the model's.
    """
    shown = [turn for turn in turns if turn.first_seq][:MOST_TURNS_DRAWN]
    longest = max(((turn.ended_at or now) - turn.started_at for turn in shown), default=timedelta(0))
    scale = width / max(longest / MILLISECOND, 1)
    by_turn: dict[str | None, list[Message]] = {}
    for message in messages:
        by_turn.setdefault(message.turn_id, []).append(message)
    bars = []
    for turn in shown:
        end = turn.ended_at or now
        steps: list[tuple[str, str, datetime]] = []
        names: dict[str, str] = {}
        for message in by_turn.get(turn.id, ()):
            if message.role == "tool":
                name = names.get(str(message.content().get("tool_call_id")), "tool")
                steps.append(("tool", name, message.created_at))
            elif message.role == "assistant":
                steps.append(("model", "model", message.created_at))
                names |= _tool_names(message)
        if not steps or end - steps[-1][2] > MILLISECOND:
            steps.append(("model", "model", end))
        first = (turn.usage or {}).get(FIRST_TOKEN)
        if first and steps[0][0] == "model":
            begins = min(turn.started_at + first * MILLISECOND, steps[0][2])
            steps.insert(0, ("wait", "until the first token", begins))
        spans, at = [], turn.started_at
        for kind, name, until in steps:
            took = max(timedelta(0), until - at)
            x = (at - turn.started_at) / MILLISECOND * scale
            wide = max(took / MILLISECOND * scale, 1.0)
            spans.append(
                Span(
                    kind,
                    round(min(x, width - 1), 1),
                    round(wide, 1),
                    f"{name}: {duration(took / MILLISECOND)}",
                )
            )
            at = max(at, until)
        bars.append(TurnBar(turn, (end - turn.started_at) / MILLISECOND, tuple(spans)))
    return bars


def _tool_names(message: Message) -> dict[str, str]:
    """The names of the tools that a message calls, by the id of the call."""
    return {
        str(call.get("id")): str((call.get("function") or {}).get("name") or "tool")
        for call in message.content().get("tool_calls") or ()
    }


def duration(milliseconds: float | None) -> str:
    """A span of time: `850 ms`, `2.4 s`, `1 min 5 s`, `3 h 10 min`."""
    if milliseconds is None:
        return "—"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# --- session graph -------------------------------------------------------------------------------------

ROW = 46
TRUNK = 18
BRANCH = 46
MOST_SHOWN = 24
MOST_DRAWN = 1_000
"""Sessions of a line that are drawn if all are asked for."""


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
    line: Sequence[Session],
    forks: Sequence[Session],
    states: Mapping[str, SessionState],
    here: str,
    most: int = MOST_SHOWN,
) -> Picture:
    """The graph of a conversation's newest sessions, `most` of them, oldest on top, each with the forks from
    it."""
    shown = line[-most:]
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
        for fork in [each for each in forks if each.parent_id == session.id][-most:]:
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
