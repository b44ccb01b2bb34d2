"""Sends the model's answer without a turn: for `store: false`, and for side requests of agent programs.

Only its client can use the answer, so the model call is cancelled when the client disconnects. Otherwise it
is like other streams: the status line waits for the model, for a limited time; SSE comments keep the
connection alive; an error after the stream has started is sent inside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import msgspec

from ...domain.ids import check_name
from ...domain.messages import text_of
from ...domain.side_requests import side_text
from ...domain.turns import TurnStatus
from ...domain.value import Value
from ...errors import HoldfastError, ModelError
from ...models.base import Chunk, ModelRequest
from ...models.reply import ReplyFolder
from .. import sse, streams
from ..client_names import side_request
from ..conversation_ref import STORED, ConversationRef
from ..http import RequestContext
from ..http_errors import ErrorResponse, failure_of
from ..limits import counted
from ..response_writer import JsonResponse
from ..sse import DONE, HEADERS, LOOK_SECONDS, Listener, either, framed
from ..streams import HEADERS_SECONDS, STATUS_SECONDS
from .response_events import Event, ResponseEvents, frames
from .response_object import response_error, state_of


def answer_without_turn(
    call: RequestContext,
    naming: ConversationRef,
    messages: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    request: Callable[[], ModelRequest],
    *,
    store: bool,
) -> AsyncGenerator[Chunk, None] | None:
    """The model's answer, if the request becomes no turn; else None.

    That is a request that keeps nothing, and a side request of a program (a title, a topic), which is
    recorded when its answer is complete. A `store: false` request that is kept, because it names a
    conversation, gets the header `X-Holdfast-Stored: yes`.
    """
    kind = None
    if naming.side_of is not None and not naming.never:
        kind = side_request(call.headers, messages, options)
    if kind is None and naming.keeps(store, call.services.settings.clients.store_false == "drop"):
        if not store:
            call.reply_headers[STORED] = "yes"
        return None
    call.hold_turn()
    if kind is not None and naming.side_of is not None:
        check_name("the name of a program's session", naming.side_of)  # else it could not be recorded
        is_kept = naming.keeps(store, call.services.settings.clients.store_false == "drop")
        chunks = _recorded(call, naming.side_of, kind, request(), messages if is_kept else None)
    else:
        chunks = cast("AsyncGenerator[Chunk, None]", call.services.model.stream(request()))
    return counted(call, chunks) if call.key is not None and call.key.limits else chunks


async def _recorded(
    call: RequestContext,
    name: str,
    kind: str,
    request: ModelRequest,
    messages: Sequence[Mapping[str, Any]] | None,
) -> AsyncGenerator[Chunk, None]:
    """The model's answer to a side request, recorded at its end; with its text, if `messages` are given."""
    folder = ReplyFolder()
    async for chunk in call.services.model.stream(request):
        folder.add(chunk)
        yield chunk
    reply = folder.reply()
    usage = reply.usage or {}
    facts = {
        "model": reply.model or request.model,
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
    }
    text = None if messages is None else side_text(messages, text_of(reply.message.get("content")))
    await call.hf.note_side_request(call.owner, name, kind, facts, text)


class AnswerFormat(Protocol):
    """Formats one answer for the API that its client uses."""

    def add(self, chunk: Chunk) -> bytes:
        """What the stream sends for this chunk; empty: nothing."""
        ...

    def end(self) -> bytes: ...

    def failed(self, failure: ErrorResponse) -> bytes:
        """What the stream sends if the answer breaks off."""
        ...

    def whole(self, folder: ReplyFolder) -> Any:
        """The answer as one JSON object."""
        ...


class ChatFormat(Value, frozen=True):
    wants_usage: bool

    def add(self, chunk: Chunk) -> bytes:
        return framed(chunk.raw) if self.wants_usage or not chunk.only_usage else b""

    def end(self) -> bytes:
        return DONE

    def failed(self, failure: ErrorResponse) -> bytes:
        return framed(msgspec.json.encode({"error": failure.object()})) + DONE

    def whole(self, folder: ReplyFolder) -> Any:
        return folder.completion()


@dataclass(slots=True)
class StatelessCompletion:
    """An answer of the chat model, sent as a chat completion or as `format` says."""

    chunks: Any
    """The model's answer: an asynchronous generator of chunks."""
    stream: bool
    format: AnswerFormat
    accepted: asyncio.Event
    """Set when the model has accepted the request."""

    async def send(self, call: RequestContext) -> None:
        async with aclosing(self.chunks), Listener(call, is_stream=self.stream) as listener:
            work = self._tell(call, listener) if self.stream else self._answer(call)
            sending = asyncio.ensure_future(work)
            try:
                await listener.waits_for(sending)
            finally:
                sending.cancel()  # no effect on a task that is done
                await asyncio.gather(sending, return_exceptions=True)
        if not sending.cancelled():
            sending.result()

    async def _answer(self, call: RequestContext) -> None:
        folder = ReplyFolder()
        async for chunk in self.chunks:
            folder.add(chunk)
        await call.check_key()
        await JsonResponse(self.format.whole(folder)).send(call)

    async def _tell(self, call: RequestContext, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        headers_at = loop.time() + streams.HEADERS_SECONDS
        coming: asyncio.Future[Chunk | None] | None = None
        last = b""
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(self.chunks, None))
                left = sse.LOOK_SECONDS if call.started else headers_at - loop.time()
                timeout = max(0.0, min(left, sse.LOOK_SECONDS))
                if call.started or self.accepted.is_set():
                    await asyncio.wait({coming}, timeout=timeout)
                elif await either(coming, self.accepted, timeout):
                    headers_at = min(headers_at, loop.time() + streams.STATUS_SECONDS)
                    continue
                if coming.done():
                    chunk, coming = coming.result(), None
                    await self._start(call)
                    if chunk is None:
                        last = self.format.end()
                        break
                    if told := self.format.add(chunk):
                        await listener.say(told)
                elif not call.started:
                    await listener.check_key()
                    if loop.time() >= headers_at:
                        await self._start(call)
                if call.started and listener.is_due and not await listener.still_there():
                    break
        except HoldfastError as error:
            if not call.started:
                raise
            last = self.format.failed(failure_of(error))
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
        await call.send({"type": "http.response.body", "body": last})

    async def _start(self, call: RequestContext) -> None:
        if not call.started:
            await call.start(200, HEADERS)


@dataclass(slots=True)
class StatelessResponse:
    chunks: AsyncGenerator[Chunk, None]
    events: ResponseEvents
    stream: bool
    accepted: asyncio.Event
    """Set when the model has accepted the request."""
    _left: bool = False
    """True: the client has disconnected, or its API key was revoked."""

    async def send(self, call: RequestContext) -> None:
        async with (
            Listener(call, is_stream=self.stream) as listener,
            aclosing(self._heard(listener)) as heard,
        ):
            if self.stream:
                await self._tell(call, listener, heard)
            else:
                await self._answer(call, heard)

    async def _answer(self, call: RequestContext, heard: AsyncIterator[Chunk | None]) -> None:
        self.events.begin()
        last = _StatelessEnd(self.events)
        async for chunk in heard:
            if chunk is not None:
                last.add(chunk)
        if not self._left:
            await JsonResponse(last.answered()[-1]["response"]).send(call)

    async def _tell(
        self, call: RequestContext, listener: Listener, heard: AsyncIterator[Chunk | None]
    ) -> None:
        last = _StatelessEnd(self.events)
        try:
            async for chunk in heard:
                if not call.started:
                    await call.start(200, HEADERS)
                    await listener.say(b"".join(frames(self.events.begin())))
                if chunk is not None:
                    told = last.add(chunk)
                    if told:
                        await listener.say(b"".join(frames(told)))
            ending = [] if self._left else last.answered()
        except HoldfastError as error:
            if not call.started:
                raise
            ending = last.failed(error)
        rest = b"".join(frames(ending)) + (DONE if ending else b"")
        await call.send({"type": "http.response.body", "body": rest})

    async def _heard(self, listener: Listener) -> AsyncGenerator[Chunk | None, None]:
        """The model's chunks until the client disconnects. Yields None while the model is silent, so that
        headers and keepalives are sent."""
        async with aclosing(self.chunks):
            coming = _next(self.chunks)
            patience = HEADERS_SECONDS
            try:
                if self.stream:
                    accepted = asyncio.ensure_future(self._until_accepted(coming))
                    await listener.waits_for(accepted, patience)
                    accepted.cancel()
                    await asyncio.gather(accepted, return_exceptions=True)
                    patience = 0.0 if not coming.done() else LOOK_SECONDS
                while True:
                    await listener.waits_for(coming, patience)
                    if listener.gone:
                        self._left = True
                        return
                    if coming.done():
                        chunk = coming.result()
                        if chunk is None:
                            return
                        coming = _next(self.chunks)
                        yield chunk
                    elif self.stream:
                        yield None
                        if not await listener.still_there():
                            self._left = True
                            return
                    patience = LOOK_SECONDS
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _until_accepted(self, coming: asyncio.Future[Chunk | None]) -> None:
        """Wait until the model's status is known. Some send an error as first event after a good status."""
        if await either(coming, self.accepted, HEADERS_SECONDS):
            await asyncio.wait({coming}, timeout=STATUS_SECONDS)


def _next(chunks: AsyncGenerator[Chunk, None]) -> asyncio.Future[Chunk | None]:
    return asyncio.ensure_future(anext(chunks, None))


@dataclass(slots=True)
class _StatelessEnd:
    """Collects the finish reason of an answer and makes its final events."""

    events: ResponseEvents
    reason: str | None = None

    def add(self, chunk: Chunk) -> list[Event]:
        for choice in chunk.value.get("choices") or ():
            if not choice.get("index"):
                self.reason = choice.get("finish_reason") or self.reason
        return self.events.add(chunk)

    def answered(self) -> list[Event]:
        """The final events; raises ModelError if the answer is incomplete."""
        if self.reason is None:
            raise ModelError("the model's answer was cut off")
        state = state_of(TurnStatus.COMPLETED, finish_reason=self.reason)
        return self.events.end(state, completed_at=datetime.now(UTC))

    def failed(self, error: HoldfastError) -> list[Event]:
        failure = failure_of(error)
        state = state_of(TurnStatus.FAILED, error=response_error(failure.message, failure.status))
        return self.events.end(state)
