"""`/api/notices`: notices for people, to be delivered by bridges.

A bridge lists the undelivered notices, delivers each, and acknowledges it. Delivery is at least once: a
bridge that dies before the acknowledgement delivers the notice again.
"""

from __future__ import annotations

from typing import Literal

from .. import objects
from ..http import RequestContext
from ..openai.parameters import BadParameter, RequestBody
from ..owners import OWNER, OWNERS, owner_of, owners_of, shows_owner
from ..response_writer import JsonResponse
from ..routes import Parameter, Route
from ..schemas import ListObject, NoticeCountObject, NoticeObject
from .health import FLAG, flag
from .sessions import LARGEST_PAGE, paging


async def notices(call: RequestContext) -> JsonResponse:
    owner, after = owners_of(call), call.query("after") or None
    limit = call.query_number("limit", 20, 1, LARGEST_PAGE)
    undelivered, delivered = flag(call, "undelivered"), flag(call, "delivered")
    if undelivered and delivered:
        raise BadParameter("delivered", "cannot be combined with `undelivered`")
    if (order := call.query("order") or "asc") not in ("asc", "desc"):
        raise BadParameter("order", f"must be asc or desc, not {order!r:.40}")
    if delivered and order == "asc":
        raise BadParameter("delivered", "needs `order=desc`")
    if order == "desc":
        chosen = True if delivered else False if undelivered else None
        page = await call.hf.newest_notices(owner, delivered=chosen, after=after, limit=limit)
    else:
        page = await call.hf.notices(owner, undelivered=undelivered, after=after, limit=limit)
    sent = await call.hf.notice_deliveries([each.id for each in page.items])
    data = [objects.notice(each, sent.get(each.id, ()), with_owner=shows_owner(call)) for each in page.items]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


async def delivered(call: RequestContext) -> JsonResponse:
    notice = await call.hf.deliver_notice(owner_of(call), call.path("id"))
    sent = await call.hf.notice_deliveries([notice.id])
    return JsonResponse(objects.notice(notice, sent.get(notice.id, ()), with_owner=shows_owner(call)))


async def all_delivered(call: RequestContext) -> JsonResponse:
    owner = owners_of(call)
    await call.decoded(RequestBody)
    return JsonResponse(
        NoticeCountObject(object="notices.delivered", count=await call.hf.deliver_notices(owner))
    )


ROUTES = (
    Route(
        "GET",
        "/api/notices",
        notices,
        "List notices for people, oldest first, with where each was sent.",
        parameters=(
            Parameter("undelivered", "Only those that are not delivered yet.", FLAG),
            Parameter("delivered", "Only those that are delivered; with `order=desc`.", FLAG),
            Parameter("order", "`desc`: the newest first.", Literal["asc", "desc"]),
            *paging(),
            OWNERS,
        ),
        answer=ListObject[NoticeObject],
    ),
    Route(
        "POST",
        "/api/notices/delivered",
        all_delivered,
        "Mark all notices as delivered. Idempotent.",
        parameters=(OWNERS,),
        body=RequestBody,
        body_optional=True,
        answer=NoticeCountObject,
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
