"""Server-sent events: how they are framed, and one subscriber of a stream with its keepalives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ..app import RunningTurn
from ..domain.turns import TurnStatus
from ..errors import BadKey, StoreError, StoreFailed
from .http import RequestContext
from .http_errors import failure_of

KEEPALIVE_SECONDS = 5.0

UNNUMBERED = ("/v1/chat/completions", "/v1/messages")
"""Streams whose events have no ids."""

LOOK_SECONDS = 2.0
"""How often an idle stream checks that its API key is still valid."""

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

DONE = b"data: [DONE]\n\n"


def framed(data: bytes) -> bytes:
    """An SSE event without a name: a named one breaks the official SDK's chat stream."""
    return b"data: %b\n\n" % data


async def either(coming: asyncio.Future[Any], event: asyncio.Event, seconds: float) -> bool:
    """Wait for either, at most `seconds`. True: the event is set and `coming` is not done."""
    happened = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({coming, happened}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return event.is_set() and not coming.done()
    finally:
        happened.cancel()
        await asyncio.gather(happened, return_exceptions=True)


class Listener:
    """One subscriber of a stream: sends keepalives, detects its disconnect and a revoked API key."""

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
        if running is not None and running.outcome is None and not running.has_listener:
            await self._call.services.runner.stop(
                None, running.turn.id, TurnStatus.INTERRUPTED, "its client disconnected"
            )

    async def say(self, data: bytes) -> None:
        self._said_at = self._loop.time()
        await self._call.send({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def is_due(self) -> bool:
        """True: the next check of this listener is due."""
        return self._loop.time() - self._looked_at >= LOOK_SECONDS

    async def waits_for(self, task: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait until the task is done, the client has disconnected, or `seconds` have passed."""
        assert self._watch is not None
        await asyncio.wait({task, self._watch}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def check_key(self) -> None:
        """Raises BadKey if the client's API key has been revoked."""
        self._looked_at = self._loop.time()
        await self._call.check_key()

    async def still_there(self) -> bool:
        """Send a keepalive comment if one is due. False: the client has disconnected, or its API key was
        revoked or cannot be read, which it is sent as an error."""
        try:
            await self.check_key()
        except StoreFailed:
            raise  # the server must stop
        except (BadKey, StoreError) as error:
            named = b"event: error\n" if self._call.is_anthropic else b""
            await self.say(named + framed(msgspec.json.encode(self._call.error(failure_of(error)))))
            return False
        if self._loop.time() - self._said_at >= KEEPALIVE_SECONDS:
            # Clients that keep the last id (OpenAI's SDK for Python, httpx-sse) take a blank line after it
            # for an event without data. So the comment is a line of the next event's block, except where
            # there are no ids: there some readers look only at the first line of a block.
            path: str = self._call.request.scope["path"]
            await self.say(b": keepalive\n\n" if path.startswith(UNNUMBERED) else b": keepalive\n")
        return not self.gone
