"""A running turn over HTTP: what it says, as it says it or in one piece, to whoever listens.

The status line waits for a compaction and for the model's status, at most HEADERS_SECONDS, so that its
headers name the session that answers; after that errors come inside the stream. While nothing is
said, comments keep the connection alive. The turn does not depend on its listeners: one that leaves is only
missed if it asked for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ..domain.turns import Delivery, TurnStatus
from ..errors import BadKey, HoldfastError, StoreFailed
from ..runtime.turns.live import Answered, RunningTurn, Unanswered
from ..runtime.turns.receipts import Receipts
from .conversation_ref import about_begun, headers_begun
from .http import JsonResponse, RequestContext
from .http_errors import failure_of

HEADERS_SECONDS = 9.5
"""So that they have reached the client after 10."""
STATUS_SECONDS = 0.1
"""How much longer the status line waits once the model has accepted: some refuse with their first event."""
KEEPALIVE_SECONDS = 5.0
UNSENT_SECONDS = 0.25
"""How long a model is silent before the store is told that nothing was sent of an opener's answer."""
LOOK_SECONDS = 2.0
"""How often an idle stream looks whether its key is still good."""

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
DONE = b"data: [DONE]\n\n"


def framed(data: bytes) -> bytes:
    """An event without a name: a named one breaks the official SDK's chat stream."""
    return b"data: %b\n\n" % data


@dataclass(slots=True)
class TurnStream:
    """The events of a turn from number `first` (of those told here) on, framed already."""

    running: RunningTurn
    first: int = 0
    interrupts: bool = False
    """Is the turn cut short when this listener leaves?"""
    waits: bool = True
    """Does the status line wait for the model?"""
    listens: bool = False
    """Did another request begin the turn, so that this one only listens?"""

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
                if not await running.heard(heard, LOOK_SECONDS):
                    if not await listener.still_there():
                        break
                    continue
                if listener.is_due and not await listener.still_there():
                    break
                told = running.events[heard:]
                heard += len(told)
                if told:
                    await listener.say(b"".join(told))
                if running.outcome is not None and heard >= len(running.events):
                    break
            whole = isinstance(running.outcome, Answered) and heard >= len(running.events)
            is_open = await call.finish(b"") and not listener.gone
            if isinstance(running.outcome, Answered):
                received = Delivery.WHOLE if whole and is_open else Delivery.PART
                receipts.note(running.turn.id, received)

    def _note_unsent(self, receipts: Receipts) -> None:
        """Tell the store, some time, that nothing was sent yet, where it has to assume that some was."""
        running = self.running
        if running.turn.delivery is Delivery.PART and not running.sent and not running.noted_unsent:
            running.noted_unsent = True
            receipts.note(running.turn.id, Delivery.NONE)

    async def _first_word(self, listener: Listener, receipts: Receipts) -> HoldfastError | None:
        """Wait for the model's status. A refusal before that is known is an error of the request."""
        running = self.running
        loop = asyncio.get_running_loop()
        deadline, accepted = loop.time() + HEADERS_SECONDS, False
        noted = running.turn.delivery is not Delivery.PART
        while len(running.events) <= running.preface and running.outcome is None and not listener.gone:
            if running.accepted and not accepted:
                accepted = True
                deadline = min(deadline, loop.time() + STATUS_SECONDS)
            left = deadline - loop.time()
            if left <= 0:
                return None
            patience = LOOK_SECONDS if noted else UNSENT_SECONDS
            if not await running.heard(len(running.events), min(left, patience)):
                if not noted:
                    self._note_unsent(receipts)
                    noted = True
                else:
                    await listener.check_key()
        outcome = running.outcome
        return outcome.error if isinstance(outcome, Unanswered) and not outcome.spoke else None


@dataclass(slots=True)
class WholeAnswer:
    """The answer of a turn in one piece, when it has ended."""

    running: RunningTurn
    interrupts: bool
    render: Callable[[Answered, dict[str, Any]], Any]
    """The answer as its route gives it, with the `holdfast` field."""

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
            await call.start(200, headers, len(body))
            received = await call.finish(body)
        part = Delivery.PART if running.sent else Delivery.NONE
        receipts.note(running.turn.id, Delivery.WHOLE if received else part)


async def refuse(call: RequestContext, running: RunningTurn, error: HoldfastError) -> None:
    """Answer that a turn has no answer, and where it stands: what was asked is kept."""
    if isinstance(error, StoreFailed):
        raise error  # that is the server's end, not the turn's
    failure = failure_of(error)
    body = {"error": failure.object(), "holdfast": about_begun(running.begun)}
    await JsonResponse(body, failure.status, {**failure.headers, **headers_begun(running.begun)}).send(call)


async def either(coming: asyncio.Future[Any], event: asyncio.Event, seconds: float) -> bool:
    """Wait for one of them. True: only the event has come."""
    happened = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({coming, happened}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return event.is_set() and not coming.done()
    finally:
        happened.cancel()
        await asyncio.gather(happened, return_exceptions=True)


class Listener:
    """One client of a stream: keeps it alive, notices that it left or may no longer listen."""

    def __init__(
        self,
        call: RequestContext,
        interrupts: RunningTurn | None = None,
        on_gone: Callable[[], None] = lambda: None,
        *,
        is_stream: bool = True,
    ) -> None:
        self._call = call
        self._on_gone = on_gone
        self._is_stream = is_stream
        self._interrupts = interrupts
        self._loop = asyncio.get_running_loop()
        self._said_at = self._looked_at = self._loop.time()
        self._watch: asyncio.Task[None] | None = None
        self.gone = False

    async def __aenter__(self) -> Listener:
        if self._is_stream:
            self._call.hold_stream()
        self._watch = asyncio.create_task(self._until_gone())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watch is not None
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)

    async def _until_gone(self) -> None:
        await self._call.disconnected()
        self.gone = True
        self._on_gone()
        running = self._interrupts
        if running is not None and running.outcome is None:
            await self._call.services.runner.stop(
                None, running.turn.id, TurnStatus.INTERRUPTED, "its client went away"
            )

    async def say(self, data: bytes) -> None:
        self._said_at = self._loop.time()
        await self._call.send({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def is_due(self) -> bool:
        """Is it time to look after this listener again?"""
        return self._loop.time() - self._looked_at >= LOOK_SECONDS

    async def waits_for(self, task: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Until the task is done, the client has left, or time is up."""
        assert self._watch is not None
        await asyncio.wait({task, self._watch}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def check_key(self) -> None:
        """BadKey if the client's key has been revoked."""
        self._looked_at = self._loop.time()
        await self._call.check_key()

    async def still_there(self) -> bool:
        """Send a comment if nothing was said for a while. False, and told so, if its key has been revoked."""
        try:
            await self.check_key()
        except BadKey as error:
            await self.say(framed(msgspec.json.encode({"error": failure_of(error).object()})))
            return False
        if self._loop.time() - self._said_at >= KEEPALIVE_SECONDS:
            await self.say(b": keepalive\n\n")
        return not self.gone
