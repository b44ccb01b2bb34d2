"""`GET /api/turns/{id}`, `POST /api/turns/{id}/retry`: one turn, and its manual retry.

A retry resumes a turn that was interrupted or has failed, while it is the newest. The user's message and
finished tool calls stay, the partial reply leaves the context, and no tool is run again. The model is called
as the settings say: what a chat request sent for its turn only (instructions, tools, a temperature) was never
stored. For a response, the parameters that its object repeats are used again.
"""

from __future__ import annotations

import msgspec

from ...app import RunningTurn, TurnSpec
from ...domain.conversations import Address
from ...domain.ids import new_id
from ...domain.messages import instruction
from ...domain.turns import Turn, TurnOutdated, TurnRepeated, TurnRequest, TurnStatus
from ...errors import Conflict
from .. import objects
from ..http import JsonResponse, RequestContext
from ..openai.chat import ChatRenderer
from ..openai.responses import ResponseRenderer
from ..openai.responses_request import parse
from ..owners import OWNER, owner_of
from ..routes import Route
from ..schemas import TurnObject
from ..start_turn import counted
from ..streams import HEADERS_SECONDS

FINAL = (TurnStatus.COMPLETED, TurnStatus.CANCELLED)


async def turn(call: RequestContext) -> JsonResponse:
    return JsonResponse(objects.turn(await call.hf.turn(owner_of(call), call.path("id"))))


async def retry(call: RequestContext) -> JsonResponse:
    owner, turn_id = owner_of(call), call.path("id")
    running = await take_up(call)
    if isinstance(running, RunningTurn):
        await running.ended(HEADERS_SECONDS)
    now = await call.hf.turn(owner, turn_id)
    return JsonResponse(objects.turn(now), 202 if now.status is TurnStatus.RUNNING else 200)


async def take_up(call: RequestContext) -> RunningTurn | TurnRepeated | TurnOutdated:
    """Resume the turn without waiting for its end; raises Conflict if it is completed or cancelled."""
    known = await call.hf.turn(owner_of(call), call.path("id"))
    if known.status in FINAL:
        raise Conflict(
            f"turn {known.id} is {known.status.value}; only one that was interrupted or has failed can be "
            "retried"
        )
    wait_seconds = call.services.settings.server.busy_wait_seconds
    order = await _order(call, known)
    with counted(call, order.request.turn_id) as count:
        return count(await call.services.runner.begin(order, wait_seconds))


async def _order(call: RequestContext, known: Turn) -> TurnSpec:
    request = TurnRequest(
        turn_id=new_id("turn"),
        owner=known.owner,
        node_id=call.hf.node_id,
        address=Address(id=known.conversation_id, create=False),
        messages=(),
        resumes_turn=known.id,
        model=known.model,
    )
    prompt = call.services.settings.agent.system_prompt
    instructions = (instruction(prompt),) if prompt else ()
    if known.response_id is None:
        renderer = ChatRenderer(wants_usage=False)
        return TurnSpec(
            request,
            renderer,
            instructions,
            model=known.model,
            tools=call.caller.tools,
            check=call.check_key,
        )
    response = await call.hf.response(known.owner, known.response_id)
    kept = msgspec.json.decode(response.request)
    asked = parse({**kept["echo"], "model": kept["model"], "background": response.background, "input": "-"})
    if asked.instructions:
        instructions = (*instructions, instruction(asked.instructions))
    return TurnSpec(
        request,
        ResponseRenderer(response.id, asked),
        instructions,
        asked.options,
        known.model,
        tools=call.caller.tools,
        check=call.check_key,
    )


ROUTES = (
    Route("GET", "/api/turns/{id}", turn, "Read one turn.", parameters=(OWNER,), answer=TurnObject),
    Route(
        "POST",
        "/api/turns/{id}/retry",
        retry,
        "Retry the newest turn, if it was interrupted or has failed.",
        parameters=(OWNER,),
        answer=TurnObject,
        also={202: "The turn is still running."},
    ),
)
