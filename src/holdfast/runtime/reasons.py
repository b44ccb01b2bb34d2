"""Answers `why`: will this session be reset, when, by which rule, what holds it, and what happened so far.

It only reads, and judges as the resetter would right now. Asking moves nobody's clock.
"""

from __future__ import annotations

from ..domain.why import Why, why
from ..store.base import Store


async def why_of(store: Store, owner: str | None, session_id: str) -> Why:
    judged = await store.judge_session(owner, session_id)
    return why(judged, await store.history(owner, session_id), store.now())
