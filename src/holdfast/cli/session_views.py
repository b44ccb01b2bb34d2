"""Prints sessions, turns, messages, statistics and lineage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..domain.figures import NO_COST, Cost, Statistics
from ..domain.flushes import Flush
from ..domain.headings import NO_HEADING, Heading
from ..domain.ids import short
from ..domain.messages import Message, MessageStatus
from ..domain.pages import Found, LineageTree
from ..domain.sessions import Edge, Session, SessionState
from ..domain.turns import Turn
from ..domain.views import Range, Summary
from ..server.objects import usage
from .format import (
    STATE_STYLES,
    Cell,
    Column,
    Styled,
    ago,
    clock,
    count,
    facts,
    moment,
    money,
    on_terminal,
    one_line,
    percent,
    say,
    state,
    table,
    took,
    wide,
)


def show_list(
    sessions: Sequence[Session],
    states: Mapping[str, SessionState],
    now: datetime,
    headings: Mapping[str, Heading],
    *,
    with_owner: bool,
    folded: bool = False,
) -> None:
    """`folded`: each row is a conversation, with its newest session and the numbers of all messages and
    sessions."""
    narrow = not wide()
    columns = [
        Column("session", whole=True),
        Column("state", whole=True),
        *([Column("owner")] if with_owner else []),
        Column("key or title"),
        *([] if narrow else [Column("source"), Column("messages", right=True)]),
        *([Column("sessions", right=True)] if folded and not narrow else []),
        Column("last" if narrow else "last activity", whole=True),
    ]
    table(
        columns,
        [
            [
                session.id,
                _state(session, states[session.id], narrow),
                *([session.owner] if with_owner else []),
                _name(session, headings),
                *(
                    []
                    if narrow
                    else [_source(session), str(session.last_seq if folded else session.message_count)]
                ),
                *([str(session.ordinal)] if folded and not narrow else []),
                ago(session.last_activity_at, now),
            ]
            for session in sessions
        ],
    )


def _name(session: Session, headings: Mapping[str, Heading]) -> Cell:
    """What people know the conversation by: its key and title, else its first words."""
    title = session.title or headings.get(session.conversation_id, NO_HEADING).first_words
    if session.key:
        return f"{session.key}  {title}" if title else session.key
    return title or Styled("—", "dim")


def _source(session: Session) -> str:
    return f"{session.source}, sub-agent" if session.edge is Edge.SUBAGENT else session.source


def _state(session: Session, seen: SessionState, narrow: bool) -> Styled:
    if session.ended:
        style = "red" if session.end_reason == "reaped" else "dim"
        return Styled(str(session.end_reason) if narrow else f"ended: {session.end_reason}", style)
    return state(seen.value)


def show_one(
    session: Session,
    seen: SessionState,
    now: datetime,
    flush: Flush | None = None,
    heading: Heading = NO_HEADING,
    side_requests: int = 0,
    names: Sequence[str] = (),
    cost: Cost = NO_COST,
    answered_by: str | None = None,
) -> None:
    """`names`: its aliases, such as the id by which an agent program knows it. `answered_by`: the model of
    the conversation's last reply, shown if no client has named one."""
    say(Styled(session.id, "bold"), "  ", state(seen.value))
    tokens = f"{session.input_tokens:,} in, {session.output_tokens:,} out"
    pairs: list[tuple[str, Cell]] = [
        ("conversation", session.conversation_id),
        ("key", session.key or Styled("—", "dim")),
        *([("also called", ", ".join(names))] if names else []),
        ("title", session.title or heading.first_words or Styled("—", "dim")),
        *([("last message", heading.preview)] if heading.preview else []),
        ("owner", session.owner),
        ("source", session.source),
        ("messages", _messages(session)),
        *([("side requests", str(side_requests))] if side_requests else []),
        ("tokens", tokens),
        *([("cost", cost_sentence(cost))] if cost.amount is not None else []),
        ("model", session.model or (f"{answered_by} (answered last)" if answered_by else Styled("—", "dim"))),
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
        pairs.append(("attached", f"ends with {session.node_id} on {session.host}"))
    if session.running_turn and session.running_node is None:
        pairs.append(("waiting", f"{session.running_turn}, to be retried by a server"))
    elif session.running_turn:
        pairs.append(("running", f"{session.running_turn} on {session.running_node}"))
    if session.answering_node:
        pairs.append(("heartbeat", moment(session.last_heartbeat_at, now)))
    if session.tip_id != session.id:
        pairs.append(("continues in", session.tip_id))
    facts(pairs)


def cost_sentence(cost: Cost) -> str:
    """What turns cost; only if a price is known."""
    left_out = f" without {cost.unpriced_tokens:,} tokens of models without a price"
    return f"{money(cost.amount or 0.0)} by [model.prices]{left_out if cost.unpriced_tokens else ''}"


def _messages(session: Session) -> str:
    number = session.message_count
    return f"{number} (numbers {session.first_seq} to {session.last_seq})" if number else "none"


def show_turns(turns: Sequence[Turn], now: datetime, most_attempts: int | None = None) -> None:
    columns = [
        Column("turn", whole=True),
        Column("status", whole=True),
        Column("attempt", right=True, whole=True),
        Column("started", whole=True),
        Column("took", right=True, whole=True),
        Column("tokens", right=True),
        Column("why"),
    ]
    rows: list[list[Cell]] = []
    for turn in turns:
        tokens = usage(turn.usage)
        rows.append(
            [
                turn.id,
                state("waiting" if turn.waits else turn.status.value),
                str(turn.attempt),
                ago(turn.started_at, now),
                took((now if turn.waits else turn.ended_at or now) - turn.started_at),
                f"{tokens.input_tokens:,}+{tokens.output_tokens:,}" if tokens else "—",
                (turn.reason(most_attempts) if turn.waits else turn.error or turn.why) or "",
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


ROLE_STYLES = {"user": "bold cyan", "assistant": "bold green", "tool": "bold magenta"}


def show_messages(messages: Sequence[Message], now: datetime) -> None:
    for number, message in enumerate(messages):
        if number:
            say()
        cut = Styled("  interrupted", "yellow") if message.status is MessageStatus.INTERRUPTED else Styled("")
        head = Styled(f"#{message.seq} ", "dim")
        say(head, _role(message.role), Styled(f"  {clock(message.created_at, now)}", "dim"), cut)
        _body(message.content())


def show_context(messages: Sequence[Mapping[str, Any]]) -> None:
    for number, message in enumerate(messages):
        if number:
            say()
        say(_role(str(message.get("role"))))
        _body(message)


def show_found(found: Sequence[Found], now: datetime) -> None:
    for number, each in enumerate(found):
        if number:
            say()
        message = each.message
        session = short(message.session_id) if on_terminal() else message.session_id
        where = each.key or each.title or short(message.conversation_id)
        say(
            Styled(one_line(where), "bold"),
            Styled(f"  #{message.seq}  ", "dim"),
            _role(message.role),
            Styled(f"  {clock(message.created_at, now)}  {session}", "dim"),
        )
        say("  ", one_line(each.snippet))


def _role(role: str) -> Styled:
    return Styled(role, ROLE_STYLES.get(role, "bold"))


def _body(message: Mapping[str, Any]) -> None:
    text = text_of(message.get("content"))
    if text:
        say(text)
    for call in message.get("tool_calls") or ():
        function = (call.get("function") or {}) if isinstance(call, Mapping) else {}
        say(Styled(f"→ {function.get('name', 'tool')}({function.get('arguments', '')})", "magenta"))
    if message.get("tool_call_id"):
        say(Styled(f"(answers {message['tool_call_id']})", "dim"))


def text_of(content: Any) -> str:
    """The text of a message's content; other parts are named by their kind."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            parts.append(f"[{part.get('type', 'part')}]")
    return "\n".join(parts)


Line = Sequence[Cell]


def draw(line: LineageTree, states: Mapping[str, SessionState], now: datetime) -> Iterator[Line]:
    """The lines of the lineage drawing."""
    first = line.sessions[0]
    if first.parent_id is not None:
        yield (Styled(f"forked from {first.parent_id}", "dim"),)
    yield from _conversation(line, "", states, now)


def _conversation(
    line: LineageTree, margin: str, states: Mapping[str, SessionState], now: datetime
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
    """Describe a view that has a summary or a gap; empty for any other."""
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
    """The margin below a branch: branch characters become those of its trunk."""
    return margin.replace("├─ ", "│  ").replace("└─ ", "   ")
