"""`/sessions/{id}/timeline`: what the time of each turn went to, step by step; the events of the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..domain.events import EVENT_MEANINGS, EventType
from ..domain.headings import LONGEST_PREVIEW, shortened, words_in
from ..domain.messages import Message
from ..domain.pages import PAGE_BYTES
from ..domain.turns import Turn
from ..server.owners import note_reading, owner_of
from ..server.response_writer import HttpResponse
from .charts import TurnBar, waterfall_of
from .pages import html
from .request import PageRequest

MOST_HAPPENED = 40
TURNS = 25
MOST_MESSAGES = 1000


@dataclass(frozen=True, slots=True)
class Happened:
    at: datetime
    what: str
    data: Mapping[str, Any]

    @property
    def meaning(self) -> str:
        """What its type means, in plain words; empty for a type of a newer version."""
        known = EVENT_MEANINGS.get(EventType(self.what)) if self.what in set(EventType) else None
        return (known or "").partition("; data:")[0]


def timeline(history: Sequence[Mapping[str, Any]]) -> list[Happened]:
    """A session's events, newest first."""
    found = [Happened(datetime.fromisoformat(each["at"]), each["type"], each["data"]) for each in history]
    return sorted(found, key=lambda each: each.at, reverse=True)[:MOST_HAPPENED]


def queued_in(history: Sequence[Mapping[str, Any]]) -> dict[str, datetime]:
    """When turns were queued, by their id, according to these events."""
    return {
        each["turn_id"]: datetime.fromisoformat(each["at"])
        for each in history
        if each["type"] == EventType.TURN_QUEUED and each["turn_id"]
    }


async def timeline_page(visit: PageRequest) -> HttpResponse:
    """The turns of the conversation, newest first, with the steps of each; `after`: the next page. With
    `scale=turn` each turn fills the width, otherwise all are on the scale of the longest."""
    inner = visit.inner("GET", names={"id": visit.path("id")})
    owner = owner_of(inner)
    session = await visit.ask("GET", "/api/sessions/{id}", names={"id": visit.path("id")})
    found = await visit.hf.find_session(owner, session["id"])
    turns = await visit.hf.turns(
        owner, found.conversation_id, after=visit.query("after") or None, limit=TURNS + 1
    )
    shown = [turn for turn in turns[:TURNS] if turn.first_seq]
    why = await visit.ask("GET", "/api/sessions/{id}/why", names={"id": found.id})
    messages = await _messages_of(visit, owner, shown)
    await note_reading(inner, owner, found)
    own_scale = visit.query("scale") == "turn"
    bars = waterfall_of(
        shown,
        messages,
        visit.now,
        queued=queued_in(why["history"]),
        most=TURNS,
        own_scale=own_scale,
    )
    return html(
        visit,
        "timeline.html",
        session=session,
        turns=[(bar, _asked(bar, messages)) for bar in bars],
        own_scale=own_scale,
        older=turns[TURNS - 1].id if len(turns) > TURNS else None,
        happened=timeline(why["history"]),
    )


async def _messages_of(visit: PageRequest, owner: str | None, turns: Sequence[Turn]) -> Sequence[Message]:
    """The messages of these turns, of which the newest is first, and of others between them."""
    if not turns:
        return ()
    page = await visit.hf.messages(
        owner,
        turns[0].conversation_id,
        first=min(turn.first_seq for turn in turns),
        limit=MOST_MESSAGES,
        most_bytes=PAGE_BYTES,
    )
    return page.items


def _asked(bar: TurnBar, messages: Sequence[Message]) -> str:
    """The first words of the message that the turn answers; empty if it is not among these."""
    first = next((each for each in messages if each.seq == bar.turn.first_seq), None)
    return shortened(words_in(first.body), LONGEST_PREVIEW) or "" if first is not None else ""
