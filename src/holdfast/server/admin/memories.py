"""`/api/memories` and `/api/flushes`: stored memories, and the flushes of ended sessions.

A memory holds what a person said, so an admin reads another owner's memories like messages: one owner at a
time, and an event records it. A flush holds no text; its id is its session's id.
"""

from __future__ import annotations

from typing import Annotated

from ...domain.flushes import LONGEST_MEMORY, FlushState
from .. import objects
from ..conversation_ref import check_stores
from ..http import RequestContext
from ..openai.parameters import A_TIME, BadParameter, RequestBody, a_time, must_be
from ..owners import OWNER, OWNERS, note_reading, owner_of, owners_of, shows_owner
from ..response_writer import JsonResponse
from ..routes import Parameter, Route
from ..schemas import DeletedMemoryObject, FlushCountObject, FlushObject, ListObject, MemoryObject
from .sessions import LARGEST_PAGE, paging

TEXT = must_be("the text of the memory", minLength=1, maxLength=LONGEST_MEMORY)


class MemoryBody(RequestBody, frozen=True, kw_only=True):
    text: Annotated[str, TEXT]


class NewMemoryBody(RequestBody, frozen=True, kw_only=True):
    text: Annotated[str, TEXT]
    session_id: Annotated[str | None, must_be("any id, or an alias, of the conversation it belongs to")] = (
        None
    )
    key: Annotated[str | None, must_be("the session key of the conversation it belongs to")] = None


class SkipBody(RequestBody, frozen=True, kw_only=True):
    before: Annotated[str, must_be(A_TIME, format="date-time")]


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


async def add(call: RequestContext) -> JsonResponse:
    check_stores(call, "adding a memory")
    owner = owner_of(call)
    asked = await call.decoded(NewMemoryBody)
    if (asked.session_id is None) == (asked.key is None):
        raise BadParameter("session_id", "or key must name the conversation of the memory: one of them")
    memory = await call.hf.add_memory(owner, asked.text, name=asked.session_id, key=asked.key)
    return JsonResponse(objects.memory(memory, with_owner=shows_owner(call)))


async def edit(call: RequestContext) -> JsonResponse:
    check_stores(call, "editing a memory")
    owner = owner_of(call)
    asked = await call.decoded(MemoryBody)
    memory = await call.hf.edit_memory(owner, call.path("id"), asked.text)
    return JsonResponse(objects.memory(memory, with_owner=shows_owner(call)))


async def forget(call: RequestContext) -> JsonResponse:
    memory_id = call.path("id")
    await call.hf.forget_memory(owner_of(call), memory_id)
    return JsonResponse(objects.deleted_memory(memory_id))


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
    await call.decoded(RequestBody)
    flush = await call.hf.retry_flush(owner, call.path("id"))
    return JsonResponse(objects.flush(flush, with_owner=shows_owner(call)))


async def retry_all(call: RequestContext) -> JsonResponse:
    owner = owners_of(call)
    await call.decoded(RequestBody)
    retried = await call.hf.retry_flushes(owner)
    return JsonResponse(FlushCountObject(object="flushes.retried", count=retried))


async def skip(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    flush = await call.hf.skip_flush(owner, call.path("id"))
    return JsonResponse(objects.flush(flush, with_owner=shows_owner(call)))


async def skip_before(call: RequestContext) -> JsonResponse:
    owner = owners_of(call)
    before = a_time("before", (await call.decoded(SkipBody)).before)
    skipped = await call.hf.skip_flushes(owner, before)
    return JsonResponse(FlushCountObject(object="flushes.skipped", count=skipped))


ROUTES = (
    Route(
        "GET",
        "/api/memories",
        memories,
        "List memories, the newest first.",
        parameters=(
            Parameter("q", "Only memories that contain all these words."),
            Parameter("key", "Only memories of this key's conversation."),
            *paging(),
            OWNER,
        ),
        answer=ListObject[MemoryObject],
    ),
    Route(
        "POST",
        "/api/memories",
        add,
        "Add a memory to a conversation; its later sessions are given it.",
        parameters=(OWNER,),
        body=NewMemoryBody,
        answer=MemoryObject,
    ),
    Route(
        "PATCH",
        "/api/memories/{id}",
        edit,
        "Replace the text of a memory; the old text is gone.",
        parameters=(OWNER,),
        body=MemoryBody,
        answer=MemoryObject,
    ),
    Route(
        "DELETE",
        "/api/memories/{id}",
        forget,
        "Delete a memory and all of its text.",
        parameters=(OWNER,),
        answer=DeletedMemoryObject,
    ),
    Route(
        "GET",
        "/api/flushes",
        flushes,
        "List the flushes of ended sessions, the newest first.",
        parameters=(
            Parameter("state", "Only those in this state; `dead`: given up.", FlushState),
            *paging(),
            OWNERS,
        ),
        answer=ListObject[FlushObject],
    ),
    Route(
        "POST",
        "/api/flushes/retry",
        retry_all,
        "Retry all flushes that were given up.",
        parameters=(OWNERS,),
        body=RequestBody,
        body_optional=True,
        answer=FlushCountObject,
    ),
    Route(
        "POST",
        "/api/flushes/skip",
        skip_before,
        "Skip the flush of all sessions, open or ended, without activity since then.",
        parameters=(OWNERS,),
        body=SkipBody,
        answer=FlushCountObject,
    ),
    Route(
        "POST",
        "/api/flushes/{id}/retry",
        retry,
        "Retry a flush that was given up or skipped; a pending one is due at once.",
        parameters=(OWNER,),
        body=RequestBody,
        body_optional=True,
        answer=FlushObject,
    ),
    Route(
        "POST",
        "/api/flushes/{id}/skip",
        skip,
        "Skip the flush of this session.",
        parameters=(OWNER,),
        body=RequestBody,
        body_optional=True,
        answer=FlushObject,
    ),
)
