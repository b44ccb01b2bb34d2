"""`POST /v1/chat/completions`: a turn of a durable conversation, or, with `store: false`, only a model call.

The request's messages are matched with the stored ones: only new ones are added, and a history that differs
forks the conversation. Unknown fields are passed to the model unchanged, and its chunks to the client. The
chunk with `finish_reason` is sent only after the answer is on disk; it names the conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from ...app import Answered, Outcome, RunningTurn, TurnSpec
from ...domain.history import History, history_of
from ...domain.messages import BETWEEN
from ...domain.turns import TurnBegun, TurnRepeated
from ...domain.value import Value
from ...models.base import Chunk, ModelRequest
from ...models.chunks import led_by
from ..client_names import CACHE_KEY
from ..conversation_ref import (
    ConversationRef,
    about_begun,
    conversation_ref_of,
    to_store,
)
from ..http import HttpResponse, RequestContext
from ..http_errors import failure_of
from ..queued import QueuedStream, must_wait, queued_answer
from ..routes import Route
from ..schemas import HoldfastObject
from ..start_turn import about_to_send, prompted, start_turn, stored_answer, turn_request
from ..streams import DONE, TurnStream, WholeAnswer, framed
from ..work import check_counts
from .parameters import BadParameter, given_model
from .schemas import ChatBody, ChatCompletionObject
from .stateless import ChatFormat, StatelessCompletion, answer_without_turn

ROUTE = "/v1/chat/completions"
OURS = frozenset({"messages", "model", "stream", "store"})
"""Fields that are not passed to the model unchanged."""

_encode = msgspec.json.Encoder().encode


class ChatRequest(Value, frozen=True):
    history: History
    messages: Sequence[Any]
    """As the client sent them."""
    model: str | None
    options: Mapping[str, Any]
    stream: bool
    store: bool
    wants_usage: bool


def parse(body: dict[str, Any]) -> ChatRequest:
    """Parse a request. Checks only the fields that holdfast uses; the model checks the others."""
    model, stream, store = given_model(body.get("model")), body.get("stream"), body.get("store")
    for name, value in (("stream", stream), ("store", store)):
        if value is not None and not isinstance(value, bool):
            raise BadParameter(name, "must be true or false")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadParameter("stream_options", "must be an object")
    count = body.get("n")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 128):
        raise BadParameter("n", "must be a whole number from 1 to 128")
    passed_on = {name: value for name, value in body.items() if name not in OURS}
    if not stream:  # no subscriber needs chunks, so the model need not stream either
        passed_on["stream"] = False
    return ChatRequest(
        history_of(body.get("messages") or []),
        body["messages"],
        model or None,
        passed_on,
        bool(stream),
        store is not False,
        bool((options or {}).get("include_usage")),
    )


def _read(call: RequestContext, body: bytes) -> tuple[ChatRequest, bytes]:
    """Parse, check and hash a body: the work that grows with its size, to be run by `call.work`."""
    fields = call.parsed(body)
    check_counts(fields.get("messages"), "messages", call.services.settings.limits.messages_per_request)
    return parse(fields), sha256(body).digest()


async def complete(call: RequestContext) -> HttpResponse:
    body = await call.body()
    asked, digest = await call.work(len(body), lambda: _read(call, body))
    if asked.stream:
        call.hold_stream()
    naming = await conversation_ref_of(call, asked.options.get(CACHE_KEY))
    stateless = _stateless(call, naming, asked)
    if stateless is not None:
        return stateless
    if (asked.options.get("n") or 1) > 1:
        raise BadParameter("n", "may be more than 1 only with store: false")
    renderer = ChatRenderer(asked.wants_usage, silent=not asked.stream)
    instructions = prompted(call, tuple(message.body for message in asked.history.instructions))
    order = TurnSpec(
        turn_request(
            call,
            naming,
            ROUTE,
            digest,
            asked.history,
            model=asked.model,
            streams=asked.stream,
            stored=to_store(call, "chat", _encode(asked.options), instructions),
        ),
        renderer,
        instructions,
        asked.options,
        asked.model,
        client=call,
        tools=call.caller.tools,
        check=call.check_key,
    )
    matcher = call.hf.matcher
    running = await start_turn(
        call, order, lambda: matcher.match(call.owner, naming.address, asked.history), naming
    )

    async def render(turn: RunningTurn | TurnRepeated) -> HttpResponse:
        if isinstance(turn, TurnRepeated):
            await about_to_send(call, order, turn.turn)
            streamed = (lambda answer: _as_stream(answer, asked.wants_usage)) if asked.stream else None
            return await stored_answer(call, turn, naming.address, whole, streamed)
        if asked.stream:
            return TurnStream(turn, interrupts=naming.interrupted_by_leaving)
        return WholeAnswer(
            turn,
            naming.interrupted_by_leaving,
            lambda outcome, ours: whole(outcome.answer, outcome.reply.message, ours),
        )

    if isinstance(running, TurnRepeated) and must_wait(running):
        return QueuedStream(running, render) if asked.stream else await queued_answer(call, running)
    return await render(running)


def _stateless(
    call: RequestContext, naming: ConversationRef, asked: ChatRequest
) -> StatelessCompletion | None:
    """The response of a request that becomes no turn; None for any other."""
    accepted = asyncio.Event()
    chunks = answer_without_turn(
        call,
        naming,
        asked.messages,
        asked.options,
        lambda: ModelRequest(
            _encode(asked.messages), asked.model, options=asked.options, on_accepted=accepted.set
        ),
        store=asked.store,
    )
    if chunks is None:
        return None
    return StatelessCompletion(chunks, asked.stream, ChatFormat(asked.wants_usage), accepted)


class ChatRenderer:
    """Renders a turn as chat.completion.chunk events."""

    numbered = False
    apart = False

    def __init__(self, wants_usage: bool, *, silent: bool = False) -> None:
        self._wants_usage = wants_usage
        self._silent = silent
        """True: the answer is sent as one body, so no events are rendered."""
        self._begun: TurnBegun | None = None
        self._held: list[Chunk] = []
        """The chunks from `finish_reason` on: sent when the answer is on disk."""
        self._parts = False
        """True: the next text starts a new paragraph, because a tool was run since the last text."""

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        self._begun = begun
        return ()

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        if self._silent:
            return ()
        if self._held or chunk.finishes:
            self._held.append(chunk)
            return ()
        if chunk.only_usage and not self._wants_usage:
            return ()
        if self._parts and chunk.adds.get("content"):
            self._parts = False
            chunk = led_by(BETWEEN, chunk)
        return (framed(chunk.raw),)

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        self._parts = self._parts or spoke
        return ()

    def moved(self, begun: TurnBegun) -> None:
        self._begun = begun

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        if self._silent:
            return ()
        ours = {"holdfast": about_begun(self._begun)} if self._begun else {}
        if not isinstance(outcome, Answered):
            return (framed(_encode({"error": failure_of(outcome.error).object(), **ours})), DONE)
        return (*finished_chunks(self._held, ours, self._wants_usage), DONE)


def finished_chunks(held: Sequence[Chunk], ours: Mapping[str, Any], wants_usage: bool) -> list[bytes]:
    """The framed chunks from `finish_reason` on; the one that has it gets the fields `ours`."""
    return [
        framed(_encode({**chunk.value, **ours}) if chunk.finishes else chunk.raw)
        for chunk in held
        if wants_usage or not chunk.only_usage
    ]


def whole(answer: Mapping[str, Any], message: Mapping[str, Any], ours: HoldfastObject) -> dict[str, Any]:
    """A chat.completion object."""
    choices = [{**choice, "message": message} for choice in answer["choices"]]
    return {**answer, "object": "chat.completion", "choices": choices, "holdfast": ours}


# --- retries ---------------------------------------------------------------------------------------------


def _as_stream(completion: Mapping[str, Any], wants_usage: bool) -> bytes:
    """A stored answer as an SSE stream."""
    ours = completion["holdfast"]
    common = {
        name: value for name, value in completion.items() if name not in ("choices", "usage", "holdfast")
    }
    common["object"] = "chat.completion.chunk"
    (choice,) = completion["choices"]
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(delta["tool_calls"])]
    others = {name: value for name, value in choice.items() if name not in ("message", "finish_reason")}
    said = {**others, "index": 0, "delta": delta, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")}
    chunks: list[dict[str, Any]] = [
        {**common, "choices": [said]},
        {**common, "choices": [end], "holdfast": ours},
    ]
    if wants_usage and completion.get("usage"):
        chunks.append({**common, "choices": [], "usage": completion["usage"]})
    return b"".join((*(framed(_encode(chunk)) for chunk in chunks), DONE))


ROUTES = (
    Route(
        "POST",
        ROUTE,
        complete,
        "Answer the next turn of a conversation, as one body or as a stream.",
        body=ChatBody,
        answer=ChatCompletionObject,
        media_types=("application/json", "text/event-stream"),
    ),
)
