"""Multi-step reads that several surfaces need: pages by state, the tree of a lineage, leaks.

Nothing here writes or decides; it only combines store methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from .domain.conversations import Address
from .domain.ids import is_ours
from .domain.nodes import Liveness, Node
from .domain.sessions import EndReason, Session, SessionState
from .errors import NotFound
from .runtime.states import states_of
from .store.base import Page, Resolved, SessionFilter, Store

SCAN = 200
MOST_LIVING = 10_000
DEEPEST_FORK = 50


@dataclass(frozen=True, slots=True)
class LineageTree:
    """A conversation's sessions, oldest first, and the lineages forked from it."""

    sessions: tuple[Session, ...]
    forks: tuple[LineageTree, ...]

    def __iter__(self) -> Iterator[Session]:
        """Every session of the tree."""
        yield from self.sessions
        for fork in self.forks:
            yield from fork


async def place_of(store: Store, owner: str | None, name: str) -> Resolved:
    """Resolve a name that a person typed: one of our ids, else a session key, else an alias."""
    if is_ours(name):
        return await store.resolve(owner, Address(id=name, create=False))
    try:
        return await store.resolve(owner, Address(key=name, create=False))
    except NotFound:
        pass
    try:
        return await store.resolve(owner, Address(id=name, create=False))
    except NotFound:
        raise NotFound("session, key or alias", name) from None


async def session_named(store: Store, owner: str | None, name: str) -> Session:
    """The session that a name means: for a session id that session, else the conversation's newest."""
    place = await place_of(store, owner, name)
    if place.addressed is None or place.addressed == place.tip.id:
        return place.tip
    return await store.session(owner, place.addressed)


async def session_going_on(store: Store, owner: str | None, name: str) -> Session:
    """The same, for an action on it: a session that was compacted is replaced by the newest."""
    session = await session_named(store, owner, name)
    if session.end_reason == EndReason.COMPACTION:
        return (await place_of(store, owner, session.id)).tip
    return session


async def page_of_sessions(
    store: Store,
    wanted: SessionFilter,
    state: SessionState | None = None,
    *,
    after: str | None = None,
    limit: int = 20,
) -> tuple[Page[Session], Mapping[str, SessionState]]:
    """A page of sessions with the state of each. Active, idle and orphaned depend on which nodes are alive,
    which a query cannot know: active and orphaned sessions are searched among those with a node, and for idle
    ones pages are read until enough are found."""
    if state is None or state is SessionState.ENDED:
        if state is SessionState.ENDED:
            wanted = replace(wanted, ended=True)
        page = await store.sessions(wanted, after=after, limit=limit)
        return page, await states_of(store, page.items)
    if state is not SessionState.IDLE:
        return await _page_of_the_living(store, wanted, state, after, limit)
    wanted = replace(wanted, ended=False)
    found: list[Session] = []
    states: dict[str, SessionState] = {}
    while True:
        page = await store.sessions(wanted, after=after, limit=SCAN)
        for session_id, seen in (await states_of(store, page.items)).items():
            states[session_id] = seen
        found += [session for session in page.items if states[session.id] is state]
        if len(found) > limit or not page.has_more:
            return Page(found[:limit], len(found) > limit), states
        after = page.items[-1].id


async def _page_of_the_living(
    store: Store, wanted: SessionFilter, state: SessionState, after: str | None, limit: int
) -> tuple[Page[Session], Mapping[str, SessionState]]:
    cursor = await store.session(wanted.owner, after) if after is not None else None
    living = await store.alive(wanted.owner, limit=MOST_LIVING)
    states = await states_of(store, living)
    found = [
        session
        for session in living
        if states[session.id] is state
        and (cursor is None or (session.last_activity_at, session.id) < (cursor.last_activity_at, cursor.id))
        and (wanted.source is None or session.source == wanted.source)
        and (wanted.key is None or session.key == wanted.key)
        and (wanted.title is None or wanted.title.lower() in _heading(session).lower())
    ]
    return Page(found[:limit], len(found) > limit), states


def _heading(session: Session) -> str:
    return f"{session.title or ''} {session.key or ''}"


async def judged_nodes(store: Store, *, gone: bool = False) -> list[tuple[Node, Liveness, str]]:
    """Nodes, living ones first, each with its liveness and the proof; `gone`: also those that have left or
    were reaped."""
    everyone = await store.nodes(gone=gone)
    present = [node for node in everyone if not node.gone]
    proofs = await store.probe(present)
    judged = [(node, *proofs[node.id]) for node in present]
    for node in everyone:
        if node.gone:
            why = "left in good order" if node.left_at else "found dead or hung, and reaped"
            judged.append((node, Liveness.DEAD, why))
    return judged


async def lineage_of(store: Store, owner: str | None, conversation_id: str, deep: int = 0) -> LineageTree:
    """The sessions of a conversation and everything forked from it."""
    sessions = await store.line(owner, conversation_id)
    forks = await store.forks(owner, conversation_id) if deep < DEEPEST_FORK else []
    return LineageTree(
        tuple(sessions),
        tuple([await lineage_of(store, owner, fork.conversation_id, deep + 1) for fork in forks]),
    )


async def leaked_sessions(store: Store, owner: str | None) -> list[Session]:
    """Open sessions whose node is dead; after a successful sweep there are none."""
    nodes = await store.nodes()
    proofs = await store.probe(nodes)
    left = await store.leftovers(also=[node.id for node in nodes if proofs[node.id][0] is Liveness.DEAD])
    leaked: dict[str, Session] = {}
    for session_id in left.sessions:
        try:
            leaked[session_id] = await store.session(owner, session_id)
        except NotFound:
            continue  # another owner's, or deleted meanwhile
    for conversation_id in left.conversations:
        try:
            tip = (await store.resolve(owner, Address(id=conversation_id))).tip
        except NotFound:
            continue
        leaked[tip.id] = tip
    return [session for session in leaked.values() if not session.ended]
