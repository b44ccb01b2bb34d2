"""`/api/memories` and `/api/flushes`: stored memories, and the flushes of ended sessions.

A memory holds what a person said, so an admin reads another owner's memories like messages: one owner at a
time, and an event records it. A flush holds no text; its id is its session's id.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ...domain.flushes import FlushState
from .. import objects
from ..http import JsonResponse, RequestContext
from ..openai.parameters import BadParameter, kind
from ..owners import OWNER, OWNERS, note_reading, owner_of, owners_of, shows_owner
from ..routes import Parameter, Route
from ..schemas import NUMBER, TEXT, TIME, list_of, one_of, ref
from .session_actions import body_of, fields_of
from .sessions import LARGEST_PAGE, paging


async def memories(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    page = await call.hf.memories(
        owner,
        key=call.query("key") or None,
        words=call.query("q") or None,
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    await note_reading(call, owner)
    data = [objects.memory(each, with_owner=shows_owner(call)) for each in page.items]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


async def edit(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    text = (await fields_of(call, "text")).get("text")
    if not isinstance(text, str):
        raise BadParameter("text", f"must be the new text of the memory, not {kind(text)}")
    memory = await call.hf.edit_memory(owner, call.path("id"), text)
    return JsonResponse(objects.memory(memory, with_owner=shows_owner(call)))


async def forget(call: RequestContext) -> JsonResponse:
    memory_id = call.path("id")
    await call.hf.forget_memory(owner_of(call), memory_id)
    return JsonResponse({"id": memory_id, "object": "memory.deleted", "deleted": True})


async def flushes(call: RequestContext) -> JsonResponse:
    state = call.query("state") or None
    if state is not None and state not in set(FlushState):
        raise BadParameter("state", f"must be one of {', '.join(FlushState)}, not {state!r:.40}")
    page = await call.hf.flushes(
        owners_of(call),
        state=FlushState(state) if state else None,
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    data = [objects.flush(each, with_owner=shows_owner(call)) for each in page.items]
    return JsonResponse(objects.listed(data, has_more=page.has_more))


async def retry(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await fields_of(call)
    flush = await call.hf.retry_flush(owner, call.path("id"))
    return JsonResponse(objects.flush(flush, with_owner=shows_owner(call)))


async def retry_all(call: RequestContext) -> JsonResponse:
    owner = owners_of(call)
    await fields_of(call)
    retried = await call.hf.retry_flushes(owner)
    return JsonResponse({"object": "flushes.retried", "count": retried})


async def skip(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await fields_of(call)
    flush = await call.hf.skip_flush(owner, call.path("id"))
    return JsonResponse(objects.flush(flush, with_owner=shows_owner(call)))


async def skip_before(call: RequestContext) -> JsonResponse:
    owner = owners_of(call)
    before = _time((await fields_of(call, "before")).get("before"))
    skipped = await call.hf.skip_flushes(owner, before)
    return JsonResponse({"object": "flushes.skipped", "count": skipped})


def _time(value: object) -> datetime:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
        if found is not None:
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        found = None
    raise BadParameter("before", f"must be a time such as 2026-03-01T00:00:00Z, not {value!r:.60}")


_DONE = {"type": "object", "properties": {"object": TEXT, "count": NUMBER}, "required": ["object", "count"]}

ROUTES = (
    Route(
        "GET",
        "/api/memories",
        memories,
        "What is remembered, the newest first.",
        parameters=(
            Parameter("q", "Only memories that hold all these words."),
            Parameter("key", "Only memories of this key's conversation."),
            *paging(),
            OWNER,
        ),
        answer=list_of("Memory"),
    ),
    Route(
        "PATCH",
        "/api/memories/{id}",
        edit,
        "From now on it says this; what it said before is gone.",
        parameters=(OWNER,),
        body={**body_of(text={**TEXT, "minLength": 1, "maxLength": 20_000}), "required": ["text"]},
        answer=ref("Memory"),
    ),
    Route(
        "DELETE",
        "/api/memories/{id}",
        forget,
        "Forget it: nothing of what it said is left.",
        parameters=(OWNER,),
        answer=ref("DeletedMemory"),
    ),
    Route(
        "GET",
        "/api/flushes",
        flushes,
        "What ended sessions are to be flushed, were, or could not be, the newest first.",
        parameters=(
            Parameter("state", "Only these; `dead`: what was given up.", one_of(*FlushState)),
            *paging(),
            OWNERS,
        ),
        answer=list_of("Flush"),
    ),
    Route(
        "POST",
        "/api/flushes/retry",
        retry_all,
        "Try everything again that was given up.",
        parameters=(OWNERS,),
        body=body_of(),
        body_optional=True,
        answer=_DONE,
    ),
    Route(
        "POST",
        "/api/flushes/skip",
        skip_before,
        "Do not flush sessions that nobody has spoken in since then, ended or still open.",
        parameters=(OWNERS,),
        body={**body_of(before=TIME), "required": ["before"]},
        answer=_DONE,
    ),
    Route(
        "POST",
        "/api/flushes/{id}/retry",
        retry,
        "Flush this session again that was given up or skipped, or at once if it waits.",
        parameters=(OWNER,),
        body=body_of(),
        body_optional=True,
        answer=ref("Flush"),
    ),
    Route(
        "POST",
        "/api/flushes/{id}/skip",
        skip,
        "Do not flush this session.",
        parameters=(OWNER,),
        body=body_of(),
        body_optional=True,
        answer=ref("Flush"),
    ),
)
