"""Starts the turn of a request: match its history, take the lease, call the model.

If the conversation changed after the match (optimistic lock), the match is repeated. A request whose turn
does not run here is answered by `repeated.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from ..app import Placement, RunningTurn, TurnSpec
from ..domain.history import History
from ..domain.ids import new_id
from ..domain.messages import instruction
from ..domain.queue import QUEUES, WhenBusy, can_queue
from ..domain.recovery import Origin, RequestToStore, is_covered
from ..domain.turns import (
    ConversationVersion,
    NewResponse,
    TurnOutdated,
    TurnRepeated,
    TurnRequest,
)
from ..errors import ConversationBusy, ToolCallClosed
from .conversation_ref import ConversationRef, request_key, wants_recovery
from .http import RequestContext
from .http_errors import RETRY, HttpError
from .limits import count_request, counted_turn, limited_key

MOST_TRIES = 100
LATER = {**RETRY, "retry-after": "1"}
NEVER = ConversationVersion("nowhere", 0, 0)
"""A version that no conversation has, so that no new turn can start with it."""


async def start_turn(
    call: RequestContext, order: TurnSpec, place: Callable[[], Awaitable[Placement]], naming: ConversationRef
) -> RunningTurn | TurnRepeated:
    """Start the turn, join it if it runs, or return its stored answer. `place` finds its conversation."""
    if call.services.draining.is_set():
        raise HttpError(503, "the server is stopping; retry in a moment", "draining", headers=LATER)
    await count_request(call)
    return await counted_turn(call, order.request.turn_id, lambda: _begun(call, order, place, naming))


async def _begun(
    call: RequestContext, order: TurnSpec, place: Callable[[], Awaitable[Placement]], naming: ConversationRef
) -> RunningTurn | TurnRepeated:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + call.services.settings.server.busy_wait_seconds
    for _ in range(MOST_TRIES):
        left = max(0.0, deadline - loop.time())
        try:
            placed = await place()
        except ToolCallClosed as refusal:
            return await _asked_before(call, order, left, refusal)
        attempt = replace(
            order,
            request=placed.applied_to(order.request),
            fingerprints=placed.fingerprints,
            history=placed.history,
            compacts=placed.compacts,
            withdraws_refused=call.has_client,
        )
        outcome = await _begin_or_queue(call, attempt, left, naming.when_busy)
        if not isinstance(outcome, TurnOutdated | None):
            return outcome
    raise ConversationBusy(str(naming.address))


def prompted(call: RequestContext, instructions: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """These instructions, after the server's own prompt."""
    prompt = call.services.settings.agent.system_prompt
    return (instruction(prompt), *instructions) if prompt else instructions


async def _begin_or_queue(
    call: RequestContext, order: TurnSpec, left: float, when_busy: WhenBusy
) -> RunningTurn | TurnRepeated | TurnOutdated | None:
    """Begin the turn, or do what the request wants while its conversation is busy. A turn that is queued is
    returned as TurnRepeated, with that status. None: the conversation became free meanwhile, try again.

    Only messages of the user are queued: a fork, a regenerated answer and the results of a client's tools
    belong to the conversation as it is, so they wait.
    """
    runner, request = call.services.runner, order.request
    queues = when_busy in QUEUES and can_queue(request)
    if when_busy is WhenBusy.INTERRUPT:
        order = replace(order, request=replace(request, overtakes=True))
    try:
        wait = 0.0 if queues or when_busy is WhenBusy.REJECT else left
        return await runner.begin(order, wait, interrupt=when_busy is WhenBusy.INTERRUPT)
    except ConversationBusy as busy:
        if not queues:
            raise
        running = runner.running.get(busy.turn_id or "")
        if running is not None and running.has_listener and request.request_key is not None:
            request = replace(request, request_key=request.request_key.as_queued())
    settings = call.services.settings.turns
    stored = request.stored
    if stored.origin is Origin.FOREGROUND:
        covered = is_covered(settings.recover, Origin.QUEUED, wants_recovery(call))
        stored = RequestToStore(stored.request, Origin.QUEUED, covered)
    return await call.hf.queue_turn(
        replace(request, stored=stored, streams=False),
        most=settings.queue,
        steers=when_busy is WhenBusy.STEER,
    )


def turn_request(
    call: RequestContext,
    naming: ConversationRef,
    route: str,
    digest: bytes,
    history: History,
    *,
    model: str | None,
    streams: bool,
    stored: RequestToStore,
    response: NewResponse | None = None,
) -> TurnRequest:
    """The turn that a request asks for. `digest`: the hash of its body; `stored`: what is kept of it."""
    return TurnRequest(
        turn_id=new_id("turn"),
        owner=call.owner,
        node_id=call.hf.node_id,
        address=naming.address,
        messages=history.messages,
        source=naming.source,
        alias=naming.alias,
        request_key=request_key(
            call,
            route,
            digest,
            opener=not naming.names_something and not history.answered,
            client=naming.client,
        ),
        model=model,
        parent=naming.client.parent if naming.client else None,
        streams=streams,
        response=response,
        stored=stored,
        api_key=limited_key(call),
    )


async def _asked_before(
    call: RequestContext, order: TurnSpec, wait_seconds: float, refusal: ToolCallClosed
) -> RunningTurn | TurnRepeated:
    """Answer a retry of a request whose tool results were accepted before. Otherwise they are too late and
    `refusal` is raised. Starts no new turn."""
    known = replace(order, request=replace(order.request, seen=NEVER, answer_existing=True))
    outcome = await call.services.runner.begin(known, wait_seconds)
    if isinstance(outcome, TurnOutdated):
        raise refusal
    return outcome
