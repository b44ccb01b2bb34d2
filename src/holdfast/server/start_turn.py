"""Starts the turn of a request: match its history, take the lease, call the model.

If the conversation changed after the match (optimistic lock), the match is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ..app import ClientCompaction, Placement, RunningTurn, TurnSpec
from ..domain.conversations import Address
from ..domain.history import History
from ..domain.ids import new_id
from ..domain.messages import instruction, reply_in
from ..domain.queue import QUEUES, WhenBusy, can_queue
from ..domain.recovery import Origin, RequestToStore, is_covered
from ..domain.turns import (
    ConversationVersion,
    Delivery,
    NewResponse,
    Turn,
    TurnOutdated,
    TurnRepeated,
    TurnRequest,
    TurnStatus,
)
from ..errors import ConversationBusy, ToolCallClosed, TurnStopped
from .conversation_ref import ConversationRef, about, headers_of, request_key, wants_recovery
from .http import JsonResponse, RequestContext
from .http_errors import RETRY, HttpError
from .limits import count_request, limited_key
from .schemas import HoldfastObject
from .streams import HEADERS

MOST_TRIES = 100
LATER = {**RETRY, "retry-after": "1"}
NEVER = ConversationVersion("nowhere", 0, 0)
"""A version that no conversation has, so that no new turn can start with it."""


async def start_turn(
    call: RequestContext, order: TurnSpec, place: Callable[[], Awaitable[Placement]], naming: ConversationRef
) -> RunningTurn | TurnRepeated:
    """Start the turn, join it if it runs, or return its stored answer. `place` finds its conversation."""
    services = call.services
    if services.draining.is_set():
        raise HttpError(503, "the server is stopping; retry in a moment", "draining", headers=LATER)
    await count_request(call)
    return await counted(call, order.request.turn_id, lambda: _begun(call, order, place, naming))


async def _begun(
    call: RequestContext, order: TurnSpec, place: Callable[[], Awaitable[Placement]], naming: ConversationRef
) -> RunningTurn | TurnRepeated:
    services = call.services
    loop = asyncio.get_running_loop()
    deadline = loop.time() + services.settings.server.busy_wait_seconds
    for _ in range(MOST_TRIES):
        left = max(0.0, deadline - loop.time())
        try:
            placed = await place()
        except ToolCallClosed as refusal:
            return await _asked_before(call, order, left, refusal)
        if placed.compacts is not None:
            placed = await _compacted(call, placed, placed.compacts, left)
        attempt = replace(
            order,
            request=placed.applied_to(order.request),
            fingerprints=placed.fingerprints,
            history=placed.history,
        )
        outcome = await _begin_or_queue(call, attempt, left, naming.when_busy)
        if not isinstance(outcome, TurnOutdated | None):
            if naming.alias is not None and isinstance(outcome, RunningTurn):
                await call.hf.add_alias(order.request.owner, naming.alias, outcome.session.conversation_id)
            return outcome
    raise ConversationBusy(str(naming.address))


async def _compacted(
    call: RequestContext, placed: Placement, wanted: ClientCompaction, busy_seconds: float
) -> Placement:
    """Compact the conversation as its client has compacted its history; the placement for the turn after it.
    If that is not possible now, the turn continues with the whole context."""
    compactor, seen = call.services.runner.compactor, placed.seen
    if compactor is None or seen is None:
        return placed
    done = await compactor.adopt(wanted.session_id, wanted.view, wanted.messages, busy_seconds)
    if done is None:
        return placed
    now = (await call.hf.resolve(call.owner, Address(id=seen.conversation_id))).conversation
    return replace(placed, seen=ConversationVersion(now.id, seen.last_seq, now.revision))


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
    except ConversationBusy:
        if not queues:
            raise
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


async def stored_answer(
    call: RequestContext,
    repeated: TurnRepeated,
    address: Address,
    whole: Callable[[Mapping[str, Any], Mapping[str, Any], HoldfastObject], dict[str, Any]],
    streamed: Callable[[dict[str, Any]], bytes] | None,
) -> JsonResponse:
    """The stored answer, for a retry of its request. `whole` renders it from the model's completion, the
    reply and the `holdfast` field; `streamed`, if given, as a stream. Raises TurnStopped if it was cancelled.
    """
    turn, session = repeated.turn, repeated.session
    if turn.status is not TurnStatus.COMPLETED:
        raise TurnStopped(turn.id, turn.status.value, "it was asked to stop")
    answer = msgspec.json.decode(await call.hf.turn_answer(turn.id) or b'{"choices":[{}]}')
    said = reply_in(await call.hf.turn_messages(turn.id)) or {}
    addressed = address.id if address.id and address.id.startswith("sess_") else None
    rendered = whole(answer, said, about(session, turn, addressed))
    headers = headers_of(session, turn)
    if streamed is None:
        return JsonResponse(rendered, headers=headers, answers=turn.id)
    return JsonResponse(
        streamed(rendered),
        headers={**HEADERS, **headers},
        media_type=HEADERS["content-type"],
        answers=turn.id,
    )


async def about_to_send(call: RequestContext, order: TurnSpec, turn: Turn) -> None:
    """Record that an opener's stored answer or its ids are about to be sent. Must be stored before they are
    sent, so that no later request, not even after a crash, is given the same conversation."""
    key = order.request.request_key
    if key is not None and key.implied and key.opener:
        await call.services.runner.receipts.settle(turn.id, Delivery.PART)


Outcome = TypeVar("Outcome", bound=RunningTurn | TurnRepeated | TurnOutdated)


async def counted(call: RequestContext, turn_id: str, start: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Count a turn of the request's API key: while it waits to start, and until the turn that it started or
    joined has ended. Raises HttpError 429 if the key has too many."""
    turns, key_id = call.services.limits.turns, call.caller.key_id
    turns.begin(key_id, turn_id)
    try:
        outcome = await start()
    except BaseException:
        turns.end(key_id, turn_id)
        raise
    if not isinstance(outcome, RunningTurn) or outcome.task is None or outcome.outcome is not None:
        turns.end(key_id, turn_id)
        return outcome
    runs = outcome.turn.id
    if runs != turn_id:  # one that it joined or resumed
        turns.end(key_id, turn_id)
        turns.begin(key_id, runs)
    outcome.when_ended(lambda: turns.end(key_id, runs))
    return outcome


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
