"""`GET /api/turns/{id}`, `POST /api/turns/{id}/retry`: one turn, and its manual retry.

A retry resumes a turn that was interrupted or has failed, while it is the newest. The user's message and
finished tool calls stay, the partial reply leaves the context, and no tool is run again. The model gets the
turn's own request again. That is kept for a day; afterwards the model is called as the settings say, and for
a response with the parameters that its object repeats.
"""

from __future__ import annotations

import msgspec

from ...app import RunningTurn, TurnSpec
from ...domain.messages import instruction
from ...domain.recovery import decoded_request
from ...domain.turns import Turn, TurnOutdated, TurnRepeated, TurnStatus
from ...errors import Conflict
from .. import objects
from ..http import RequestContext
from ..limits import count_request, counted_turn, limited_key
from ..openai.completions import ChatRenderer
from ..openai.responses import ResponseRenderer
from ..openai.responses_request import parse
from ..owners import OWNER, owner_of
from ..rebuild import rebuilt, resuming
from ..response_writer import JsonResponse
from ..routes import Route
from ..schemas import TurnObject
from ..streams import HEADERS_SECONDS

FINAL = (TurnStatus.COMPLETED, TurnStatus.CANCELLED)


async def turn(call: RequestContext) -> JsonResponse:
    return JsonResponse(_object(call, await call.hf.turn(owner_of(call), call.path("id"))))


def _object(call: RequestContext, value: Turn) -> TurnObject:
    running = call.services.runner.running.get(value.id)
    most = call.services.settings.turns.max_attempts
    return objects.turn(value, doing=running.doing if running else None, most_attempts=most)


async def retry(call: RequestContext) -> JsonResponse:
    owner, turn_id = owner_of(call), call.path("id")
    running = await take_up(call)
    if isinstance(running, RunningTurn):
        await running.ended(HEADERS_SECONDS)
    now = await call.hf.turn(owner, turn_id)
    return JsonResponse(_object(call, now), 202 if now.shown_status is TurnStatus.RUNNING else 200)


async def take_up(call: RequestContext) -> RunningTurn | TurnRepeated | TurnOutdated:
    """Resume the turn without waiting for its end; raises Conflict if it is completed or cancelled."""
    known = await call.hf.turn(owner_of(call), call.path("id"))
    if known.status in FINAL:
        raise Conflict(
            f"turn {known.id} is {known.status.value}; only one that was interrupted or has failed can be "
            "retried"
        )
    wait_seconds = call.services.settings.server.busy_wait_seconds
    stored = await call.hf.stored_request(None, known.id)
    if stored is not None:
        order = await rebuilt(
            call.hf, known, decoded_request(stored), call.caller.tools, call.check_key, limited_key(call)
        )
    else:
        order = await _order(call, known)
    await count_request(call)
    return await counted_turn(
        call, order.request.turn_id, lambda: call.services.runner.begin(order, wait_seconds)
    )


async def _order(call: RequestContext, known: Turn) -> TurnSpec:
    """The turn as it can be rebuilt without its stored request."""
    request = resuming(call.hf, known, limited_key(call))
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
