"""`/v1/responses`: a turn of a durable conversation through OpenAI's Responses API.

A response can run in the background, be read, cancelled, and streamed again from any event on, also after the
client, the network or the server died.

A response is another name of a turn: its content is the conversation's messages, its events are stored in the
turn's drafts. The stream of a turn that no longer runs ends with what was kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...app import Answered, Outcome, Placement, RunningTurn, TurnSpec
from ...domain.conversations import Address
from ...domain.history import INSTRUCTING, History, history_of
from ...domain.ids import is_short, message_id, new_id
from ...domain.messages import instruction
from ...domain.new_messages import new_message
from ...domain.recovery import Origin
from ...domain.responses import Response
from ...domain.turns import NewResponse, Turn, TurnBegun, TurnRepeated, TurnStatus
from ...domain.value import Value
from ...errors import BadInput, BadMessage, NotFound, TurnStopped
from ...models.base import Chunk, ModelRequest
from ..bodies import check_counts
from ..client_names import CACHE_KEY
from ..conversation_ref import (
    ConversationRef,
    about_begun,
    attempt_header,
    conversation_ref_of,
    headers_begun,
    headers_of,
    to_store,
)
from ..http import RequestContext
from ..http_errors import HttpError, failure_of
from ..owners import OWNER, note_reading, owner_of
from ..repeated import about_to_send, is_queued, queued_answer
from ..response_writer import HttpResponse, JsonResponse
from ..routes import Parameter, Route
from ..schemas import Count, HoldfastObject
from ..sse import DONE, HEADERS
from ..start_turn import prompted, start_turn, turn_request
from ..streams import TurnStream, WholeAnswer
from .chains import Chain
from .compaction import shortened
from .compaction_items import summary_opener
from .conversations import resolver
from .input_items import tools_given
from .items import Item, items_from, listed
from .parameters import BadParameter
from .response_events import Event, ResponseEvents, created_before, frames
from .response_object import (
    IN_PROGRESS,
    ResponseHead,
    ResponseState,
    deleted_response,
    response_error,
    response_object,
    state_of,
)
from .responses_request import ResponsesRequest, parse
from .schemas import DeletedResponseObject, ItemListObject, ResponseObject, ResponsesBody
from .stateless import StatelessResponse, answer_without_turn
from .stored_responses import Record, StoredStream, record_of

ROUTE = "/v1/responses"
NOWHERE = Address(id=f"resp_{'0' * 32}", create=False)
"""An id that is never assigned, so that no new turn can start there."""

_encode = msgspec.json.Encoder().encode


def _read_body(call: RequestContext, body: bytes) -> tuple[dict[str, Any], bytes]:
    fields = call.parsed(body)
    check_counts(fields.get("input"), "input", call.services.settings.limits.messages_per_request)
    return fields, sha256(body).digest()


async def create(call: RequestContext, chain: Chain | None = None) -> HttpResponse:
    """Start a response. `chain`: the history of the socket that sent the request."""
    body = await call.body()
    fields, digest = await call.work(len(body), lambda: _read_body(call, body))
    resolve = await resolver(call, fields.get("input"), "input")
    opener = await summary_opener(call, fields.get("input"))
    refuses = call.services.settings.clients.hosted_tools == "refuse"
    asked = await call.work(
        len(body),
        lambda: parse(fields, resolve=resolve, open_summary=opener, refuses_hosted=refuses),
    )
    if is_short(asked.conversation_id or asked.previous_response_id or ""):
        asked = await _with_full_ids(call, asked)
    if asked.left_out:
        call.reply_headers["x-holdfast-tools-left-out"] = ", ".join(asked.left_out)
    if asked.stream:
        call.hold_stream()
    naming = await conversation_ref_of(call, asked.echo.get(CACHE_KEY))
    goes_on = chain is not None and chain.continues(asked, named=naming.names_something or naming.never)
    if chain is not None:
        asked = chain.extended(asked) if goes_on else asked
        chain.note(asked.messages)
    if not goes_on:
        naming = _named(naming, asked)
    history = await call.work(len(body), lambda: _history(asked))
    if chain is not None and chain.warms_up:
        return WarmUp(_head(asked, new_id("resp"), None))
    item: dict[str, Any] | None = None
    if asked.compact_at is not None and not naming.keeps(asked.store, _drops(call)):
        asked, item = await shortened(call, asked, asked.compact_at)
        history = _history(asked)
        if chain is not None:
            chain.note(asked.messages)
    stateless = _stateless(call, naming, asked, history, [item] if item else [])
    if stateless is not None:
        return stateless
    previous_id = None if goes_on else asked.previous_response_id
    previous = await _previous(call, previous_id)
    if chain is not None and previous_id is not None and previous is None:
        raise _lost(previous_id)

    async def place() -> Placement:
        matcher = call.hf.matcher
        if previous is not None:
            if not previous.turn.first_seq:  # it was queued
                _check_begun(await call.hf.turn(call.owner, previous.turn.id))
            return await matcher.after_turn(call.owner, previous.turn, history)
        if asked.conversation_id is not None:
            return await matcher.appended(call.owner, naming.address, history)
        if previous_id is not None:  # deleted; only a retry can be answered
            return Placement(NOWHERE, history.messages, history.fingerprints)
        return await matcher.match(call.owner, naming.address, history)

    response_id = new_id("resp")
    instructions = prompted(call, _instructions(asked, history))
    kept = {name: value for name, value in fields.items() if name != "input"}
    if tools := tools_given(fields):  # without those not used here: they may hold keys of other services
        kept["tools"] = [tool for tool in tools if tool.get("type") not in asked.left_out]
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
                "responses",
                _encode(kept),
                instructions,
                origin=Origin.BACKGROUND if asked.background else Origin.FOREGROUND,
            ),
            response=NewResponse(
                response_id,
                _encode({"echo": asked.echo, "model": asked.model}),
                asked.previous_response_id,
                asked.background,
                (call.caller.webhook or None) if asked.background else None,
            ),
        ),
        ResponseRenderer(response_id, asked),
        instructions,
        asked.options,
        asked.model,
        follows=asked.stream or asked.background,
        client=call if asked.stream or not asked.background else None,
        tools=call.caller.tools,
        check=call.check_key,
        compact_at=asked.compact_at,
        max_tool_calls=asked.max_tool_calls,
    )
    try:
        turn = await start_turn(call, order, place, naming)
    except NotFound as error:
        raise _as_named(asked, error) from None
    if isinstance(turn, TurnRepeated) and is_queued(turn) and not asked.stream and not asked.background:
        return await queued_answer(call, turn)
    if isinstance(turn, TurnRepeated) or order.client is None:
        await about_to_send(call, order, turn.turn)
    return await _answered(call, asked, naming, turn)


async def _answered(
    call: RequestContext, asked: ResponsesRequest, naming: ConversationRef, turn: RunningTurn | TurnRepeated
) -> HttpResponse:
    """The turn in the form that was requested: a stream, one body, or the object of a background response."""
    headers = (
        headers_of(turn.session, turn.turn) if isinstance(turn, TurnRepeated) else headers_begun(turn.begun)
    )
    response_id = turn.turn.response_id
    assert response_id is not None
    if isinstance(turn, TurnRepeated) and asked.stream:
        return StoredStream(response_id, call.owner, -1, headers)
    if isinstance(turn, TurnRepeated) or (asked.background and not asked.stream):
        record = await record_of(call, response_id)
        return JsonResponse(await record.object(call), headers=headers, answers=_answered_turn(call, record))
    # A background turn belongs to no connection: a disconnect does not interrupt it, and its errors are no
    # HTTP status.
    interrupts = naming.interrupted_by_leaving and not asked.background
    if asked.stream:
        return TurnStream(
            turn,
            interrupts=interrupts,
            waits=not asked.background,
            tail=DONE,
            opening=created_before if turn.begun.taken_up else None,
            follow=StoredStream(response_id, call.owner, -1).follow,
        )
    return WholeAnswer(turn, interrupts, lambda outcome, ours: _whole(turn, asked, outcome, ours))


def _drops(call: RequestContext) -> bool:
    """True: a program's name does not override `store: false`."""
    return call.services.settings.clients.store_false == "drop"


def _lost(previous_id: str) -> HttpError:
    """The error of a socket's message whose previous response neither the socket nor the store has."""
    return HttpError(
        400,
        f"there is no response {previous_id!r:.80}; send the whole input, without previous_response_id",
        "previous_response_not_found",
        param="previous_response_id",
    )


async def _with_full_ids(call: RequestContext, asked: ResponsesRequest) -> ResponsesRequest:
    """The request with the ids that its shortened ones begin. Raises AmbiguousId."""
    conversation, previous = asked.conversation_id, asked.previous_response_id
    return replace(
        asked,
        conversation_id=conversation and await call.hf.full_id(call.owner, conversation),
        previous_response_id=previous and await call.hf.full_id(call.owner, previous),
    )


def _named(naming: ConversationRef, asked: ResponsesRequest) -> ConversationRef:
    """The conversation named in the body or in a header; raises BadParameter if it is named in both."""
    name, param = asked.conversation_id, "conversation"
    if name is None:
        name, param = asked.previous_response_id, "previous_response_id"
    if name is None:
        return naming
    if naming.never:
        raise BadParameter(param, "cannot be used together with X-Holdfast-Store: never")
    if naming.names_something and naming.client is None:
        raise BadParameter(param, "cannot be used together with a session header; name the conversation once")
    try:
        return replace(naming.at(Address(id=name, create=False)), client=None)
    except BadInput as error:
        raise BadParameter(param, f"is not a valid id: {error}") from None


async def _previous(call: RequestContext, response_id: str | None) -> Response | None:
    try:
        return None if response_id is None else await call.hf.response(call.owner, response_id)
    except NotFound:
        return None


def _check_begun(turn: Turn) -> None:
    """Raises BadParameter if this turn was withdrawn, or has failed, while it was queued."""
    if turn.is_final and not turn.first_seq:
        raise BadParameter(
            "previous_response_id",
            f"names a response that was {turn.status.value} before it began, so nothing can follow it; name "
            f"its conversation instead, {turn.conversation_id}",
        )


def _as_named(asked: ResponsesRequest, error: NotFound) -> NotFound:
    """The NotFound error with the id that the request used."""
    if asked.previous_response_id is not None:
        return NotFound("response", asked.previous_response_id)
    if asked.conversation_id is not None:
        return NotFound("conversation", asked.conversation_id)
    return error


def _history(asked: ResponsesRequest) -> History:
    """The input. If the request continues a conversation, it may be empty or consist only of instructions."""
    values = list(asked.messages)
    continues = asked.conversation_id is not None or asked.previous_response_id is not None
    try:
        if continues and all(value["role"] in INSTRUCTING for value in values):
            return History(tuple(new_message(value) for value in values), (), (), 0)
        return history_of(values)
    except BadMessage as error:
        raise BadParameter("input", f"cannot be used: {error}") from None


def _instructions(asked: ResponsesRequest, history: History) -> tuple[bytes, ...]:
    first = (instruction(asked.instructions),) if asked.instructions else ()
    return (*first, *(message.body for message in history.instructions))


def _head(asked: ResponsesRequest, response_id: str, begun: TurnBegun | None) -> ResponseHead:
    return ResponseHead(
        response_id,
        begun.turn.started_at if begun else datetime.now(UTC),
        asked.echo,
        asked.model or "",
        begun.session.conversation_id if begun else None,
        asked.previous_response_id,
        asked.background,
    )


def _whole(
    running: RunningTurn, asked: ResponsesRequest, outcome: Answered, ours: HoldfastObject
) -> dict[str, Any]:
    """The response object of a turn that has just completed in this process."""
    begun = running.begun
    assert begun.turn.response_id is not None
    reply = outcome.reply
    return response_object(
        _head(asked, begun.turn.response_id, begun),
        state_of(TurnStatus.COMPLETED, finish_reason=reply.finish_reason),
        output=[
            item
            for said in outcome.said
            for item in items_from(
                said.message,
                message_id(begun.session.conversation_id, said.seq),
                custom_tools=asked.custom_tools,
            )
        ],
        usage=reply.usage,
        model=reply.model,
        completed_at=outcome.ended_at,
        holdfast=ours,
    )


class ResponseRenderer:
    """Renders a turn as the numbered events of a Responses stream."""

    numbered = True
    apart = True

    def __init__(self, response_id: str, asked: ResponsesRequest) -> None:
        self._response_id = response_id
        self._asked = asked
        self._begun: TurnBegun | None = None
        self._events: ResponseEvents | None = None
        self._replayed: list[Event] | None = None
        """While the output of earlier attempts is given again: the events of its last item."""

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        self._begun = begun
        self._events = ResponseEvents(
            _head(self._asked, begun.turn.response_id or self._response_id, begun),
            begun.session.conversation_id,
            begun.session.last_seq + 1,
            first_number=begun.next_event,
            custom_tools=self._asked.custom_tools,
        )
        if begun.taken_up:
            self._replayed = []
            return ()
        return frames(self._events.begin())

    def resumed(self) -> Sequence[bytes]:
        assert self._events is not None
        unfinished, self._replayed = self._replayed or [], None
        return frames(self._events.begin_again(unfinished))

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        assert self._events is not None
        events = self._events.add(chunk)
        if self._replayed is not None:
            self._replayed += events
            return ()
        return frames(events)

    def next_message(self, seq: int, *, spoke: bool) -> Sequence[bytes]:
        assert self._events is not None
        events = self._events.next_message(seq)
        if self._replayed is not None:  # finished: part of the response that the attempt begins with
            self._replayed = []
            return ()
        return frames(events)

    def moved(self, begun: TurnBegun) -> None:
        self._begun = begun

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        if self._events is None or self._begun is None:
            return ()
        ours = about_begun(self._begun)
        if isinstance(outcome, Answered):
            state = state_of(TurnStatus.COMPLETED, finish_reason=outcome.reply.finish_reason)
            usage = outcome.reply.usage
            ended_at = outcome.ended_at
            return frames(self._events.end(state, usage=usage, completed_at=ended_at, holdfast=ours))
        failure = failure_of(outcome.error)
        error = response_error(failure.message, failure.status)
        by_request = isinstance(outcome.error, TurnStopped) and not outcome.error.retry
        state = state_of(outcome.status, error=error, is_fault=self._asked.background and not by_request)
        return frames(self._events.end(state, holdfast=ours))


class WarmUp(Value, frozen=True):
    """A response without an answer: a socket announces the input that its next message continues."""

    head: ResponseHead

    async def send(self, call: RequestContext) -> None:
        begun = response_object(self.head, IN_PROGRESS)
        done = response_object(self.head, ResponseState("completed"), completed_at=datetime.now(UTC))
        events = [
            {"type": f"response.{kind}", "response": value, "sequence_number": number}
            for number, (kind, value) in enumerate(
                (("created", begun), ("in_progress", begun), ("completed", done))
            )
        ]
        body = b"".join(frames(events)) + DONE
        await JsonResponse(body, headers=HEADERS, media_type=HEADERS["content-type"]).send(call)


# --- read, cancel, delete --------------------------------------------------------------------------------


async def retrieve(call: RequestContext) -> HttpResponse:
    record = await _read(call)
    after = _starting_after(call)
    if not _wants_stream(call):
        return await _shown(call, record, answers=_answered_turn(call, record))
    call.hold_stream()
    # An admin who watches another owner's turn is no client of its answer: it reads what is stored.
    is_own = record.turn.owner == call.owner
    running = call.services.runner.running.get(record.turn.id) if is_own else None
    if running is not None and not record.response.joined:
        first = max(0, after + 1 - running.begun.next_event)
        if first <= len(running.events):
            again = running.begun.taken_up and after < 0
            return TurnStream(
                running,
                first,
                waits=False,
                listens=True,
                tail=DONE,
                opening=created_before if again else None,
                follow=StoredStream(record.id, record.turn.owner, after).follow,
            )
    return StoredStream(record.id, record.turn.owner, after, attempt_header(record.turn.attempt))


async def _shown(call: RequestContext, record: Record, answers: str | None = None) -> JsonResponse:
    """The response object, with the header of its attempt."""
    shown = await record.object(call)
    return JsonResponse(shown, headers=attempt_header(shown["holdfast"].attempt), answers=answers)


async def _read(call: RequestContext) -> Record:
    """The response that the path names. If an admin reads another owner's, an event records it."""
    owner = owner_of(call)
    record = await record_of(call, call.path("id"), owner)
    if owner != call.owner:
        await note_reading(call, owner, await call.hf.find_session(owner, record.turn.session_id))
    return record


def _answered_turn(call: RequestContext, record: Record) -> str | None:
    """The id of the turn if it is completed and its own owner reads it: then it counts as delivered."""
    turn = record.turn
    if record.response.joined:
        return None  # it has only a part of that turn's answer
    return turn.id if turn.status is TurnStatus.COMPLETED and turn.owner == call.owner else None


def _wants_stream(call: RequestContext) -> bool:
    said = (call.query("stream") or "false").lower()
    if said not in ("true", "1", "false", "0"):
        raise BadParameter("stream", f"must be true or false, not {said!r:.40}")
    return said in ("true", "1")


def _starting_after(call: RequestContext) -> int:
    """The number of the last event that the client has received; -1: none."""
    if call.query("starting_after") not in (None, ""):
        return call.query_number("starting_after", 0)
    seen = call.header("last-event-id")
    if seen is None:
        return -1
    if not seen.isascii() or not seen.isdecimal() or len(seen) > 15:
        raise BadInput(f"Last-Event-ID must be the number of an event, not {seen!r:.40}")
    return int(seen)


async def cancel(call: RequestContext) -> HttpResponse:
    record = await record_of(call, call.path("id"))
    await _stop(call, record, "its client cancelled it")
    return await _shown(call, await record_of(call, record.id))


async def delete(call: RequestContext) -> HttpResponse:
    record = await record_of(call, call.path("id"))
    if not record.turn.is_final:
        await _stop(call, record, "its client deleted it")
    await call.hf.delete_response(call.owner, record.id)
    return JsonResponse(deleted_response(record.id))


async def _stop(call: RequestContext, record: Record, why: str) -> None:
    await call.hf.stop_turn(call.owner, record.turn.id, TurnStatus.CANCELLED, why)


async def input_items(call: RequestContext) -> HttpResponse:
    order = call.query("order") or "desc"
    if order not in ("asc", "desc"):
        raise BadParameter("order", "must be asc or desc")
    limit = call.query_number("limit", 20, 1, 100)
    items = await (await _read(call)).input(call)
    if order == "desc":
        items.reverse()
    after = call.query("after")
    if after:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise BadParameter("after", f"names no input item of this response: {after!r:.80}")
        items = items[ids.index(after) + 1 :]
    return JsonResponse(listed(items[:limit], has_more=len(items) > limit))


def _stateless(
    call: RequestContext,
    naming: ConversationRef,
    asked: ResponsesRequest,
    history: History,
    first_items: Sequence[Item],
) -> HttpResponse | None:
    """The HTTP response of a request that becomes no turn; None for any other. `first_items` begin its
    output."""
    accepted = asyncio.Event()

    def request() -> ModelRequest:
        prompt = call.services.settings.agent.system_prompt
        first = (instruction(prompt),) if prompt else ()
        bodies = (*first, *_instructions(asked, history), *(message.body for message in history.messages))
        messages = b"[%b]" % b",".join(bodies)
        return ModelRequest(messages, asked.model, options=asked.options, on_accepted=accepted.set)

    chunks = answer_without_turn(call, naming, asked.messages, asked.options, request, store=asked.store)
    if chunks is None:
        return None
    if asked.background:
        raise BadParameter("background", "cannot be used together with X-Holdfast-Store: never")
    # These ids are never looked up: they only connect the events of one answer.
    events = ResponseEvents(
        _head(asked, new_id("resp"), None),
        new_id("conv"),
        1,
        custom_tools=asked.custom_tools,
        first_items=first_items,
    )
    return StatelessResponse(chunks, events, asked.stream, accepted)


_ORDER = Parameter("order", "Oldest or newest first; `desc` by default.", Literal["asc", "desc"])
_LIMIT = Parameter("limit", "How many at most; 20 by default.", Annotated[int, Meta(ge=1, le=100)])

ROUTES = (
    Route(
        "POST",
        ROUTE,
        create,
        "Answer an input, as one body, as a stream, or in the background.",
        body=ResponsesBody,
        answer=ResponseObject,
        media_types=("application/json", "text/event-stream"),
    ),
    Route(
        "GET",
        f"{ROUTE}/{{id}}",
        retrieve,
        "Read a response; with stream=true its events, from any number on.",
        parameters=(
            Parameter("stream", "True: stream its events.", bool),
            Parameter("starting_after", "The number of the last event received.", Count),
            OWNER,
        ),
        answer=ResponseObject,
        media_types=("application/json", "text/event-stream"),
    ),
    Route(
        "DELETE",
        f"{ROUTE}/{{id}}",
        delete,
        "Cancel a response and delete its id; the messages stay in the conversation.",
        answer=DeletedResponseObject,
    ),
    Route(
        "POST",
        f"{ROUTE}/{{id}}/cancel",
        cancel,
        "Cancel a response; its partial reply is kept.",
        answer=ResponseObject,
    ),
    Route(
        "GET",
        f"{ROUTE}/{{id}}/input_items",
        input_items,
        "List the input items of a response.",
        parameters=(_ORDER, _LIMIT, Parameter("after", "The id of the last item received."), OWNER),
        answer=ItemListObject,
    ),
)
