"""`POST /api/sessions/{id}/end|cancel|resume|fork|compact` and `DELETE`: manual actions on a session.

An action that needs the conversation's lease waits for a running turn as long as a second request would, then
it is a 409. Turns are stopped through the runner, so that their subscribers are notified.
"""

from __future__ import annotations

from typing import Any

from ...domain.sessions import EndReason
from .. import objects
from ..http import JsonResponse, RequestContext
from ..openai.parameters import BadParameter, kind
from ..owners import OWNER, owner_of
from ..routes import Route
from ..schemas import NUMBER, one_of, ref
from .sessions import shown

REASONS = (EndReason.CLOSED, EndReason.COMPLETED, EndReason.NEW)
"""The reasons that a request may give for ending a session; the others are set by holdfast itself."""


async def end(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    body = await fields_of(call, "reason")
    reason = body.get("reason", EndReason.CLOSED)
    if reason not in REASONS:
        raise BadParameter("reason", f"must be one of {', '.join(REASONS)}, not {reason!r:.40}")
    session = await call.hf.current_session(owner, call.path("id"))
    await call.hf.end_session(
        owner, session.id, reason, wait_seconds=_wait_seconds(call), check=call.check_key
    )
    return await shown(call, await call.hf.find_session(owner, session.id))


async def cancel(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await fields_of(call)
    turn, _ = await call.hf.cancel_running(owner, call.path("id"))
    return JsonResponse(None if turn is None else objects.turn(turn))


async def resume(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await fields_of(call)
    session = await call.hf.session_named(owner, call.path("id"))
    resumed = await call.hf.resume_session(
        owner, session.id, wait_seconds=_wait_seconds(call), check=call.check_key
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
    session = await call.hf.session_named(owner, call.path("id"))
    forked = await call.hf.fork_session(owner, session.id, up_to=up_to, key=key)
    return await shown(call, forked)


async def compact(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    await fields_of(call)
    return await shown(call, await call.hf.compact(owner, call.path("id")))


async def delete(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    session = await call.hf.session_named(owner, call.path("id"))
    tip = (await call.hf.resolve_name(owner, session.conversation_id)).tip
    await call.hf.delete_conversation(owner, session.conversation_id, tip.running_turn)
    return JsonResponse(
        {
            "id": session.id,
            "object": "session.deleted",
            "conversation_id": session.conversation_id,
            "deleted": True,
        }
    )


def _wait_seconds(call: RequestContext) -> float:
    return call.services.settings.server.busy_wait_seconds


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
