"""Sends a running turn to its HTTP clients: as an SSE stream (`TurnStream`) or as one body (`WholeAnswer`).

The status line waits for a compaction and for the model's status, at most HEADERS_SECONDS, so that the
headers name the effective session. Later errors are sent inside the stream. While the model is silent, SSE
comments keep the connection alive. A turn does not depend on its subscribers: a disconnect interrupts it only
if the request asked for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ..app import Answered, Receipts, RunningTurn, Unanswered
from ..domain.turns import Delivery
from ..errors import HoldfastError, StoreFailed
from . import sse
from .conversation_ref import about_begun, headers_begun
from .http import RequestContext
from .http_errors import failure_of
from .response_writer import JsonResponse
from .schemas import HoldfastObject
from .sse import HEADERS, Listener

HEADERS_SECONDS = 9.5
"""Below 10, so that the headers have reached the client within 10 seconds."""
STATUS_SECONDS = 0.1
"""How much longer the status line waits after the model has accepted: some report an error as their first
event."""
UNSENT_SECONDS = 0.25
"""After this silence of the model, the store records that nothing of an opener's answer was sent yet."""


@dataclass(slots=True)
class TurnStream:
    """Streams the turn's events, which are framed already, from index `first` on."""

    running: RunningTurn
    first: int = 0
    interrupts: bool = False
    """True: a disconnect of this client interrupts the turn."""
    waits: bool = True
    """True: the status line waits for the model's status."""
    listens: bool = False
    """True: another request started the turn; this one only subscribes."""
    tail: bytes = b""
    """Sent after the last event of a turn that has ended."""
    opening: Callable[[bytes], bytes] | None = None
    """Makes the event that goes before the first one of a later attempt, for a reader from the beginning."""
    follow: Callable[[RequestContext, Listener, int], Awaitable[bool]] | None = None
    """Sends what other attempts store after the event of this number; True: the turn has ended."""

    async def send(self, call: RequestContext) -> None:
        running, receipts = self.running, call.services.runner.receipts
        running.attend(call)
        if self.listens:
            call.leave_slot()
        interrupts = running if self.interrupts else None
        async with Listener(call, interrupts, lambda: self._note_unsent(receipts)) as listener:
            refusal = await self._first_word(listener, receipts) if self.waits else None
            if refusal is not None:
                await refuse(call, running, refusal)
                return
            if listener.gone:
                return
            running.sent = True
            if running.noted_unsent:
                running.noted_unsent = False
                await receipts.settle(running.turn.id, Delivery.PART)
            await call.start(200, {**HEADERS, **headers_begun(running.begun)})
            heard = self.first
            while not listener.gone:
                if not await running.wait_for_events(heard, sse.LOOK_SECONDS):
                    if not await listener.still_there():
                        break
                    continue
                if listener.is_due and not await listener.still_there():
                    break
                told = running.events[heard:]
                heard += len(told)
                if told and self.opening is not None:
                    told.insert(0, self.opening(told[0]))
                    self.opening = None
                if told:
                    await listener.say(b"".join(told))
                if running.outcome is not None and heard >= len(running.events):
                    break
            whole = isinstance(running.outcome, Answered) and heard >= len(running.events)
            ended = running.outcome is not None and heard >= len(running.events)
            if ended and self.follow is not None and _is_parked(running) and not listener.gone:
                ended = await self.follow(call, listener, running.begun.next_event + heard - 1)
            is_open = await call.finish(self.tail if ended else b"") and not listener.gone
            if isinstance(running.outcome, Answered):
                received = Delivery.WHOLE if whole and is_open else Delivery.PART
                receipts.note(running.turn.id, received)

    def _note_unsent(self, receipts: Receipts) -> None:
        """Record (asynchronously) that nothing was sent yet, if the store assumes that a part was."""
        running = self.running
        if running.turn.delivery is Delivery.PART and not running.sent and not running.noted_unsent:
            running.noted_unsent = True
            receipts.note(running.turn.id, Delivery.NONE)

    async def _first_word(self, listener: Listener, receipts: Receipts) -> HoldfastError | None:
        """Wait for the model's status. Returns the error of a turn that failed before it sent anything."""
        running = self.running
        loop = asyncio.get_running_loop()
        deadline, accepted = loop.time() + HEADERS_SECONDS, False
        noted = running.turn.delivery is not Delivery.PART
        while len(running.events) <= running.preface and running.outcome is None and not listener.gone:
            if running.accepted and not accepted:
                accepted = True
                deadline = min(deadline, loop.time() + STATUS_SECONDS)
            left = deadline - loop.time()
            if left <= 0 and not running.withdrawing:
                return None
            left = left if left > 0 else sse.LOOK_SECONDS
            patience = sse.LOOK_SECONDS if noted else UNSENT_SECONDS
            if not await running.wait_for_events(len(running.events), min(left, patience)):
                if not noted:
                    self._note_unsent(receipts)
                    noted = True
                else:
                    await listener.check_key()
        outcome = running.outcome
        return outcome.error if isinstance(outcome, Unanswered) and not outcome.spoke else None


def _is_parked(running: RunningTurn) -> bool:
    """True: this was not the turn's last attempt."""
    return isinstance(running.outcome, Unanswered) and running.outcome.waits


@dataclass(slots=True)
class WholeAnswer:
    """Sends a turn's answer as one body when the turn has ended."""

    running: RunningTurn
    interrupts: bool
    render: Callable[[Answered, HoldfastObject], Any]
    """Makes the route's response object, with the `holdfast` field."""

    async def send(self, call: RequestContext) -> None:
        running = self.running
        if self.interrupts:
            async with Listener(call, running, is_stream=False):
                outcome = await running.ended()
        else:
            outcome = await running.ended()
        await call.check_key()
        ours = about_begun(running.begun)
        if isinstance(outcome, Answered):
            await self._answer(call, msgspec.json.encode(self.render(outcome, ours)))
        else:
            assert outcome is not None
            await refuse(call, running, outcome.error)

    async def _answer(self, call: RequestContext, body: bytes) -> None:
        running, receipts = self.running, call.services.runner.receipts
        received = False
        if call.is_open():
            running.sent = True
            headers = {"content-type": "application/json", **headers_begun(running.begun)}
            received = await call.respond(headers, body)
        part = Delivery.PART if running.sent else Delivery.NONE
        receipts.note(running.turn.id, Delivery.WHOLE if received else part)


async def refuse(call: RequestContext, running: RunningTurn, error: HoldfastError) -> None:
    """Send the error of a turn without an answer, with its ids: the request's messages are stored. Without
    them if nothing is."""
    if isinstance(error, StoreFailed):
        raise error  # the store has failed permanently: the server must stop
    failure = failure_of(error)
    if isinstance(running.outcome, Unanswered) and running.outcome.withdrawn:
        await JsonResponse(call.error(failure), failure.status, failure.headers).send(call)
        return
    body = call.error(failure, about_begun(running.begun))
    await JsonResponse(body, failure.status, {**failure.headers, **headers_begun(running.begun)}).send(call)
