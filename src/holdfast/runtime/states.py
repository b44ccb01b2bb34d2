"""States and flushes of sessions, for readers. States are correct even before a sweep has run.

The store says which node each session belongs to; the engine's proof of death says whether it is alive.
Functions of a store alone: the library's sessions and the operations of surfaces share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..domain.flushes import Flush
from ..domain.nodes import Liveness
from ..domain.sessions import Session, SessionState, state_of
from ..domain.why import Why, why
from ..store.store import Store


async def states_of(store: Store, sessions: Iterable[Session]) -> Mapping[str, SessionState]:
    """The state of each session, by id."""
    sessions = list(sessions)
    wanted = {session.answering_node for session in sessions if not session.ended} - {None}
    present = [node for node in await store.nodes() if node.id in wanted] if wanted else []
    proofs = await store.probe(present)
    states = {}
    for session in sessions:
        node_id = session.answering_node
        # A node that is no longer present has left or was reaped, and holds nothing.
        liveness = proofs[node_id][0] if node_id and node_id in proofs else Liveness.DEAD
        states[session.id] = state_of(session, liveness)
    return states


async def flushes_of(store: Store, sessions: Iterable[Session]) -> Mapping[str, Flush]:
    """The flush of each session that has one, by session id."""
    ended = [session.id for session in sessions if session.ended]
    return await store.flushes_of(ended) if ended else {}


async def why_of(store: Store, owner: str | None, session_id: str) -> Why:
    judged = await store.judge_session(owner, session_id)
    return why(judged, await store.history(owner, session_id), store.now())
