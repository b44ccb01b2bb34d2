"""`GET /api/events`: streams events as server-sent events (SSE) from a durable cursor.

Each event's number is its SSE id, so that a client that was disconnected continues after the last event it
has received, also after a restart of the server. Events are read in slices, so that neither a long backlog
nor the events of other owners make one read long. They never hold message text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from ...app import Holdfast
from ...domain.events import Event
from .. import objects
from ..http import RequestContext
from ..openai.parameters import BadParameter
from ..owners import OWNERS, owners_of
from ..response_writer import HttpResponse
from ..routes import Parameter, Route
from ..schemas import EventObject
from ..sse import HEADERS, LOOK_SECONDS, Listener

NOW = "now"
SLICE = 20_000
"""How many event numbers one read scans."""
PAGE = 500
PAUSE_SECONDS = 0.05
"""Minimum time between two reads: a busy store commits more often than subscribers need updates."""

_encode = msgspec.json.Encoder().encode


async def events(call: RequestContext) -> HttpResponse:
    call.hold_stream()
    return EventStream(owners_of(call), await _cursor(call))


async def _cursor(call: RequestContext) -> int:
    """The number of the event after which the stream starts. Last-Event-ID takes precedence over `after`: a
    client that reconnects sends it with its first URL."""
    seen = call.header("last-event-id")
    if seen is not None:
        return _number("Last-Event-ID", seen)
    after = call.query("after") or "0"
    if after == NOW:
        return (await call.hf.event_bounds())[1]
    return _number("after", after)


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadParameter(name, f"must be the number of an event, not {text!r:.40}")
    return int(text)


@dataclass(slots=True)
class EventStream:
    """Streams all stored and new events after `cursor`, until the server drains or the client disconnects."""

    owner: str | None
    cursor: int

    async def send(self, call: RequestContext) -> None:
        call.leave_slot()
        async with Listener(call) as listener:

            def over() -> bool:
                return listener.gone or call.services.draining.is_set()

            await call.start(200, HEADERS)
            await listener.say(b": holdfast events\n\n")
            while not over():
                version = call.hf.version()
                if listener.is_due and not await listener.still_there():
                    break
                async for page in self._pages(call.hf):
                    await listener.say(b"".join(map(framed, page)))
                    if over():
                        break
                await self._next(call, version)
            await call.send({"type": "http.response.body", "body": b""})

    async def _pages(self, hf: Holdfast) -> AsyncIterator[list[Event]]:
        """The stored events after the cursor, page by page; advances the cursor."""
        oldest, newest = await hf.event_bounds()
        self.cursor = max(self.cursor, oldest - 1)
        while self.cursor < newest:
            upto = min(newest, self.cursor + SLICE)
            page = await hf.event_page(owner=self.owner, after=self.cursor, upto=upto, limit=PAGE)
            self.cursor = page[-1].id if len(page) == PAGE else upto
            if page:
                yield page

    async def _next(self, call: RequestContext, version: int) -> None:
        """Wait for a commit, for the server to drain, or LOOK_SECONDS; then PAUSE_SECONDS."""
        await first_of(call.changed(version, LOOK_SECONDS), call.services.draining.wait())
        await asyncio.sleep(PAUSE_SECONDS)


async def first_of(*awaited: Awaitable[object]) -> None:
    """Wait until one of these has ended, and cancel the others."""
    waits = [asyncio.ensure_future(each) for each in awaited]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def framed(event: Event) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (event.id, _encode(objects.event(event)))


ROUTES = (
    Route(
        "GET",
        "/api/events",
        events,
        "Stream events from a cursor on, as server-sent events; each has its number as id.",
        parameters=(
            Parameter(
                "after",
                "The number of the last event received; 0: from the oldest kept; `now`: only new ones.",
                Annotated[str, Meta(pattern="^([0-9]{1,18}|now)$")],
                default="0",
            ),
            Parameter("last-event-id", "The same, as clients send it when they reconnect.", where="header"),
            OWNERS,
        ),
        answer=EventObject,
        media_types=("text/event-stream",),
    ),
)
