"""`/v1/responses`: a turn under OpenAI's other API.

It can be asked for in the background, looked at, cancelled, and listened to again from any event on: after
the client, the network or the server died.

A response is a turn's other name: what it says is the conversation's messages, its events are the turn's
drafts. A stream that nobody runs any more ends as truthfully as it can: with what was kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from ...domain.conversations import Address
from ...domain.histories import History, history_of
from ...domain.ids import message_id, new_id
from ...domain.messages import instruction
from ...domain.turns import NewResponse, TurnBegun, TurnRepeated, TurnRequest, TurnStatus
from ...errors import BadInput
from ...models.base import Chunk, ModelRequest
from ...runtime.continuity import Placed
from ...runtime.running_turn import Answered, Outcome, RunningTurn
from ...runtime.turn_runner import Order
from ..openai.items import items_from, items_of, listed
from ..openai.parameters import BadParameter
from ..openai.response_events import ResponseEvents, encoded, frame
from ..openai.response_object import (
    ResponseHead,
    deleted_response,
    response_error,
    response_object,
    state_of,
)
from ..openai.responses_request import ResponsesRequest, parse
from .asking import ask
from .call import Answer, Call, Reply, parsed
from .failures import failure_of
from .naming import Naming, about_begun, headers_of, naming_of, request_key
from .response_records import Record, record_of
from .response_streams import StoredStream
from .routes import Parameter, Route
from .streams import HEADERS, Listener, TurnStream, WholeAnswer

ROUTE = "/v1/responses"

_encode = msgspec.json.Encoder().encode


async def create(call: Call) -> Answer:
    body = await call.body()
    asked = parse(parsed(body))
    naming = _named(await naming_of(call), asked)
    history = _history(asked)
    names_something = naming.names_something or asked.previous_response_id is not None
    if not asked.store and not names_something:
        return await _pass_through(call, asked)
    previous = None
    if asked.previous_response_id is not None:
        previous = await call.store.response(call.owner, asked.previous_response_id)

    async def place() -> Placed:
        continuity = call.services.continuity
        if previous is not None:
            return await continuity.behind(call.owner, previous.turn, history)
        if asked.conversation_id is not None:
            return await continuity.appended(call.owner, naming.address, history)
        return await continuity.placed(call.owner, naming.address, history)

    response_id = new_id("resp")
    telling = ResponseTelling(response_id, asked)
    order = Order(
        TurnRequest(
            turn_id=new_id("turn"),
            owner=call.owner,
            node_id=call.services.holdfast.node_id,
            address=naming.address,
            messages=history.messages,
            source=naming.source,
            request_key=request_key(call, ROUTE, body),
            model=asked.model,
            response=NewResponse(
                response_id,
                _encode({"echo": asked.echo, "model": asked.model}),
                asked.previous_response_id,
                asked.background,
            ),
        ),
        telling,
        _instructions(asked, history),
        asked.options,
        asked.model,
    )
    turn = await ask(call, order, place, naming)
    headers = headers_of(turn.session, turn.turn)
    if isinstance(turn, TurnRepeated):
        assert turn.turn.response_id is not None
        if asked.stream:
            return StoredStream(turn.turn.response_id, -1, headers)
        return Reply(await (await record_of(call, turn.turn.response_id)).object(call), headers=headers)
    if asked.stream:
        return TurnStream(turn, headers, interrupts=naming.interrupted_by_leaving)
    if asked.background:
        assert turn.turn.response_id is not None
        return Reply(await (await record_of(call, turn.turn.response_id)).object(call), headers=headers)
    return WholeAnswer(
        turn, headers, naming.interrupted_by_leaving, lambda outcome, ours: _whole(turn, asked, outcome, ours)
    )


def _named(naming: Naming, asked: ResponsesRequest) -> Naming:
    """A conversation may be named in the body or in a header, not in both."""
    body = asked.conversation_id or asked.previous_response_id
    if body is None:
        return naming
    if naming.names_something:
        raise BadParameter(
            "conversation" if asked.conversation_id else "previous_response_id",
            "cannot be used together with a session header; name the conversation once",
        )
    return naming.at(Address(id=body, create=False))


def _history(asked: ResponsesRequest) -> History:
    if not asked.messages:
        return History((), (), (), 0)
    return history_of(list(asked.messages))


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
    running: RunningTurn, asked: ResponsesRequest, outcome: Answered, ours: dict[str, Any]
) -> dict[str, Any]:
    """The response object of a turn that was just answered here."""
    begun = running.begun
    assert begun.turn.response_id is not None
    reply = outcome.reply
    return response_object(
        _head(asked, begun.turn.response_id, begun),
        state_of(TurnStatus.COMPLETED, finish_reason=reply.finish_reason),
        output=items_from(reply.message, reply_id(begun), custom_tools=asked.custom_tools),
        usage=reply.usage,
        model=reply.model,
        completed_at=datetime.now(UTC),
        holdfast=ours,
    )


def reply_id(begun: TurnBegun) -> str:
    """The id that a turn's reply will have: its number is known while the lease is held."""
    return message_id(begun.session.conversation_id, begun.session.last_seq + 1)


class ResponseTelling:
    """A turn as the events of a Responses stream, each under its number."""

    numbered = True

    def __init__(self, response_id: str, asked: ResponsesRequest) -> None:
        self._response_id = response_id
        self._asked = asked
        self._begun: TurnBegun | None = None
        self._events: ResponseEvents | None = None

    def begin(self, begun: TurnBegun) -> Sequence[bytes]:
        self._begun = begun
        self._events = ResponseEvents(
            _head(self._asked, begun.turn.response_id or self._response_id, begun),
            begun.session.conversation_id,
            begun.session.last_seq + 1,
            first_number=begun.next_event,
            custom_tools=self._asked.custom_tools,
        )
        return _framed(self._events.begin())

    def add(self, chunk: Chunk) -> Sequence[bytes]:
        assert self._events is not None
        return _framed(self._events.add(chunk))

    def end(self, outcome: Outcome) -> Sequence[bytes]:
        if self._events is None or self._begun is None:
            return ()
        ours = about_begun(self._begun)
        if isinstance(outcome, Answered):
            state = state_of(TurnStatus.COMPLETED, finish_reason=outcome.reply.finish_reason)
            usage = outcome.reply.usage
            return _framed(
                self._events.end(state, usage=usage, completed_at=datetime.now(UTC), holdfast=ours)
            )
        failure = failure_of(outcome.error)
        state = state_of(outcome.status, error=response_error(failure.message, failure.status))
        return _framed(self._events.end(state, holdfast=ours))


def _framed(events: Any) -> list[bytes]:
    return [frame(number, data) for number, data in encoded(events)]


# --- looking, cancelling, deleting -----------------------------------------------------------------------


async def retrieve(call: Call) -> Answer:
    response_id = call.path("id")
    after = _starting_after(call)
    if call.query("stream") in ("true", "1"):
        record = await record_of(call, response_id)
        running = call.services.runner.running.get(record.turn.id)
        if running is not None:
            first = max(0, after + 1 - running.begun.next_event)
            return TurnStream(running, headers_of(running.session, running.turn), first, waits=False)
        return StoredStream(response_id, after)
    record = await record_of(call, response_id)
    return Reply(await record.object(call))


def _starting_after(call: Call) -> int:
    """The number of the last event that the client has seen; -1: none."""
    if call.query("starting_after") not in (None, ""):
        return call.query_number("starting_after", 0)
    seen = call.header("last-event-id")
    if seen is None:
        return -1
    if not seen.isascii() or not seen.isdecimal() or len(seen) > 16:
        raise BadInput(f"Last-Event-ID must be the number of an event, not {seen!r:.40}")
    return int(seen)


async def cancel(call: Call) -> Answer:
    record = await record_of(call, call.path("id"))
    await _stop(call, record, "its client cancelled it")
    return Reply(await (await record_of(call, record.id)).object(call))


async def delete(call: Call) -> Answer:
    record = await record_of(call, call.path("id"))
    if record.turn.status is TurnStatus.RUNNING:
        await _stop(call, record, "its client deleted it")
    await call.store.delete_response(call.owner, record.id)
    return Reply(deleted_response(record.id))


async def _stop(call: Call, record: Record, why: str) -> None:
    await call.services.runner.stop(call.owner, record.turn.id, TurnStatus.CANCELLED, why)


async def input_items(call: Call) -> Answer:
    record = await record_of(call, call.path("id"))
    order = call.query("order") or "desc"
    if order not in ("asc", "desc"):
        raise BadParameter("order", "must be asc or desc")
    limit = call.query_number("limit", 20, 1, 100)
    items = [item for message in await record.input(call) for item in items_of(message)]
    if order == "desc":
        items.reverse()
    after = call.query("after")
    if after:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise BadParameter("after", f"names no input item of this response: {after!r:.80}")
        items = items[ids.index(after) + 1 :]
    return Reply(listed(items[:limit], has_more=len(items) > limit))


# --- not kept ------------------------------------------------------------------------------------------


async def _pass_through(call: Call, asked: ResponsesRequest) -> Answer:
    """`store: false` without a name: the model's answer, and nothing is kept."""
    history = _history(asked)
    prompt = call.services.settings.agent.system_prompt
    first = (instruction(prompt),) if prompt else ()
    bodies = (*first, *_instructions(asked, history), *(message.body for message in history.messages))
    request = ModelRequest(b"[%b]" % b",".join(bodies), asked.model, options=asked.options)
    # Nobody will ever look these ids up: they only tie the events of one answer together.
    head = _head(asked, new_id("resp"), None)
    events = ResponseEvents(head, new_id("conv"), 1, custom_tools=asked.custom_tools)
    stream = _Unkept(call.services.model.stream(request), events)
    await stream.first_word()
    if asked.stream:
        return stream
    return Reply(await stream.whole())


@dataclass(slots=True)
class _Unkept:
    """A response that is only passed on."""

    chunks: Any
    events: ResponseEvents
    _first: Chunk | None = None

    async def first_word(self) -> None:
        self._first = await anext(self.chunks, None)

    async def whole(self) -> Any:
        """The response object, when the model has said all."""
        self.events.begin()
        reason: str | None = None
        chunk = self._first
        while chunk is not None:
            reason = _finish_reason(chunk) or reason
            self.events.add(chunk)
            chunk = await anext(self.chunks, None)
        return self._last(reason)[-1]["response"]

    def _last(self, reason: str | None) -> Any:
        state = state_of(TurnStatus.COMPLETED, finish_reason=reason)
        return self.events.end(state, completed_at=datetime.now(UTC))

    async def send(self, call: Call) -> None:
        async with Listener(call) as listener:
            await call.start(200, HEADERS)
            await listener.say(b"".join(_framed(self.events.begin())))
            reason: str | None = None
            try:
                chunk = self._first
                while chunk is not None and not listener.gone:
                    reason = _finish_reason(chunk) or reason
                    if told := _framed(self.events.add(chunk)):
                        await listener.say(b"".join(told))
                    chunk = await anext(self.chunks, None)
                last = _framed(self._last(reason))
            except Exception as error:
                failure = failure_of(error)
                state = state_of(TurnStatus.FAILED, error=response_error(failure.message, failure.status))
                last = _framed(self.events.end(state))
            finally:
                await self.chunks.aclose()
            await call.send({"type": "http.response.body", "body": b"".join(last)})


def _finish_reason(chunk: Chunk) -> str | None:
    choices: Any = chunk.value.get("choices") or ({},)
    reason: str | None = choices[0].get("finish_reason")
    return reason


_ORDER = Parameter("order", "asc or desc (the default)", {"type": "string", "enum": ["asc", "desc"]})
_LIMIT = Parameter("limit", "how many", {"type": "integer", "minimum": 1, "maximum": 100})

ROUTES = (
    Route(
        "POST",
        ROUTE,
        create,
        "Answer an input; streams, or runs in the background, if asked to.",
        body={
            "type": "object",
            "properties": {
                "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
                "model": {"type": "string"},
                "instructions": {"type": "string"},
                "previous_response_id": {"type": "string"},
                "conversation": {"anyOf": [{"type": "string"}, {"type": "object"}]},
                "stream": {"type": "boolean"},
                "store": {"type": "boolean"},
                "background": {"type": "boolean"},
            },
        },
        media_types=("application/json", "text/event-stream"),
    ),
    Route(
        "GET",
        f"{ROUTE}/{{id}}",
        retrieve,
        "A response; with stream=true its events, from any on.",
        parameters=(
            Parameter("stream", "true: its events", {"type": "boolean"}),
            Parameter("starting_after", "the last event that was seen", {"type": "integer", "minimum": 0}),
        ),
        media_types=("application/json", "text/event-stream"),
    ),
    Route("DELETE", f"{ROUTE}/{{id}}", delete, "Forget a response; what was said stays."),
    Route("POST", f"{ROUTE}/{{id}}/cancel", cancel, "Stop a response; what it had said is kept."),
    Route(
        "GET",
        f"{ROUTE}/{{id}}/input_items",
        input_items,
        "What a response was asked.",
        parameters=(_ORDER, _LIMIT, Parameter("after", "the id of the item before the first")),
    ),
)
