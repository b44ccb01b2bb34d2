"""Answers requests whose turn does not run here: a stored answer, or a queued turn and its later stream.

The turn does not depend on the connection: a client that disconnects leaves it in the queue, and any server
begins it. Its stream only follows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..app import RunningTurn, TurnSpec
from ..domain.conversations import Address
from ..domain.turns import (
    Delivery,
    Turn,
    TurnRepeated,
    TurnStatus,
)
from ..domain.visible_messages import reply_in
from ..errors import HoldfastError, TurnStopped
from .conversation_ref import about, headers_of
from .http import RequestContext
from .http_errors import failure_of
from .response_writer import HttpResponse, JsonResponse
from .schemas import HoldfastObject, QueuedObject
from .sse import HEADERS, LOOK_SECONDS, Listener, framed
from .streams import HEADERS_SECONDS, TurnStream

Render = Callable[[RunningTurn | TurnRepeated], Awaitable[HttpResponse]]


def is_queued(outcome: RunningTurn | TurnRepeated) -> bool:
    """True: the request's turn is in the queue of its conversation."""
    return isinstance(outcome, TurnRepeated) and outcome.turn.status is TurnStatus.QUEUED


def must_wait(outcome: RunningTurn | TurnRepeated) -> bool:
    """True: the request's turn is queued, or its messages joined a turn that has not ended."""
    return isinstance(outcome, TurnRepeated) and not outcome.turn.is_final


async def queued_answer(call: RequestContext, queued: TurnRepeated) -> JsonResponse:
    """202, with the place of the turn in its queue."""
    turn = queued.turn
    queue = await call.hf.queue(turn.owner, turn.conversation_id)
    position = next((each.position for each in queue if each.turn.id == turn.id), 0)
    body = QueuedObject(
        id=turn.id,
        object="turn",
        status=TurnStatus.QUEUED,
        position=position,
        session_id=turn.session_id,
        conversation_id=turn.conversation_id,
    )
    return JsonResponse(body, 202, headers=_headers(queued))


@dataclass(slots=True)
class QueuedStream:
    """Waits until a queued turn has begun, then sends its stream. If its messages joined another turn, whose
    events are those of another request, it waits for the answer. Keepalive comments are sent meanwhile."""

    queued: TurnRepeated
    render: Render

    async def send(self, call: RequestContext) -> None:
        beginning = asyncio.ensure_future(self._begun(call))
        try:
            late = await self._wait(call, beginning)
        finally:
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)
        if late is None:
            return
        if not late:
            await (await self.render(beginning.result())).send(call)
            return
        try:
            response = await self.render(beginning.result())
        except HoldfastError as error:
            named = b"event: error\n" if call.is_anthropic else b""
            await call.finish(named + framed(msgspec.json.encode(call.error(failure_of(error)))))
            return
        if isinstance(response, TurnStream):  # the status line was sent: errors are events
            response = replace(response, waits=False)
        await response.send(call)

    async def _wait(
        self, call: RequestContext, beginning: asyncio.Future[RunningTurn | TurnRepeated]
    ) -> bool | None:
        """Wait until the turn has begun; returns whether the headers were sent meanwhile. None: the client
        has disconnected, or its key was revoked."""
        async with Listener(call) as listener:
            await listener.waits_for(beginning, HEADERS_SECONDS)
            late = not beginning.done() and not listener.gone
            if late:
                await call.start(200, {**HEADERS, **_headers(self.queued)})
            while not beginning.done():
                if not await listener.still_there():
                    return None
                await listener.waits_for(beginning, LOOK_SECONDS)
            return late

    async def _begun(self, call: RequestContext) -> RunningTurn | TurnRepeated:
        """Wait until the turn runs here, or has ended on any node."""
        known = self.queued.turn
        while True:
            version = call.hf.version()
            turn = await call.hf.turn(known.owner, known.id)
            running = call.services.runner.running.get(turn.id)
            if running is not None and known.joined is None:
                return running
            if turn.is_final:
                return TurnRepeated(await _answering(call, turn), self.queued.session)
            await call.changed(version, LOOK_SECONDS)


async def _answering(call: RequestContext, turn: Turn) -> Turn:
    """The turn that has the answer: itself, or the one that its messages joined. Raises TurnStopped if there
    is no answer."""
    if turn.status is not TurnStatus.COMPLETED:
        raise TurnStopped(turn.id, turn.status.value, turn.why or turn.error or "it has no answer")
    return turn if turn.joined is None else await call.hf.turn(turn.owner, turn.joined)


def _headers(queued: TurnRepeated) -> dict[str, str]:
    named = headers_of(queued.session, queued.turn)
    named.pop("x-holdfast-reset", None)  # the session is decided when the turn begins
    return named


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
