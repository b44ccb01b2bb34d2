"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: turns through Anthropic's API.

A request is translated to chat messages and starts a turn like a chat completion does. So everything that
holds for chat holds here: continuity by history, ids and session keys, forks, retries, resets, compaction.
One conversation may be continued through either API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from ...app import Holdfast, RunningTurn, TurnSpec
from ...domain.context_size import TokenEstimator, extra_of, weight_of
from ...domain.history import History, check_results, history_of
from ...domain.ids import new_request_id
from ...domain.turns import TurnRepeated
from ...models.base import Chunk, CountsTokens, ModelRequest
from ...models.measured import innermost
from ...models.names import NamedModel
from ...models.reply import ReplyFolder
from ..bodies import check_counts
from ..conversation_ref import ConversationRef, conversation_ref_of, to_store
from ..http import RequestContext
from ..http_errors import ErrorResponse, anthropic_error
from ..openai.stateless import StatelessCompletion, answer_without_turn
from ..repeated import QueuedStream, about_to_send, must_wait, queued_answer, stored_answer
from ..response_writer import HttpResponse, JsonResponse
from ..routes import Route
from ..start_turn import prompted, start_turn, turn_request
from ..streams import TurnStream, WholeAnswer
from .message import MessageEvents, MessageRenderer, as_stream, message_object, whole
from .request import MessagesRequest, parse
from .schemas import (
    AnthropicErrorObject,
    AnthropicMessageObject,
    CountTokensBody,
    MessagesBody,
    TokenCountObject,
)

ROUTE = "/v1/messages"
NATIVE_HEADERS = ("anthropic-version", "anthropic-beta")
"""Sent on to a model that speaks this API."""
UNKNOWN_LIMIT = 8192
"""The largest `max_tokens` that is sent to a model whose window is not known."""

_encode = msgspec.json.Encoder().encode


def _read(call: RequestContext, body: bytes) -> tuple[MessagesRequest, History, bytes]:
    """Parse, check and hash a body: the work that grows with its size, to be run by `call.work`."""
    asked = _parsed(call, body)
    return asked, history_of(asked.messages), sha256(body).digest()


def _parsed(call: RequestContext, body: bytes, *, counts: bool = False) -> MessagesRequest:
    fields, most = call.parsed(body), call.services.settings.limits.messages_per_request
    check_counts(fields.get("messages"), "messages", most)
    headers = {name: value for name in NATIVE_HEADERS if (value := call.headers.get(name))}
    asked = parse(fields, counts=counts, headers=headers)
    check_counts(asked.messages, "messages", most)  # each tool_result block is a message of its own
    return asked


async def create(call: RequestContext) -> HttpResponse:
    body = await call.body()
    asked, history, digest = await call.work(len(body), lambda: _read(call, body))
    if asked.stream:
        call.hold_stream()
    naming = await conversation_ref_of(call)
    if not naming.names_something:
        check_results(history.messages, (), ())  # no stored call can be meant
    options = await options_of(call.hf, asked)
    stateless = _stateless(call, naming, asked, options)
    if stateless is not None:
        return stateless
    renderer = renderer_of(call.id, asked)
    instructions = prompted(call, tuple(message.body for message in history.instructions))
    order = TurnSpec(
        turn_request(
            call,
            naming,
            ROUTE,
            digest,
            history,
            model=asked.model,
            streams=asked.stream,
            stored=to_store(
                call,
                "anthropic",
                _encode({name: value for name, value in asked.native.body.items() if name != "messages"}),
                instructions,
                headers=asked.native.headers,
            ),
        ),
        renderer,
        instructions,
        options,
        asked.model,
        client=call,
        tools=call.caller.tools,
        check=call.check_key,
        native=asked.native,
    )
    matcher = call.hf.matcher
    running = await start_turn(
        call, order, lambda: matcher.match(call.owner, naming.address, history), naming
    )

    async def render(turn: RunningTurn | TurnRepeated) -> HttpResponse:
        if isinstance(turn, TurnRepeated):
            await about_to_send(call, order, turn.turn)
            of = turn.turn
            return await stored_answer(
                call,
                turn,
                naming.address,
                lambda answer, said, ours: _whole(of, answer, said, ours, asked),
                as_stream if asked.stream else None,
            )
        if asked.stream:
            return TurnStream(turn, interrupts=naming.interrupted_by_leaving)
        return WholeAnswer(
            turn,
            naming.interrupted_by_leaving,
            lambda outcome, ours: _whole(turn.turn, outcome.answer, outcome.reply.message, ours, asked),
        )

    if isinstance(running, TurnRepeated) and must_wait(running):
        return QueuedStream(running, render) if asked.stream else await queued_answer(call, running)
    return await render(running)


def _whole(
    turn: Any, answer: Mapping[str, Any], message: Mapping[str, Any], ours: Any, asked: MessagesRequest
) -> dict[str, Any]:
    return whole(
        turn,
        answer,
        message,
        ours,
        shows_thinking=asked.shows_thinking,
        stops=asked.stop_sequences,
        named=asked.model,
    )


def renderer_of(request_id: str, asked: MessagesRequest) -> MessageRenderer:
    return MessageRenderer(
        request_id,
        asked.model,
        shows_thinking=asked.shows_thinking,
        stops=asked.stop_sequences,
        silent=not asked.stream,
    )


async def options_of(hf: Holdfast, asked: MessagesRequest) -> dict[str, Any]:
    """The options for a chat model. `max_tokens` is only an upper bound in this API, and clients send
    the limit of Anthropic's models: one that this model's window cannot hold is left out."""
    options = dict(asked.options)
    if not asked.stream:  # no subscriber needs chunks, so the model need not stream either
        options["stream"] = False
    limit = asked.max_tokens
    if limit > UNKNOWN_LIMIT and limit > (await hf.known_window(asked.model) or 0) // 2:
        return options
    return {**options, "max_completion_tokens": limit}


# --- without a stored turn -------------------------------------------------------------------------------


def _stateless(
    call: RequestContext, naming: ConversationRef, asked: MessagesRequest, options: Mapping[str, Any]
) -> HttpResponse | None:
    """The response of a request that becomes no turn; None for any other."""
    accepted = asyncio.Event()
    chunks = answer_without_turn(
        call,
        naming,
        asked.messages,
        options,
        lambda: ModelRequest(
            _encode(asked.messages),
            asked.model,
            options=options,
            on_accepted=accepted.set,
            native=asked.native,
        ),
        store=asked.store,
    )
    if chunks is None:
        return None
    return StatelessCompletion(chunks, asked.stream, _MessageFormat(call.id, asked), accepted)


class _MessageFormat:
    """Formats an answer without a turn."""

    def __init__(self, request_id: str, asked: MessagesRequest) -> None:
        self._request_id = request_id
        self._asked = asked
        self._id = f"msg_{new_request_id().removeprefix('req_')}"
        self._folder = ReplyFolder()
        self._events = MessageEvents(
            self._id, asked.model, shows_thinking=asked.shows_thinking, stops=asked.stop_sequences
        )

    def add(self, chunk: Chunk) -> bytes:
        self._folder.add(chunk)
        return b"" if chunk.only_usage else b"".join(self._events.add(chunk))

    def end(self) -> bytes:
        return b"".join(self._events.end(self._folder.completion(), self._folder.reply().message, {}))

    def failed(self, failure: ErrorResponse) -> bytes:
        return b"event: error\ndata: %b\n\n" % _encode(anthropic_error(failure, self._request_id))

    def whole(self, folder: ReplyFolder) -> dict[str, Any]:
        return message_object(
            self._id,
            folder.completion(),
            folder.reply().message,
            shows_thinking=self._asked.shows_thinking,
            stops=self._asked.stop_sequences,
            named=self._asked.model,
        )


# --- counting --------------------------------------------------------------------------------------------


async def count_tokens(call: RequestContext) -> JsonResponse:
    """The tokens of a request. A model that counts is asked; else it is an estimate. Nothing is stored."""
    body = await call.body()
    asked = await call.work(len(body), lambda: _parsed(call, body, counts=True))
    model = call.services.model
    counter = innermost(model)
    if isinstance(counter, CountsTokens):
        name = await model.own_name(asked.model) if isinstance(model, NamedModel) else asked.model
        return JsonResponse({"input_tokens": await counter.count_tokens(asked.native, name)})
    context = weight_of(_encode(message) for message in asked.messages)
    extra = extra_of((), asked.options)
    return JsonResponse({"input_tokens": TokenEstimator().total(context, extra.bytes)})


ROUTES = (
    Route(
        "POST",
        ROUTE,
        create,
        "Answer a conversation, in Anthropic's API; streams if asked to.",
        body=MessagesBody,
        answer=AnthropicMessageObject,
        error=AnthropicErrorObject,
        media_types=("application/json", "text/event-stream"),
    ),
    Route(
        "POST",
        f"{ROUTE}/count_tokens",
        count_tokens,
        "Count the tokens of a request, in Anthropic's API.",
        body=CountTokensBody,
        answer=TokenCountObject,
        error=AnthropicErrorObject,
    ),
)
