"""Draws a conversation's line of sessions, with its forks as a tree.

conv_1a…  cli:ada
├─ sess_3f…  #1–4  closed
├─ sess_77…  #5–6  resume ▸ reaped
│  └─ conv_9c…  forked at #5
│     └─ sess_b0…  #1–8  open, idle
└─ sess_c4…  #7–9  compaction ▸ open, idle
     sees #1–2, a summary of #3–4, #5–…

What a session sees is said where it is more than what was said in it and right before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from ...domain.sessions import Edge, Session, SessionState
from ...domain.views import Range, Summary
from ..readings import Lineage
from .output import STATE_STYLES, Cell, Styled
from .words import clock

Line = Sequence[Cell]


def draw(line: Lineage, states: Mapping[str, SessionState], now: datetime) -> Iterator[Line]:
    """One line of the drawing after the other."""
    first = line.sessions[0]
    if first.parent_id is not None:
        yield (Styled(f"forked from {first.parent_id}", "dim"),)
    yield from _conversation(line, "", states, now)


def _conversation(
    line: Lineage, margin: str, states: Mapping[str, SessionState], now: datetime
) -> Iterator[Line]:
    first = line.sessions[0]
    name = first.key or first.title
    yield (Styled(margin, "dim"), Styled(first.conversation_id, "bold"), f"  {name}" if name else "")
    below = _stem(margin)
    for number, session in enumerate(line.sessions):
        last = number == len(line.sessions) - 1
        before = line.sessions[number - 1].id if number else first.parent_id
        yield (
            Styled(f"{below}{'└─' if last else '├─'} ", "dim"),
            *_session(session, before, states[session.id], now),
        )
        if sees := _sees(session):
            yield (Styled(f"{below}{'     ' if last else '│    '}sees {sees}", "dim"),)
        forks = [fork for fork in line.forks if fork.sessions[0].parent_id == session.id]
        for place, fork in enumerate(forks):
            branch = "└─" if place == len(forks) - 1 else "├─"
            yield from _conversation(fork, f"{below}{'   ' if last else '│  '}{branch} ", states, now)


def _session(session: Session, before: str | None, seen: SessionState, now: datetime) -> Iterator[Cell]:
    yield session.id
    if session.message_count:
        yield Styled(f"  #{session.first_seq}–{session.last_seq}", "dim")
    else:
        yield Styled("  nothing said", "dim")
    yield "  "
    if session.edge is not None and session.edge is not Edge.FORK:
        of = "" if session.parent_id == before else f" of {str(session.parent_id)[:9]}…"
        yield Styled(f"{session.edge.value}{of} ▸ ", "cyan")
    if session.ended_at is not None:
        yield Styled(str(session.end_reason), "red" if session.end_reason == "reaped" else "")
        yield Styled(f" {clock(session.ended_at, now)}", "dim")
    else:
        yield Styled(f"open, {seen.value}", STATE_STYLES[seen.value])


def _sees(session: Session) -> str:
    """A view that has a summary in it, or a gap, in words; else nothing."""
    said: list[str] = []
    shown: Range | None = None
    for part in session.view.parts:
        if isinstance(part, Summary):
            said.append(f"a summary of {_numbers(part.first, part.last)}" if part.last else "a summary")
            shown = None
        elif shown is not None and shown.last is not None and part.first == shown.last + 1:
            shown = Range(shown.first, part.last)
            said[-1] = _numbers(shown.first, shown.last)
        else:
            shown = part
            said.append(_numbers(part.first, part.last))
    return ", ".join(said) if len(said) > 1 else ""


def _numbers(first: int, last: int | None) -> str:
    return f"#{first}" if first == last else f"#{first}–{'…' if last is None else last}"


def _stem(margin: str) -> str:
    """What stands below a branch: the branch itself gives way to its trunk."""
    return margin.replace("├─ ", "│  ").replace("└─ ", "   ")
