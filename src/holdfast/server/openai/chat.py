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

from ...app import RunningTurn, TurnSpec
from ...domain.history import History, history_of
from ...domain.turns import TurnRepeated
from ...domain.value import Value
from ...models.base import ModelRequest
from ..bodies import check_counts
from ..client_names import CACHE_KEY
from ..conversation_ref import (
    ConversationRef,
    conversation_ref_of,
    to_store,
)
from ..http import RequestContext
from ..repeated import QueuedStream, about_to_send, must_wait, queued_answer, stored_answer
from ..response_writer import HttpResponse
from ..routes import Route
from ..start_turn import prompted, start_turn, turn_request
from ..streams import TurnStream, WholeAnswer
from .completions import ChatRenderer, as_stream, whole
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
            streamed = (lambda answer: as_stream(answer, asked.wants_usage)) if asked.stream else None
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
