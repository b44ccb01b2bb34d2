"""`POST /api/sessions/{id}/end|cancel|resume|fork|compact` and `DELETE`: manual actions on a session.

An action that needs the conversation's lease waits for a running turn as long as a second request would, then
it is a 409. Turns are stopped through the runner, so that their subscribers are notified.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ...domain.sessions import EndReason
from ...domain.turns import TurnStatus
from ...errors import NotCompacted
from ...readings import place_of, session_going_on, session_named
from .. import objects
from ..http import JsonResponse, RequestContext
from ..openai.parameters import BadParameter, kind
from ..owners import OWNER, owner_of
from ..routes import Route
from ..schemas import NUMBER, one_of, ref
from .sessions import shown

T = TypeVar("T")

REASONS = (EndReason.CLOSED, EndReason.COMPLETED, EndReason.NEW)
"""The reasons that a request may give for ending a session; the others are set by holdfast itself."""


async def end(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    body = await fields_of(call, "reason")
    reason = body.get("reason", EndReason.CLOSED)
    if reason not in REASONS:
        raise BadParameter("reason", f"must be one of {', '.join(REASONS)}, not {reason!r:.40}")
    session = await session_going_on(call.store, owner, call.path("id"))
    await _when_free(call, lambda: call.store.end_session(owner, session.id, reason))
    return await shown(call, await call.store.session(owner, session.id))


async def cancel(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await fields_of(call)
    name = call.path("id")
    place = await place_of(call.store, owner, name)
    turn_id = name if name.startswith("turn_") else place.tip.running_turn
    if turn_id is None:
        return JsonResponse(None)
    await _stop(call, owner, turn_id)
    return JsonResponse(objects.turn(await call.store.turn(owner, turn_id)))


async def resume(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await fields_of(call)
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
    body = await fields_of(call, "up_to", "key")
    up_to, key = body.get("up_to"), body.get("key")
    if up_to is not None and (not isinstance(up_to, int) or isinstance(up_to, bool)):
        raise BadParameter("up_to", f"must be the number of a message, not {kind(up_to)}")
    if key is not None and not isinstance(key, str):
        raise BadParameter("key", f"must be text, not {kind(key)}")
    session = await session_named(call.store, owner, call.path("id"))
    holdfast = call.services.holdfast
    forked = await holdfast.keeper.as_living(
        lambda: call.store.fork(owner, session.id, holdfast.node_id, up_to=up_to, key=key)
    )
    return await shown(call, forked)


async def compact(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await fields_of(call)
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
        {
            "id": session.id,
            "object": "session.deleted",
            "conversation_id": session.conversation_id,
            "deleted": True,
        }
    )


async def _stop(call: RequestContext, owner: str, turn_id: str) -> None:
    await call.services.runner.stop(owner, turn_id, TurnStatus.CANCELLED, "a person cancelled it")


async def _when_free(call: RequestContext, act: Callable[[], Awaitable[T]]) -> T:
    async def checked() -> T:
        await call.check_key()
        return await act()

    wait_seconds = call.services.settings.server.busy_wait_seconds
    return await call.services.holdfast.leases.when_free(checked, wait_seconds)


async def fields_of(call: RequestContext, *known: str) -> dict[str, Any]:
    """The body's fields that are not null. Raises BadParameter for an unknown field: it is never ignored."""
    body = await call.json(optional=True)
    for name in body:
        if name not in known:
            valid = f"; there are {', '.join(known)}" if known else "; this takes none"
            raise BadParameter(f"{name:.80}", f"is not a field of this request{valid}")
    return {name: value for name, value in body.items() if value is not None}


def body_of(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


ROUTES = (
    Route(
        "DELETE",
        "/api/sessions/{id}",
        delete,
        "Cancel what runs, and remove the whole conversation for good.",
        parameters=(OWNER,),
        answer=ref("DeletedSession"),
    ),
    Route(
        "POST",
        "/api/sessions/{id}/end",
        end,
        "End an open session. After `new` the next message begins afresh, else it goes on.",
        parameters=(OWNER,),
        body=body_of(reason={**one_of(*REASONS), "default": EndReason.CLOSED.value}),
        body_optional=True,
        answer=ref("Session"),
    ),
    Route(
        "POST",
        "/api/sessions/{id}/cancel",
        cancel,
        "Stop the conversation's running turn; what it had said is kept. Null: none was running.",
        parameters=(OWNER,),
        body=body_of(),
        body_optional=True,
        answer={"anyOf": [ref("Turn"), {"type": "null"}]},
    ),
    Route(
        "POST",
        "/api/sessions/{id}/resume",
        resume,
        "Go on from that very session: opens one that sees what it saw; a newer open one ends as `new`.",
        parameters=(OWNER,),
        body=body_of(),
        body_optional=True,
        answer=ref("Session"),
    ),
    Route(
        "POST",
        "/api/sessions/{id}/fork",
        fork,
        "Begin a new conversation with a copy of this session's context, up to a message.",
        parameters=(OWNER,),
        body=body_of(up_to=NUMBER, key={"type": "string", "minLength": 1, "maxLength": 512}),
        body_optional=True,
        answer=ref("Session"),
    ),
    Route(
        "POST",
        "/api/sessions/{id}/compact",
        compact,
        "Go on with a summary of the older messages, now: answers with the session that goes on.",
        parameters=(OWNER,),
        body=body_of(),
        body_optional=True,
        answer=ref("Session"),
    ),
)
