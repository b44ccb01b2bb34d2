"""`POST /v1/responses/compact` and `POST /v1/responses/input_tokens`: a history made shorter, and measured.

Neither stores anything. A compacted history is a list of items that a client sends as the input of its next
request: its instructions, one `compaction` item in place of what was answered, and what was not answered yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from ...domain.compaction import answered_part
from ...domain.context_size import TokenEstimator, extra_of, weight_of
from ...domain.conversations import Address
from ...domain.history import INSTRUCTING
from ...domain.ids import message_id, new_id
from ...domain.messages import instruction
from ...errors import BadInput
from ..bodies import check_counts
from ..http import RequestContext
from ..limits import count_request, spend
from ..response_writer import HttpResponse, JsonResponse
from ..routes import Route
from .compaction_items import compaction_item, summary_message, summary_opener
from .conversations import resolver
from .input_items import messages_from_input
from .items import items_from
from .parameters import BadParameter, given_model, given_name, text
from .response_object import response_usage
from .responses_request import ResponsesRequest, parse
from .schemas import CompactBody, CompactedResponseObject, InputTokensBody, InputTokensObject

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode

Messages = Sequence[Mapping[str, Any]]


async def compact(call: RequestContext) -> HttpResponse:
    body = await call.body()
    fields = await call.work(len(body), lambda: _read(call, body))
    model = given_model(given_name(fields.get("model"), "model"))
    previous, instructions = text(fields, "previous_response_id"), text(fields, "instructions")
    text(fields, "prompt_cache_key")
    resolve = await resolver(call, fields.get("input"), "input")
    opener = await summary_opener(call, fields.get("input"))
    left_out: dict[str, None] | None = {}  # items of hosted tools, as in a request for a response
    if call.services.settings.clients.hosted_tools == "refuse":
        left_out = None
    given = await call.work(
        len(body),
        lambda: messages_from_input(
            fields.get("input") or [], resolve=resolve, open_summary=opener, left_out=left_out
        ),
    )
    leading = next((at for at, each in enumerate(given) if each["role"] not in INSTRUCTING), len(given))
    past = await past_bodies(call, previous, None)
    stored = await call.work(sum(map(len, past)), lambda: _decode(b"[%b]" % b",".join(past)))
    messages = [*stored, *given[leading:]]
    if not messages:
        raise BadParameter("input", "must not be empty, unless a previous response is named")
    compactor = call.services.runner.compactor
    if compactor is None:
        raise BadInput("this server has no model to summarise with")
    call.hold_turn()
    await count_request(call)
    kept_from = answered_part(messages)
    made = await compactor.summarise(messages[:kept_from], model, instructions or "")
    await spend(call, made.usage)
    item = compaction_item(await call.hf.store_id(), call.owner, made.text)
    usage = response_usage(made.usage) or response_usage(_estimated(messages[:kept_from], made.text))
    place = new_id("conv")  # never looked up: item ids need one
    return JsonResponse(
        {
            "id": new_id("resp"),
            "object": "response.compaction",
            "created_at": int(datetime.now(UTC).timestamp()),
            "output": [
                *_items(given[:leading], place, 1),
                item,
                *_items(messages[kept_from:], place, leading + 1),
            ],
            "usage": usage,
        }
    )


async def shortened(
    call: RequestContext, asked: ResponsesRequest, threshold: int
) -> tuple[ResponsesRequest, dict[str, Any] | None]:
    """A request of which nothing is stored, with a summary in place of what was answered, if it has more
    tokens than this; and the compaction item by which its client can do so too. None: it stays as it is."""
    messages = asked.messages
    leading = next((at for at, each in enumerate(messages) if each["role"] not in INSTRUCTING), len(messages))
    kept_from = leading + answered_part(messages[leading:]) if leading < len(messages) else leading
    compactor = call.services.runner.compactor
    if compactor is None or kept_from == len(messages) or _tokens(asked, ()) <= threshold:
        return asked, None
    call.hold_turn()
    await count_request(call)
    made = await compactor.summarise(messages[leading:kept_from], asked.model)
    await spend(call, made.usage)
    summary = summary_message(made.text)
    return (
        replace(asked, messages=(*messages[:leading], summary, *messages[kept_from:])),
        compaction_item(await call.hf.store_id(), call.owner, made.text),
    )


def _tokens(asked: ResponsesRequest, past: Sequence[bytes]) -> int:
    context = weight_of((*past, *(_encode(message) for message in asked.messages)))
    extra = extra_of((instruction(asked.instructions),) if asked.instructions else (), asked.options)
    return TokenEstimator().total(context, extra.bytes) + extra.parts


async def input_tokens(call: RequestContext) -> HttpResponse:
    """The tokens that a request would send to the model, by the estimate that compaction uses."""
    body = await call.body()
    fields = await call.work(len(body), lambda: _read(call, body))
    resolve = await resolver(call, fields.get("input"), "input")
    opener = await summary_opener(call, fields.get("input"))
    asked = await call.work(len(body), lambda: parse(fields, resolve=resolve, open_summary=opener))
    past = await past_bodies(call, asked.previous_response_id, asked.conversation_id)
    tokens = await call.work(len(body) + sum(map(len, past)), lambda: _tokens(asked, past))
    return JsonResponse({"object": "response.input_tokens", "input_tokens": tokens})


def _read(call: RequestContext, body: bytes) -> dict[str, Any]:
    fields = call.parsed(body)
    check_counts(fields.get("input"), "input", call.services.settings.limits.messages_per_request)
    return fields


async def past_bodies(
    call: RequestContext, previous: str | None, conversation: str | None
) -> Sequence[bytes]:
    """What the model would get of the stored past, up to this response, or of this conversation: JSON
    objects, some joined by commas. It counts for the memory of the API key's requests. Raises NotFound."""
    hf, owner = call.hf, call.owner
    past: Sequence[bytes] | None = None
    if previous is not None:
        turn = (await hf.response(owner, previous)).turn
        (newest,) = await hf.turns(owner, turn.conversation_id, limit=1)
        if newest.id != turn.id:
            said = await hf.turn_messages(turn.id)
            last = said[-1].seq if said else turn.first_seq - 1
            visible = await hf.visible(owner, turn.conversation_id)
            past = [message.body for message in visible if message.seq <= last]
        conversation = turn.conversation_id
    if past is None:
        if conversation is None:
            return ()
        found = await hf.resolve(owner, Address(id=conversation, create=False))
        past = [chunk for chunk in (await hf.context(owner, found.tip.id)).chunks if chunk]
    call.hold_bytes(sum(map(len, past)))
    return past


def _items(messages: Messages, conversation_id: str, first: int) -> list[dict[str, Any]]:
    return [
        item
        for seq, message in enumerate(messages, first)
        for item in items_from(message, message_id(conversation_id, seq))
    ]


def _estimated(messages: Messages, summary: str) -> dict[str, int]:
    scale = TokenEstimator()
    return {
        "prompt_tokens": scale.total(weight_of(_encode(message) for message in messages)),
        "completion_tokens": scale.total(weight_of([summary.encode()])),
    }


ROUTES = (
    Route(
        "POST",
        "/v1/responses/compact",
        compact,
        "Summarise a history; its items replace the history in the next request.",
        body=CompactBody,
        answer=CompactedResponseObject,
    ),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        input_tokens,
        "Estimate the tokens that a request would send to the model.",
        body=InputTokensBody,
        answer=InputTokensObject,
    ),
)
