"""`POST /api/sessions/{id}/end|cancel|resume|fork|compact|title|rewind` and `DELETE`: actions on a session.

An action that needs the conversation's lease waits for a running turn as long as a second request would, then
it is a 409. Turns are stopped through the runner, so that their subscribers are notified.
"""

from __future__ import annotations

from typing import Annotated, Literal

from ...domain.sessions import EndReason
from .. import objects
from ..conversation_ref import check_stores
from ..http import RequestContext
from ..limits import count_request
from ..openai.parameters import RequestBody, must_be
from ..owners import OWNER, owner_of
from ..response_writer import JsonResponse
from ..routes import Route
from ..schemas import DeletedSessionObject, NothingCancelledObject, SessionObject, TurnObject
from .sessions import shown


class EndBody(RequestBody, frozen=True, kw_only=True):
    """The reasons that a request may give for ending a session; the others are set by holdfast itself."""

    reason: Annotated[Literal["closed", "completed", "new"], must_be("one of closed, completed, new")] = (
        "closed"
    )


class ForkBody(RequestBody, frozen=True, kw_only=True):
    up_to: Annotated[int | None, must_be("the number of a message", minimum=0)] = None
    key: Annotated[str | None, must_be("text", minLength=1, maxLength=512)] = None


class TitleBody(RequestBody, frozen=True, kw_only=True):
    title: Annotated[str, must_be("the new title", minLength=1, maxLength=512)]


class RewindBody(RequestBody, frozen=True, kw_only=True):
    to: Annotated[
        str | int,
        must_be(
            "the id of a message or of a turn, or a message's number", minLength=1, maxLength=512, minimum=0
        ),
    ]


async def end(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    reason = EndReason((await call.decoded(EndBody)).reason)
    session = await call.hf.current_session(owner, call.path("id"))
    await call.hf.end_session(
        owner, session.id, reason, wait_seconds=_wait_seconds(call), check=call.check_key
    )
    return await shown(call, await call.hf.find_session(owner, session.id))


async def cancel(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    cancelled = await call.hf.cancel_running(owner, call.path("id"))
    if cancelled.turn is None:
        session = await call.hf.current_session(owner, call.path("id"))
        return JsonResponse(objects.nothing_cancelled(session, cancelled))
    return JsonResponse(objects.turn(cancelled.turn))


async def resume(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    session = await call.hf.session_named(owner, call.path("id"))
    resumed = await call.hf.resume_session(
        owner, session.id, wait_seconds=_wait_seconds(call), check=call.check_key
    )
    return await shown(call, resumed)


async def fork(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    asked = await call.decoded(ForkBody)
    session = await call.hf.session_named(owner, call.path("id"))
    forked = await call.hf.fork_session(owner, session.id, up_to=asked.up_to, key=asked.key)
    return await shown(call, forked)


async def compact(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    call.hold_turn()
    await count_request(call)
    return await shown(call, await call.hf.compact(owner, call.path("id")))


async def title(call: RequestContext) -> JsonResponse:
    check_stores(call, "setting a title")
    owner = owner_of(call)
    asked = await call.decoded(TitleBody)
    session = await call.hf.session_named(owner, call.path("id"))
    await call.hf.set_title(owner, session.conversation_id, asked.title)
    return await shown(call, await call.hf.find_session(owner, session.id))


async def rewind(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    asked = await call.decoded(RewindBody)
    done = await call.hf.rewind(owner, call.path("id"), asked.to, check=call.check_key)
    return await shown(call, done.session)


async def delete(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    session = await call.hf.session_named(owner, call.path("id"))
    tip = (await call.hf.resolve_name(owner, session.conversation_id)).tip
    await call.hf.delete_conversation(owner, session.conversation_id, tip.running_turn)
    return JsonResponse(
        DeletedSessionObject(
            id=session.id,
            object="session.deleted",
            conversation_id=session.conversation_id,
            deleted=True,
        )
    )


def _wait_seconds(call: RequestContext) -> float:
    return call.services.settings.server.busy_wait_seconds


ROUTES = (
    Route(
        "DELETE",
        "/api/sessions/{id}",
        delete,
        "Cancel the running turn and delete the whole conversation.",
        parameters=(OWNER,),
        answer=DeletedSessionObject,
    ),
    Route(
        "POST",
        "/api/sessions/{id}/end",
        end,
        "End an open session. After `new` the next message begins with an empty context.",
        parameters=(OWNER,),
        body=EndBody,
        body_optional=True,
        answer=SessionObject,
    ),
    Route(
        "POST",
        "/api/sessions/{id}/cancel",
        cancel,
        "Cancel the running turn; its partial reply is kept. If none is running, the answer says so.",
        parameters=(OWNER,),
        body=RequestBody,
        body_optional=True,
        answer=(TurnObject, NothingCancelledObject),
    ),
    Route(
        "POST",
        "/api/sessions/{id}/resume",
        resume,
        "Open a session that continues exactly this one; a newer open one ends as `new`.",
        parameters=(OWNER,),
        body=RequestBody,
        body_optional=True,
        answer=SessionObject,
    ),
    Route(
        "POST",
        "/api/sessions/{id}/fork",
        fork,
        "Start a new conversation with a copy of this session's context, up to a message.",
        parameters=(OWNER,),
        body=ForkBody,
        body_optional=True,
        answer=SessionObject,
    ),
    Route(
        "POST",
        "/api/sessions/{id}/title",
        title,
        "Set the title of the conversation.",
        parameters=(OWNER,),
        body=TitleBody,
        answer=SessionObject,
    ),
    Route(
        "POST",
        "/api/sessions/{id}/compact",
        compact,
        "Compact now: answers with the new session, whose older messages are a summary.",
        parameters=(OWNER,),
        body=RequestBody,
        body_optional=True,
        answer=SessionObject,
    ),
    Route(
        "POST",
        "/api/sessions/{id}/rewind",
        rewind,
        "Continue from a message, or from the end of a turn: what followed leaves the context.",
        parameters=(OWNER,),
        body=RewindBody,
        answer=SessionObject,
    ),
)
