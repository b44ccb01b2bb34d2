"""Rebuilds the turn of a stored request, to ask the model again: for a retry, or for a turn that is waiting.

The model gets the same options and instructions as in the first attempt, and the renderer makes the same kind
of events, so that a client that asks again can join the turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..app import Holdfast, TurnRenderer, TurnSpec
from ..domain.conversations import Address
from ..domain.ids import new_id, new_request_id
from ..domain.recovery import StoredRequest
from ..domain.turns import Turn, TurnRequest
from .anthropic import request as anthropic_request
from .anthropic.messages import options_of, renderer_of
from .openai.completions import ChatRenderer
from .openai.responses import ResponseRenderer
from .openai.responses_request import parse

NO_MESSAGE = {"role": "user", "content": "-"}
"""Placeholder for the messages, which a parser requires and which are stored elsewhere."""


async def rebuilt(
    hf: Holdfast,
    turn: Turn,
    stored: StoredRequest,
    tools: frozenset[str],
    check: Callable[[], Awaitable[None]],
    api_key: str | None = None,
) -> TurnSpec:
    """The turn of this stored request, to be resumed. `tools`: the server tools that it may use now; `check`
    raises when its caller may no longer act; `api_key`: the key for whose limits its tokens count."""
    request = resuming(hf, turn, api_key)
    instructions = stored.first_messages()
    fields = stored.fields()
    match stored.surface:
        case "responses":
            asked = parse({**fields, "input": "-"})
            renderer: TurnRenderer = ResponseRenderer(turn.response_id or "", asked)
            return TurnSpec(
                request,
                renderer,
                instructions,
                asked.options,
                turn.model,
                tools=tools,
                check=check,
                compact_at=asked.compact_at,
                max_tool_calls=asked.max_tool_calls,
            )
        case "anthropic":
            body = {**fields, "messages": [NO_MESSAGE]}
            message = anthropic_request.parse(body, headers=stored.headers)
            return TurnSpec(
                request,
                renderer_of(new_request_id(), message),
                instructions,
                await options_of(hf, message),
                turn.model,
                tools=tools,
                check=check,
                native=message.native,
            )
        case _:
            wanted = fields.get("stream_options")
            renderer = ChatRenderer(
                isinstance(wanted, dict) and bool(wanted.get("include_usage")),
                silent=fields.get("stream") is False,
            )
            return TurnSpec(request, renderer, instructions, fields, turn.model, tools=tools, check=check)


def resuming(hf: Holdfast, turn: Turn, api_key: str | None = None) -> TurnRequest:
    """The request that resumes this turn."""
    return TurnRequest(
        turn_id=new_id("turn"),
        owner=turn.owner,
        node_id=hf.node_id,
        address=Address(id=turn.conversation_id, create=False),
        messages=(),
        resumes_turn=turn.id,
        model=turn.model,
        api_key=api_key,
    )
