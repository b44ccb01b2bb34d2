"""`GET /api/sessions/{id}/queue`, `PATCH|DELETE /api/turns/{id}`: the turns that wait in a conversation."""

from __future__ import annotations

from typing import Annotated, Any

from ...domain.messages import NewMessage
from ...domain.new_messages import new_messages
from ...errors import BadMessage, Conflict
from .. import objects
from ..bodies import check_counts
from ..conversation_ref import check_stores
from ..http import RequestContext
from ..openai.parameters import BadParameter, RequestBody, body_from, must_be
from ..owners import OWNER, note_reading, owner_of
from ..response_writer import JsonResponse
from ..routes import Route
from ..schemas import ListObject, QueuedTurnObject, TurnObject

WITHDRAWN = "a person withdrew it"


class EditBody(RequestBody, frozen=True, kw_only=True):
    """What a queued turn is to say instead: a text, or messages."""

    content: Annotated[str | list[Any] | None, must_be("text or content parts")] = None
    messages: Annotated[list[Any] | None, must_be("a list of messages")] = None


async def queue(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    session = await call.hf.session_named(owner, call.path("id"))
    await note_reading(call, owner, session)
    found = await call.hf.queue(owner, session.conversation_id)
    return JsonResponse(objects.listed([objects.queued_turn(each) for each in found]))


async def edit(call: RequestContext) -> JsonResponse:
    check_stores(call, "editing a queued turn")
    owner, body = owner_of(call), await call.body()
    most = call.services.settings.limits.messages_per_request
    messages = await call.work(
        len(body), lambda: _messages(body_from(call.parsed(body, optional=True), EditBody), most)
    )
    edited = await call.hf.edit_queued(owner, call.path("id"), messages)
    return JsonResponse(objects.queued_turn(edited))


async def withdraw(call: RequestContext) -> JsonResponse:
    owner, turn_id = owner_of(call), call.path("id")
    withdrawn = await call.hf.withdraw_queued(owner, turn_id, WITHDRAWN)
    turn = await call.hf.turn(owner, turn_id)
    if not withdrawn:
        raise Conflict(
            f"turn {turn_id} is {turn.status.value}; only a queued turn can be withdrawn. A running one is "
            f"cancelled by POST /api/sessions/{turn.session_id}/cancel"
        )
    return JsonResponse(objects.turn(turn))


def _messages(asked: EditBody, most: int) -> tuple[NewMessage, ...]:
    if (asked.content is None) == (asked.messages is None):
        raise BadParameter("content", "or messages must be given, and not both")
    param = "content" if asked.messages is None else "messages"
    given: Any = asked.messages
    if asked.content is not None:
        given = [{"role": "user", "content": asked.content}]
    check_counts(given, param, most)
    try:
        messages = new_messages(given)
    except BadMessage as error:
        raise BadParameter(param, f"cannot be used: {error}") from None
    if not messages or any(message.role != "user" for message in messages):
        raise BadParameter(param, "must be messages of the user, at least one")
    return messages


ROUTES = (
    Route(
        "GET",
        "/api/sessions/{id}/queue",
        queue,
        "List the turns that wait until the conversation is free, in order.",
        parameters=(OWNER,),
        answer=ListObject[QueuedTurnObject],
    ),
    Route(
        "PATCH",
        "/api/turns/{id}",
        edit,
        "Replace the messages of a queued turn; it keeps its place.",
        parameters=(OWNER,),
        body=EditBody,
        answer=QueuedTurnObject,
    ),
    Route(
        "DELETE",
        "/api/turns/{id}",
        withdraw,
        "Withdraw a queued turn: it ends as cancelled.",
        parameters=(OWNER,),
        answer=TurnObject,
    ),
)
