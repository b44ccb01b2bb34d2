"""`/sessions/{id}/lineage`: every session of a conversation as a graph, in a chosen size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..domain.sessions import Session
from ..server.owners import note_reading, owner_of
from ..server.response_writer import HttpResponse
from .charts import MOST_DRAWN, MOST_SHOWN, ROW, Picture, picture_of
from .pages import html
from .request import PageRequest

SIZES = {"small": ROW // 2, "normal": ROW, "large": 2 * ROW}
"""Heights of a row."""


async def drawn(
    visit: PageRequest,
    line: Sequence[Session],
    forks: Sequence[Session],
    here: str,
    most: int = MOST_SHOWN,
    row: int = ROW,
) -> Picture:
    """The graph of a conversation, with the first words of each session: the reader must be allowed to see
    the text of its messages."""
    sessions = [*line[-most:], *forks]
    states, words = await asyncio.gather(
        visit.hf.states_of(sessions), visit.hf.words_of_sessions([session.id for session in sessions])
    )
    return picture_of(line, forks, states, here, most, row=row, words=words)


async def lineage(visit: PageRequest) -> HttpResponse:
    """The newest MOST_DRAWN sessions and their forks; `size`: one of SIZES."""
    inner = visit.inner("GET", names={"id": visit.path("id")})
    owner = owner_of(inner)
    session = await visit.ask("GET", "/api/sessions/{id}", names={"id": visit.path("id")})
    found = await visit.hf.find_session(owner, session["id"])
    line, forks = await asyncio.gather(
        visit.hf.line(owner, found.conversation_id), visit.hf.forks(owner, found.conversation_id)
    )
    await note_reading(inner, owner, found)
    size = visit.query("size") if visit.query("size") in SIZES else "normal"
    return html(
        visit,
        "lineage_page.html",
        session=session,
        picture=await drawn(visit, line, forks, found.id, MOST_DRAWN, SIZES[size]),
        number=len(line),
        forks=len(forks),
        size=size,
        sizes=SIZES,
    )
