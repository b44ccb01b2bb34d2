"""`/api/notices`: notices for people, to be delivered by bridges.

A bridge lists the undelivered notices, delivers each, and acknowledges it. Delivery is at least once: a
bridge that dies before the acknowledgement delivers the notice again.
"""

from __future__ import annotations

from .. import objects
from ..http import JsonResponse, RequestContext
from ..owners import OWNER, OWNERS, owner_of, owners_of, shows_owner
from ..routes import Parameter, Route
from ..schemas import ListObject, NoticeObject
from .health import FLAG, flag
from .sessions import LARGEST_PAGE, paging


async def notices(call: RequestContext) -> JsonResponse:
    page = await call.hf.notices(
        owners_of(call),
        undelivered=flag(call, "undelivered"),
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    data = [objects.notice(each, with_owner=shows_owner(call)) for each in page.items]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


async def delivered(call: RequestContext) -> JsonResponse:
    notice = await call.hf.deliver_notice(owner_of(call), call.path("id"))
    return JsonResponse(objects.notice(notice, with_owner=shows_owner(call)))


ROUTES = (
    Route(
        "GET",
        "/api/notices",
        notices,
        "List notices for people, oldest first.",
        parameters=(
            Parameter("undelivered", "Only those that are not delivered yet.", FLAG),
            *paging(),
            OWNERS,
        ),
        answer=ListObject[NoticeObject],
    ),
    Route(
        "POST",
        "/api/notices/{id}/delivered",
        delivered,
        "Mark a notice as delivered. Idempotent.",
        parameters=(OWNER,),
        answer=NoticeObject,
    ),
)
