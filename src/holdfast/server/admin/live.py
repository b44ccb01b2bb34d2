"""`GET /api/sessions/{id}/live`: streams a conversation as server-sent events: its messages and the running
turn.

Each message is sent once it is stored, with its number as SSE id, so that a client which was disconnected
continues after the last one it has received. While a turn runs, wherever it runs, its text so far follows:
from memory if it runs here, else from its drafts. A viewer owns nothing: when it disconnects, no turn
ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from ...domain.conversations import Address
from ...domain.drafts import text_so_far
from ...domain.turns import Turn
from ...errors import NotFound
from .. import objects
from ..http import RequestContext
from ..openai.parameters import BadParameter
from ..owners import OWNER, note_reading, owner_of
from ..response_writer import HttpResponse
from ..routes import Parameter, Route
from ..schemas import LiveObject
from ..sse import HEADERS, LOOK_SECONDS, Listener
from .events import first_of

PAGE = 200
MOST_BYTES = 1 << 20
"""Messages, and their bytes, that are read at once: a viewer that does not read holds no more in memory."""
PAUSE_SECONDS = 0.1
"""The least time between two looks: faster than people read."""

_encode = msgspec.json.Encoder().encode


async def live(call: RequestContext) -> HttpResponse:
    call.hold_stream()
    owner = owner_of(call)
    session = await call.hf.session_named(owner, call.path("id"))
    await note_reading(call, owner, session)
    return LiveStream(owner, session.conversation_id, _cursor(call))


def _cursor(call: RequestContext) -> int:
    """The number of the last message that the client has. Last-Event-ID takes precedence over `after`."""
    seen = call.header("last-event-id")
    name, text = ("Last-Event-ID", seen) if seen is not None else ("after", call.query("after") or "0")
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadParameter(name, f"must be the number of a message, not {text!r:.40}")
    return int(text)


@dataclass(slots=True)
class LiveStream:
    """Streams a conversation after message `cursor`, until it is deleted, the server drains or the client
    leaves."""

    owner: str
    conversation_id: str
    cursor: int
    turn_id: str | None = None
    shown: str | None = None
    """The text of the running turn that was sent last."""

    async def send(self, call: RequestContext) -> None:
        call.leave_slot()
        async with Listener(call) as listener:

            def over() -> bool:
                return listener.gone or call.services.draining.is_set()

            await call.start(200, HEADERS)
            await listener.say(b": holdfast live\n\n")
            while not over():
                version = call.hf.version()
                if listener.is_due and not await listener.still_there():
                    break
                try:
                    async for event in self._news(call):
                        await listener.say(event)
                        if over():
                            break
                except NotFound:
                    break  # deleted
                await self._next(call, version)
            await call.send({"type": "http.response.body", "body": b""})

    async def _news(self, call: RequestContext) -> AsyncIterator[bytes]:
        """What is new since the last call, read as the client reads it. The end of a turn comes after its
        messages."""
        hf = call.hf
        tip = (await hf.resolve(self.owner, Address(id=self.conversation_id, create=False))).tip
        has_more = True
        while has_more:
            page = await hf.messages(
                self.owner,
                self.conversation_id,
                first=self.cursor + 1,
                limit=PAGE,
                excluded=False,
                most_bytes=MOST_BYTES,
            )
            has_more = page.has_more
            for message in page.items:
                self.cursor = message.seq
                yield _framed({"type": "message", "message": objects.message(message)}, message.seq)
        if self.turn_id is not None and self.turn_id != tip.running_turn:
            ended, self.turn_id, self.shown = self.turn_id, None, None
            yield await self._turn(call, ended, None)
        if tip.running_turn is not None:
            text = await self._text(call, tip.running_turn)
            if self.turn_id is None or text != self.shown:
                self.turn_id, self.shown = tip.running_turn, text
                yield await self._turn(call, tip.running_turn, text)

    async def _turn(self, call: RequestContext, turn_id: str, text: str | None) -> bytes:
        turn: Turn = await call.hf.turn(self.owner, turn_id)
        return _framed({"type": "turn", "turn": objects.turn(turn), "text": text})

    async def _text(self, call: RequestContext, turn_id: str) -> str:
        """The text of the reply that the turn is writing now."""
        running = call.services.runner.running.get(turn_id)
        if running is not None:
            return running.text_so_far()
        return text_so_far(await call.hf.drafts(turn_id))

    async def _next(self, call: RequestContext, version: int) -> None:
        """Wait for a commit, for more of a turn that runs here, or for the server to drain."""
        running = call.services.runner.running.get(self.turn_id) if self.turn_id else None
        more = (running.wait_for_events(len(running.events), LOOK_SECONDS),) if running is not None else ()
        await first_of(call.changed(version, LOOK_SECONDS), call.services.draining.wait(), *more)
        await asyncio.sleep(PAUSE_SECONDS)


def _framed(value: object, number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return b"%bdata: %b\n\n" % (head, _encode(value))


ROUTES = (
    Route(
        "GET",
        "/api/sessions/{id}/live",
        live,
        "Stream the messages of a conversation and its running turn, as server-sent events.",
        parameters=(
            Parameter(
                "after",
                "The number of the last message received; 0: from the first.",
                Annotated[str, Meta(pattern="^[0-9]{1,18}$")],
                default="0",
            ),
            Parameter("last-event-id", "The same, as clients send it when they reconnect.", where="header"),
            OWNER,
        ),
        answer=LiveObject,
        media_types=("text/event-stream",),
    ),
)
