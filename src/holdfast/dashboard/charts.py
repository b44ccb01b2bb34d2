"""Coordinates of the bar chart, the waterfall of turns and the session graph, which templates draw as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

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
NEVER_QUEUED: Mapping[str, datetime] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a turn. Kinds: `queue` (it waits to begin), `wait` (for the first token), `model`, `tool`."""

    kind: str
    name: str
    x: float
    width: float
    milliseconds: float

    @property
    def title(self) -> str:
        return f"{self.name}: {duration(self.milliseconds)}"


@dataclass(frozen=True, slots=True)
class TurnBar:
    turn: Turn
    milliseconds: float
    spans: tuple[Span, ...]


def waterfall_of(
    turns: Sequence[Turn],
    messages: Sequence[Message],
    now: datetime,
    *,
    queued: Mapping[str, datetime] = NEVER_QUEUED,
    most: int = MOST_TURNS_DRAWN,
    own_scale: bool = False,
    width: int = 1000,
) -> list[TurnBar]:
    """What the time of each turn went to, newest turn first, all on the scale of the longest, or each on a
    scale of its own.

    A turn's messages are stored as they come to be: the time before a reply is the model's, the time before
    a tool's result is the tool's. A turn whose messages are not given is one span of the model's. `queued`:
    when a turn was queued, by its id.
    """
    shown = [turn for turn in turns if turn.first_seq][:most]
    by_turn: dict[str | None, list[Message]] = {}
    for message in messages:
        by_turn.setdefault(message.turn_id, []).append(message)
    begins = {turn.id: min(queued.get(turn.id, turn.started_at), turn.started_at) for turn in shown}
    took = {turn.id: (turn.ended_at or now) - begins[turn.id] for turn in shown}
    longest = max(took.values(), default=timedelta(0))
    bars = []
    for turn in shown:
        scale = width / max((took[turn.id] if own_scale else longest) / MILLISECOND, 1)
        spans, at = [], begins[turn.id]
        for kind, name, until in _steps(turn, by_turn.get(turn.id, ()), at, turn.ended_at or now):
            spent = max(timedelta(0), until - at) / MILLISECOND
            x = min((at - begins[turn.id]) / MILLISECOND * scale, width - 1)
            spans.append(Span(kind, name, round(x, 1), round(max(spent * scale, 1.0), 1), spent))
            at = max(at, until)
        bars.append(TurnBar(turn, took[turn.id] / MILLISECOND, tuple(spans)))
    return bars


def _steps(
    turn: Turn, messages: Sequence[Message], begins: datetime, end: datetime
) -> list[tuple[str, str, datetime]]:
    """The kind, the name and the end of each part of a turn."""
    steps: list[tuple[str, str, datetime]] = []
    names: dict[str, str] = {}
    for message in messages:
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
        steps.insert(
            0, ("wait", "until the first token", min(turn.started_at + first * MILLISECOND, steps[0][2]))
        )
    if begins < turn.started_at:
        steps.insert(0, ("queue", "in the queue", turn.started_at))
    return steps


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
NO_WORDS: Mapping[str, str] = MappingProxyType({})
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
    words: str = ""
    """The first words of a person in it."""

    @property
    def name(self) -> str:
        """What tells it from the others: a fork's title or key; first words; its place in the line."""
        session = self.session
        if self.fork and (session.title or session.key):
            return session.title or session.key or ""
        return f"{session.ordinal}. {self.words}" if self.words else f"Session {session.ordinal}"


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
    *,
    row: int = ROW,
    words: Mapping[str, str] = NO_WORDS,
) -> Picture:
    """The graph of a conversation's newest sessions, `most` of them, oldest on top, each with the forks from
    it. `words`: the first words of sessions, by id."""
    shown = line[-most:]
    y, places, knots, strands = row // 2, {}, [], []
    for number, session in enumerate(shown):
        places[session.id] = y
        summary = summary_in(session)
        inside = session.edge if number and session.edge is not Edge.FORK else None
        edge = inside.value if inside else ""
        knots.append(
            Knot(
                session,
                states[session.id],
                TRUNK,
                y,
                session.id == here,
                edge=edge,
                summary=summary,
                words=words.get(session.id, ""),
            )
        )
        above = places.get(session.parent_id or "") if number else None
        if above is not None:
            strands.append((edge or "next", _strand(above, y, row)))
        y += row
        for fork in [each for each in forks if each.parent_id == session.id][-most:]:
            strands.append(("fork", f"M{TRUNK} {places[session.id]} C{TRUNK} {y} {TRUNK} {y} {BRANCH} {y}"))
            said = words.get(fork.id, "")
            knots.append(
                Knot(fork, states[fork.id], BRANCH, y, fork.id == here, fork=True, edge="fork", words=said)
            )
            y += row
    first = line[0] if line else None
    came_from = first.parent_id if first is not None and first.edge in (Edge.FORK, Edge.SUBAGENT) else None
    return Picture(tuple(knots), tuple(strands), y - row // 2 + 4, len(line) - len(shown), came_from)


def summary_in(session: Session) -> str:
    """The summary that replaces older messages in a session that a compaction opened; else empty."""
    if session.edge is not Edge.COMPACTION:
        return ""
    return "\n\n".join(part.text for part in session.view.parts if isinstance(part, Summary))


def _strand(above: int, below: int, row: int) -> str:
    """The SVG path of an edge: straight to the next row, in a curve around rows in between."""
    if below - above <= row:
        return f"M{TRUNK} {above} V{below}"
    middle = (above + below) // 2
    return (
        f"M{TRUNK} {above} C4 {above + row // 2} 4 {middle} 4 {middle} S4 {below - row // 2} {TRUNK} {below}"
    )
