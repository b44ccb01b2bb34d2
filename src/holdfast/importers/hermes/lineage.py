"""Decides how Hermes' sessions are related: which form one conversation, which began from another.

Hermes has one column, the parent's id, and uses it for three relations. They are distinguished by marks in
the child's settings and by how and when the parent ended:

- marked as a branch, or begun after its parent ended as `branched`: a fork;
- marked as delegated, or begun while its parent was still running: a subagent;
- begun at or after the end of a parent that ended by `compression`: its continuation, one conversation;
- anything else: a separate conversation, whatever its parent.

Pure: given sessions, returns lines. A parent comes before its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...domain.sessions import Edge
from .reading import HermesSession


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A conversation: its sessions, oldest first, each compacted into the next."""

    sessions: tuple[HermesSession, ...]
    edge: Edge | None = None
    parent: str | None = None
    """The Hermes id of the session it began from."""

    @property
    def tip(self) -> HermesSession:
        return self.sessions[-1]


@dataclass(frozen=True, slots=True)
class HermesLineage:
    lines: tuple[SessionLine, ...]
    cycles: tuple[str, ...] = ()
    """Sessions that were their own ancestors; each now begins a conversation."""
    dangling: tuple[str, ...] = ()
    """Sessions whose parents are missing."""
    several: tuple[str, ...] = ()
    """Sessions with more than one continuation; the others are forks."""
    continued: Mapping[str, str] = field(default_factory=dict)
    """Maps each continued session to its continuation."""

    def newest(self, session_id: str) -> str:
        """The newest continuation of this session."""
        while (following := self.continued.get(session_id)) is not None:
            session_id = following
        return session_id


def lineage_of(sessions: Iterable[HermesSession]) -> HermesLineage:
    known = {session.id: session for session in sessions}
    cycles = _cycles(known)
    dangling, parents = [], dict[str, str]()
    for session in known.values():
        if session.parent is None or session.id in cycles:
            continue
        if session.parent in known:
            parents[session.id] = session.parent
        else:
            dangling.append(session.id)
    edges = {child: _edge(known[child], known[parent]) for child, parent in parents.items()}
    continued, several = _continuations(known, parents, edges)
    for child, edge in edges.items():
        if edge is Edge.COMPACTION and continued.get(parents[child]) != child:
            edges[child] = Edge.FORK
    lines = _lines(known, parents, edges, continued)
    return HermesLineage(_parents_first(lines), tuple(cycles), tuple(dangling), tuple(several), continued)


def _edge(child: HermesSession, parent: HermesSession) -> Edge | None:
    after = parent.ended_at is not None and child.started_at >= parent.ended_at
    if child.delegated:
        return Edge.SUBAGENT
    if child.branched or (after and parent.end_reason == "branched"):
        return Edge.FORK
    if after and parent.end_reason == "compression" and child.source != "tool":
        return Edge.COMPACTION
    return None if after else Edge.SUBAGENT


def _cycles(known: Mapping[str, HermesSession]) -> list[str]:
    """For each cycle the session that began first: the cycle is cut there."""
    cut = []
    seen: set[str] = set()
    for start in known:
        path: list[str] = []
        at: str | None = start
        while at is not None and at in known and at not in seen:
            seen.add(at)
            path.append(at)
            at = known[at].parent
        if at in path:
            circle = path[path.index(at) :]
            cut.append(min(circle, key=lambda id_: (known[id_].started_at, id_)))
    return cut


def _continuations(
    known: Mapping[str, HermesSession], parents: Mapping[str, str], edges: Mapping[str, Edge | None]
) -> tuple[dict[str, str], list[str]]:
    """For each compacted session, the session that continues it.

    Hermes' own preference: one that was itself compacted, then one that is open, then one that ended; among
    equals, the last active.
    """
    claims: dict[str, list[HermesSession]] = {}
    for child, edge in edges.items():
        if edge is Edge.COMPACTION:
            claims.setdefault(parents[child], []).append(known[child])

    def preference(session: HermesSession) -> tuple[object, ...]:
        goes_on = 2 if session.end_reason == "compression" else 1 if session.never_ended else 0
        return goes_on, session.active_at, session.started_at, session.id

    chosen = {parent: max(children, key=preference).id for parent, children in claims.items()}
    return chosen, [parent for parent, children in claims.items() if len(children) > 1]


def _lines(
    known: Mapping[str, HermesSession],
    parents: Mapping[str, str],
    edges: Mapping[str, Edge | None],
    continued: Mapping[str, str],
) -> list[SessionLine]:
    continuing = set(continued.values())
    lines = []
    for id_ in known:
        if id_ in continuing:
            continue
        sessions = [known[id_]]
        while (following := continued.get(sessions[-1].id)) is not None:
            sessions.append(known[following])
        edge = edges.get(id_)
        lines.append(SessionLine(tuple(sessions), edge, parents.get(id_) if edge else None))
    return lines


def _parents_first(lines: Sequence[SessionLine]) -> tuple[SessionLine, ...]:
    """Sort parents before children; otherwise the order is kept."""
    line_of = {session.id: line for line in lines for session in line.sessions}
    placed: dict[str, SessionLine] = {}
    for line in lines:
        waiting: list[SessionLine] = []
        at: SessionLine | None = line
        while at is not None and at.sessions[0].id not in placed and at not in waiting:
            waiting.append(at)
            at = line_of.get(at.parent) if at.parent else None
        for each in reversed(waiting):
            placed[each.sessions[0].id] = each
    return tuple(placed.values())
