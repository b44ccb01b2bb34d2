"""`GET /api/sessions/{id}/side-requests`: what a program asked beside the conversation."""

from __future__ import annotations

from .. import objects
from ..http import JsonResponse, RequestContext
from ..owners import OWNER, note_reading, owner_of
from ..routes import Route
from ..schemas import ListObject, SideRequestObject
from .sessions import LARGEST_PAGE, paging


async def side_requests(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    session = await call.hf.session_named(owner, call.path("id"))
    if owner != call.owner:
        await note_reading(call, owner, session)
    page = await call.hf.side_requests(
        owner,
        session.conversation_id,
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    data = [objects.side_request(each, session.conversation_id) for each in page.items]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


ROUTES = (
    Route(
        "GET",
        "/api/sessions/{id}/side-requests",
        side_requests,
        "List a conversation's side requests (titles, topics, a program's own compaction), oldest first.",
        parameters=(*paging(), OWNER),
        answer=ListObject[SideRequestObject],
    ),
)
