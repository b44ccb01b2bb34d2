"""The model's answer as it is: for `store: false`, of which nothing is kept.

Nobody but its client has a use for it, so the model is stopped when the client leaves. Otherwise it is a
stream like any other: the status line waits for the model, though not for ever, comments keep it alive, and
an error after the first word comes inside it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from ...errors import HoldfastError
from ...models.base import Chunk
from ...models.reply import ReplyFolder
from . import streams
from .call import Call, Reply
from .failures import failure_of
from .streams import DONE, HEADERS, Listener, framed


@dataclass(slots=True)
class PassedOn:
    chunks: Any
    """The model's answer as it comes: an asynchronous generator of chunks."""
    stream: bool
    wants_usage: bool
    accepted: asyncio.Event
    """Set when the model has accepted the request."""

    async def send(self, call: Call) -> None:
        async with aclosing(self.chunks), Listener(call, is_stream=self.stream) as listener:
            work = self._tell(call, listener) if self.stream else self._answer(call)
            telling = asyncio.ensure_future(work)
            try:
                await listener.waits_for(telling)
            finally:
                telling.cancel()  # does nothing to what is done
                await asyncio.gather(telling, return_exceptions=True)
        if not telling.cancelled():
            telling.result()

    async def _answer(self, call: Call) -> None:
        folder = ReplyFolder()
        async for chunk in self.chunks:
            folder.add(chunk)
        await call.check_key()
        await Reply(folder.completion()).send(call)

    async def _tell(self, call: Call, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        headers_at = loop.time() + streams.HEADERS_SECONDS
        coming: asyncio.Future[Chunk | None] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(self.chunks, None))
                left = streams.LOOK_SECONDS if call.started else headers_at - loop.time()
                timeout = max(0.0, min(left, streams.LOOK_SECONDS))
                if call.started or self.accepted.is_set():
                    await asyncio.wait({coming}, timeout=timeout)
                elif await streams.either(coming, self.accepted, timeout):
                    headers_at = min(headers_at, loop.time() + streams.STATUS_SECONDS)
                    continue
                if coming.done():
                    chunk, coming = coming.result(), None
                    await self._start(call)
                    if chunk is None:
                        break
                    if self.wants_usage or not chunk.only_usage:
                        await listener.say(framed(chunk.raw))
                elif not call.started:
                    await listener.check_key()
                    if loop.time() >= headers_at:
                        await self._start(call)
                if call.started and listener.is_due and not await listener.still_there():
                    break
        except HoldfastError as error:
            if not call.started:
                raise
            await listener.say(framed(msgspec.json.encode({"error": failure_of(error).object()})))
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
        await call.send({"type": "http.response.body", "body": DONE})

    async def _start(self, call: Call) -> None:
        if not call.started:
            await call.start(200, HEADERS)
