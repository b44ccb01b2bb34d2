"""Sessions, turns and their numbers, for people's eyes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ...domain.flushes import Flush
from ...domain.sessions import Session, SessionState
from ...domain.turns import Turn
from ...store.base import Statistics
from ..objects import usage
from .output import Cell, Column, Styled, facts, say, state, table, wide
from .words import ago, count, moment, percent, took


def show_list(
    sessions: Sequence[Session], states: Mapping[str, SessionState], now: datetime, *, with_owner: bool
) -> None:
    narrow = not wide()
    columns = [
        Column("session", whole=True),
        Column("state", whole=True),
        *([Column("owner")] if with_owner else []),
        Column("key" if narrow else "key or title"),
        *([] if narrow else [Column("source"), Column("messages", right=True)]),
        Column("last" if narrow else "last activity", whole=True),
    ]
    table(
        columns,
        [
            [
                session.id,
                _state(session, states[session.id], narrow),
                *([session.owner] if with_owner else []),
                session.key or session.title or Styled("—", "dim"),
                *([] if narrow else [session.source, str(session.message_count)]),
                ago(session.last_activity_at, now),
            ]
            for session in sessions
        ],
    )


def _state(session: Session, seen: SessionState, narrow: bool) -> Styled:
    if session.ended:
        style = "red" if session.end_reason == "reaped" else "dim"
        return Styled(str(session.end_reason) if narrow else f"ended: {session.end_reason}", style)
    return state(seen.value)


def show_one(session: Session, seen: SessionState, now: datetime, flush: Flush | None = None) -> None:
    say(Styled(session.id, "bold"), "  ", state(seen.value))
    tokens = f"{session.input_tokens:,} in, {session.output_tokens:,} out"
    pairs: list[tuple[str, Cell]] = [
        ("conversation", session.conversation_id),
        ("key", session.key or Styled("—", "dim")),
        ("title", session.title or Styled("—", "dim")),
        ("owner", session.owner),
        ("source", session.source),
        ("messages", _messages(session)),
        ("tokens", tokens),
        ("model", session.model or Styled("—", "dim")),
        ("opened", moment(session.opened_at, now)),
        ("last activity", moment(session.last_activity_at, now)),
    ]
    if session.edge:
        pairs.append(("came from", f"{session.parent_id} ({session.edge.value})"))
    if session.ended:
        pairs.append(("ended", f"{moment(session.ended_at, now)}: {session.end_reason}"))
        if flush is not None:
            why = f" ({flush.error})" if flush.error else ""
            pairs.append(("flush", f"{flush.state.value}, {count(flush.attempts, 'attempt')}{why}"))
    elif session.attached:
        pairs.append(("attached", f"lives as long as {session.node_id} on {session.host}"))
    if session.running_turn:
        pairs.append(("running", f"{session.running_turn} on {session.running_node}"))
    if session.answering_node:
        pairs.append(("last beat", moment(session.last_heartbeat_at, now)))
    if session.tip_id != session.id:
        pairs.append(("went on in", session.tip_id))
    facts(pairs)


def _messages(session: Session) -> str:
    number = session.message_count
    return f"{number} (numbers {session.first_seq} to {session.last_seq})" if number else "none"


def show_turns(turns: Sequence[Turn], now: datetime) -> None:
    columns = [
        Column("turn", whole=True),
        Column("status", whole=True),
        Column("started", whole=True),
        Column("took", right=True, whole=True),
        Column("tokens", right=True),
        Column("error"),
    ]
    rows: list[list[Cell]] = []
    for turn in turns:
        tokens = usage(turn.usage)
        rows.append(
            [
                turn.id,
                state(turn.status.value),
                ago(turn.started_at, now),
                took((turn.ended_at or now) - turn.started_at),
                f"{tokens['input_tokens']:,}+{tokens['output_tokens']:,}" if tokens else "—",
                turn.error or "",
            ]
        )
    table(columns, rows)


def show_statistics(numbers: Statistics, leaked: int) -> None:
    total = numbers.sessions
    ended = total - numbers.open
    leak_style = "bold red" if leaked else "green"
    rows: list[list[Cell]] = [
        [Styled("sessions", "bold"), f"{total:,}", ""],
        ["  ended", f"{ended:,}", percent(ended, total)],
        ["  open", f"{numbers.open:,}", percent(numbers.open, total)],
        [Styled("  leaked", leak_style), Styled(f"{leaked:,}", leak_style), percent(leaked, total)],
    ]
    if numbers.end_reasons:
        rows += [["", "", ""], [Styled("end reasons", "bold"), f"{ended:,}", ""]]
        rows += [
            [f"  {reason}", f"{each:,}", percent(each, ended)] for reason, each in numbers.end_reasons.items()
        ]
    if numbers.sources:
        rows += [["", "", ""], [Styled("sources", "bold"), f"{total:,}", ""]]
        rows += [
            [f"  {source}", f"{each:,}", percent(each, total)] for source, each in numbers.sources.items()
        ]
    table([Column("", whole=True), Column("number", right=True), Column("share", right=True)], rows)
    say(
        Styled(
            f"\n{count(numbers.messages, 'message')} in {count(numbers.conversations, 'conversation')}.",
            "dim",
        )
    )
