"""`GET /api/search`: full-text search in the owner's messages."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...domain.pages import SearchFilter
from .. import objects
from ..http import RequestContext
from ..openai.parameters import A_TIME, BadParameter, a_time
from ..owners import OWNER, note_reading, owner_of
from ..response_writer import JsonResponse
from ..routes import Parameter, Route
from ..schemas import FoundObject, ListObject

LARGEST_PAGE = 100


async def search(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    words = call.query("q") or ""
    if not words.strip():
        raise BadParameter("q", "must contain the words to search for")
    limit = call.query_number("limit", 20, 1, LARGEST_PAGE)
    within = call.query("session") or None
    place = await call.hf.resolve_name(owner, within) if within else None
    since = call.query("since") or None
    wanted = SearchFilter(
        conversation_id=place.conversation.id if place else None,
        role=call.query("role") or None,
        source=call.query("source") or None,
        since=a_time("since", since) if since else None,
    )
    found = await call.hf.search_messages(owner, words, wanted=wanted, limit=limit + 1)
    await note_reading(call, owner, place.tip if place else None)
    return JsonResponse(
        objects.listed([objects.found(each) for each in found[:limit]], has_more=len(found) > limit)
    )


ROUTES = (
    Route(
        "GET",
        "/api/search",
        search,
        "Search messages for words; the best and newest matches first.",
        parameters=(
            Parameter(
                "q",
                "The words, each matched as a prefix; quotes keep a phrase.",
                Annotated[str, Meta(min_length=1)],
                required=True,
            ),
            Parameter("session", "Only in this conversation: any id, key or alias of it."),
            Parameter("role", "Only messages of this role, such as user or assistant."),
            Parameter("source", "Only messages of sessions of this source."),
            Parameter("since", f"Only messages since then: {A_TIME}."),
            Parameter("limit", "How many at most.", Annotated[int, Meta(ge=1, le=LARGEST_PAGE)], default=20),
            OWNER,
        ),
        answer=ListObject[FoundObject],
    ),
)
