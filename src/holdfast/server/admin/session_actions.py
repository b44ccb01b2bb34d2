"""`POST /api/sessions/{id}/end|cancel|resume|fork|compact` and `DELETE`: manual actions on a session.

An action that needs the conversation's lease waits for a running turn as long as a second request would, then
it is a 409. Turns are stopped through the runner, so that their subscribers are notified.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeVar

from ...domain.sessions import EndReason
from ...domain.turns import TurnStatus
from ...errors import NotCompacted
from ...readings import place_of, session_going_on, session_named
from .. import objects
from ..http import JsonResponse, RequestContext
from ..openai.parameters import RequestBody, must_be
from ..owners import OWNER, owner_of
from ..routes import Route
from ..schemas import DeletedSessionObject, SessionObject, TurnObject
from .sessions import shown

T = TypeVar("T")


class EndBody(RequestBody, frozen=True, kw_only=True):
    """The reasons that a request may give for ending a session; the others are set by holdfast itself."""

    reason: Annotated[Literal["closed", "completed", "new"], must_be("one of closed, completed, new")] = (
        "closed"
    )


class ForkBody(RequestBody, frozen=True, kw_only=True):
    up_to: Annotated[int | None, must_be("the number of a message", minimum=0)] = None
    key: Annotated[str | None, must_be("text", minLength=1, maxLength=512)] = None


async def end(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    reason = EndReason((await call.decoded(EndBody)).reason)
    session = await session_going_on(call.store, owner, call.path("id"))
    await _when_free(call, lambda: call.store.end_session(owner, session.id, reason))
    return await shown(call, await call.store.session(owner, session.id))


async def cancel(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    name = call.path("id")
    place = await place_of(call.store, owner, name)
    turn_id = name if name.startswith("turn_") else place.tip.running_turn
    if turn_id is None:
        return JsonResponse(None)
    await _stop(call, owner, turn_id)
    return JsonResponse(objects.turn(await call.store.turn(owner, turn_id)))


async def resume(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    session = await session_named(call.store, owner, call.path("id"))
    holdfast = call.services.holdfast
    resumed = await _when_free(
        call,
        lambda: holdfast.keeper.as_living(
            lambda: call.store.resume_session(owner, session.id, holdfast.node_id)
        ),
    )
    return await shown(call, resumed)


async def fork(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    asked = await call.decoded(ForkBody)
    session = await session_named(call.store, owner, call.path("id"))
    holdfast = call.services.holdfast
    forked = await holdfast.keeper.as_living(
        lambda: call.store.fork(owner, session.id, holdfast.node_id, up_to=asked.up_to, key=asked.key)
    )
    return await shown(call, forked)


async def compact(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await call.decoded(RequestBody)
    tip = (await place_of(call.store, owner, call.path("id"))).tip
    compactor = call.services.runner.compactor
    if compactor is None:
        raise NotCompacted("this server compacts nothing")
    wait_seconds = call.services.settings.server.busy_wait_seconds
    return await shown(call, await compactor.by_hand(tip, wait_seconds))


async def delete(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    session = await session_named(call.store, owner, call.path("id"))
    tip = (await place_of(call.store, owner, session.conversation_id)).tip
    if tip.running_turn is not None:
        await _stop(call, owner, tip.running_turn)
    await call.store.delete_conversation(owner, session.conversation_id)
    return JsonResponse(
        DeletedSessionObject(
            id=session.id,
            object="session.deleted",
            conversation_id=session.conversation_id,
            deleted=True,
        )
    )


async def _stop(call: RequestContext, owner: str, turn_id: str) -> None:
    await call.services.runner.stop(owner, turn_id, TurnStatus.CANCELLED, "a person cancelled it")


async def _when_free(call: RequestContext, act: Callable[[], Awaitable[T]]) -> T:
    async def checked() -> T:
        await call.check_key()
        return await act()

    wait_seconds = call.services.settings.server.busy_wait_seconds
    return await call.services.holdfast.leases.when_free(checked, wait_seconds)


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
        "Cancel the running turn; its partial reply is kept. Null: none was running.",
        parameters=(OWNER,),
        body=RequestBody,
        body_optional=True,
        answer=TurnObject | None,
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
        "/api/sessions/{id}/compact",
        compact,
        "Compact now: answers with the new session, whose older messages are a summary.",
        parameters=(OWNER,),
        body=RequestBody,
        body_optional=True,
        answer=SessionObject,
    ),
)
