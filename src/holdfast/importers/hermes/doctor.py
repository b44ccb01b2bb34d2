"""Reports the state of a Hermes home. Read-only: changes nothing in the home or in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

import apsw
import psutil

from ...domain.sessions import Edge
from ...os_support import start_of
from .database_copy import STATEMENTS
from .home import Background, ChatRoute, ResetRule, background_of, reset_rule_of
from .snapshot import HomeSnapshot

SAME_START = timedelta(seconds=5)
"""Largest difference between a start time noted by Hermes and the system's: Hermes' is slightly later."""


@dataclass(frozen=True, slots=True)
class HeldOpen:
    """A chat that Hermes does not reset, because of a background process."""

    key: str
    session_id: str | None
    command: str
    pid: int | None
    since: datetime | None
    state: str
    """`runs`; `gone`; `reused`: another program has its pid; `unknown`: cannot be determined from here."""


@dataclass(frozen=True, slots=True)
class Examination:
    path: str
    schema: int
    zone: str
    sessions: int
    messages: int
    undone: int
    never_ended: int
    end_reasons: Mapping[str, int]
    sources: Mapping[str, int]
    conversations: int
    edges: Mapping[str, int]
    cycles: Sequence[str]
    dangling: Sequence[str]
    several: Sequence[str]
    keys: int
    held_open: Sequence[HeldOpen]
    stale: Sequence[str]
    """Ids of sessions continued in another session. For such an id Hermes loads the uncompacted session."""
    stale_keys: Sequence[str]
    """Chats that are routed to such an id."""
    repeats: Sequence[str]
    """Chats whose expiry is not recorded as handled: the next restart handles it (again)."""
    rule: ResetRule
    orphan_calls: int
    wrong_counts: int
    repeated_rows: int
    strays: int
    unmarked: int
    problems: Sequence[str]


def examine(snapshot: HomeSnapshot, now: datetime) -> Examination:
    for step in ("gather_facts", "sort_facts", "sort_answers"):
        snapshot.copy.execute(STATEMENTS[step])
    sessions, lineage = snapshot.sessions, snapshot.lineage
    background, problem = background_of(snapshot.home.processes_file, snapshot.zone)
    held = [_held(each, snapshot) for each in background]
    blocked = {each.key for each in held if each.state == "runs"}
    rule = reset_rule_of(snapshot.home, snapshot.schema)
    routes = snapshot.routes.by_key
    edges = Counter(line.edge.value for line in lineage.lines if line.edge)
    if lineage.continued:
        edges[Edge.COMPACTION.value] = len(lineage.continued)
    return Examination(
        path=str(snapshot.home.path),
        schema=snapshot.schema,
        zone=str(snapshot.zone),
        sessions=len(sessions),
        messages=sum(session.said for session in sessions),
        undone=sum(session.undone for session in sessions),
        never_ended=sum(session.never_ended for session in sessions),
        end_reasons=_most_first(
            session.end_reason or "(no reason)" for session in sessions if not session.never_ended
        ),
        sources=_most_first(session.source for session in sessions),
        conversations=len(lineage.lines),
        edges=dict(edges),
        cycles=lineage.cycles,
        dangling=lineage.dangling,
        several=lineage.several,
        keys=len(routes),
        held_open=held,
        stale=tuple(lineage.continued),
        stale_keys=[key for key, route in routes.items() if route.session_id in lineage.continued],
        repeats=[
            key
            for key, route in routes.items()
            if key not in blocked and not route.settled and _expired(route, rule, now, snapshot.zone)
        ],
        rule=rule,
        orphan_calls=_number(snapshot.copy, "orphan_calls"),
        wrong_counts=sum(session.counted not in (None, session.shown) for session in sessions),
        repeated_rows=_number(snapshot.copy, "repeated_rows"),
        strays=_number(snapshot.copy, "strays"),
        unmarked=_number(snapshot.copy, "unmarked"),
        problems=[*snapshot.routes.skipped, *([problem] if problem else [])],
    )


def _most_first(names: Iterable[str]) -> dict[str, int]:
    counted = Counter(names)
    return dict(sorted(counted.items(), key=lambda each: (-each[1], each[0])))


def _number(copy: apsw.Connection, statement: str) -> int:
    ((number,),) = copy.execute(STATEMENTS[statement])
    return int(number)


def _held(process: Background, snapshot: HomeSnapshot) -> HeldOpen:
    route = snapshot.routes.by_key.get(process.key)
    return HeldOpen(
        process.key or process.task,
        route.session_id if route else None,
        process.command,
        process.pid,
        process.started_at,
        _state_of(process),
    )


def _state_of(process: Background) -> str:
    """Whether the process still runs, and whether the pid still belongs to it."""
    if not process.on_host or process.pid is None:
        return "unknown"
    start = start_of(process.pid)
    if start is None:
        return "gone"
    if process.start is not None and process.start.isdecimal():
        return "runs" if process.start == start else "reused"
    if process.started_at is None:
        return "unknown"
    try:
        began = datetime.fromtimestamp(psutil.Process(process.pid).create_time(), UTC)
    except psutil.Error:
        return "gone"
    return "runs" if abs(began - process.started_at) <= SAME_START else "reused"


def _expired(route: ChatRoute, rule: ResetRule, now: datetime, zone: tzinfo) -> bool:
    """True if Hermes would consider this chat's session expired now."""
    if route.updated_at is None or rule.mode == "none":
        return False
    if rule.mode in ("idle", "both") and now > route.updated_at + timedelta(minutes=rule.idle_minutes):
        return True
    if rule.mode not in ("daily", "both"):
        return False
    here = now.astimezone(zone)
    boundary = here.replace(hour=rule.at_hour % 24, minute=0, second=0, microsecond=0)
    if here < boundary:
        boundary -= timedelta(days=1)
    return route.updated_at < boundary
