"""`/v1/conversations`: creates, reads, changes and deletes conversations and their items.

An item is a part of a stored chat message (`items.py`); adding items calls no model. Bodies are parsed first,
then one operation of `Holdfast` is called. `ROUTES` is at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from ...app import Holdfast
from ...domain.conversations import Address, Conversation
from ...domain.ids import check_name, message_id, parse_message_id
from ...domain.messages import Message, NewMessage
from ...domain.new_messages import new_message
from ...domain.pages import PAGE_BYTES
from ...domain.value import Value
from ...errors import Conflict, ConversationBusy, NotFound
from .. import objects
from ..bodies import check_counts
from ..conversation_ref import DEFAULT_SOURCE, IDEMPOTENCY_KEY, SOURCE, check_stores, idempotency_key
from ..http import RequestContext
from ..http_errors import HttpError
from ..owners import OWNER, OWNERS, note_reading, owner_of, owners_of, shows_owner
from ..response_writer import JsonResponse
from ..routes import Parameter, Route
from ..schemas import ListObject
from .input_items import Resolve, messages_from_input, referenced_ids
from .items import (
    Item,
    ItemName,
    ItemPart,
    item_page,
    items_from,
    items_of,
    listed,
    parse_item_id,
    without_item,
)
from .parameters import BadParameter, given_object, metadata_of
from .schemas import (
    ConversationHoldfastObject,
    ConversationObject,
    DeletedConversationObject,
    ItemListObject,
    ItemObject,
    ItemsBody,
    MetadataBody,
    NewConversationBody,
)


class ConversationRequest(Value, frozen=True):
    """The parsed request for a new conversation: messages and metadata."""

    messages: tuple[dict[str, Any], ...]
    metadata: Mapping[str, str]


def parse_conversation(body: Mapping[str, Any], *, resolve: Resolve | None = None) -> ConversationRequest:
    """Parse a request for a new conversation; both its fields are optional."""
    items = given_object(body, "the request").get("items")
    messages = [] if items is None else _messages(items, resolve)
    return ConversationRequest(tuple(messages), metadata_of(body.get("metadata")))


def parse_items(body: Mapping[str, Any], *, resolve: Resolve | None = None) -> tuple[dict[str, Any], ...]:
    """Parse a request that adds items; returns them as chat messages."""
    messages = _messages(given_object(body, "the request").get("items"), resolve)
    if not messages:
        raise BadParameter("items", "must contain at least one item that can be stored")
    return tuple(messages)


def parse_metadata(body: Mapping[str, Any]) -> dict[str, str]:
    """Parse a request that replaces the metadata."""
    if "metadata" not in given_object(body, "the request"):
        raise BadParameter("metadata", "must be given; null empties it")
    return metadata_of(body["metadata"])


def _messages(items: object, resolve: Resolve | None) -> list[dict[str, Any]]:
    if not isinstance(items, list):
        raise BadParameter("items", "must be a list of items")
    return messages_from_input(items, resolve=resolve, param="items")


def conversation_object(
    conversation_id: str,
    created_at: datetime,
    metadata: Mapping[str, str] | None,
    holdfast: ConversationHoldfastObject,
) -> ConversationObject:
    return ConversationObject(
        id=conversation_id,
        object="conversation",
        created_at=int(created_at.timestamp()),
        metadata=dict(metadata or {}),
        holdfast=holdfast,
    )


def deleted_conversation(conversation_id: str) -> DeletedConversationObject:
    return DeletedConversationObject(id=conversation_id, object="conversation.deleted", deleted=True)


MOST_REFERENCES = 1000

_encode = msgspec.json.Encoder().encode


def place_of_item(item_id: str, conversation_id: str) -> tuple[ItemName, int]:
    """The parsed item id and its message's sequence number; NotFound if not of this conversation."""
    name = parse_item_id(item_id)
    place = parse_message_id(name.message_id) if name else None
    if name is None or place is None or place[0] != conversation_id:
        raise NotFound("item", item_id)
    return name, place[1]


async def find_item(hf: Holdfast, owner: str, conversation_id: str, item_id: str) -> tuple[Item, Message]:
    """The item with this id, and the message that it is a part of."""
    _, seq = place_of_item(item_id, conversation_id)
    page = await hf.messages(owner, conversation_id, first=seq, last=seq, excluded=False)
    for message in page.items:
        for item in items_of(message):
            if item["id"] == item_id:
                return item, message
    raise NotFound("item", item_id)


async def resolver(call: RequestContext, items: object, param: str = "items") -> Resolve:
    """Fetches the items that a request refers to by id; returns their lookup function for the parser. A
    reference counts as if the item had been sent: raises HttpError if all of them are larger than a body may
    be, or exceed the memory of the API key's requests."""
    known: dict[str, Mapping[str, Any]] = {}
    wanted = Counter(referenced_ids(items))
    if len(wanted) > MOST_REFERENCES:
        raise BadParameter(param, f"may refer to {MOST_REFERENCES} items at most; it refers to {len(wanted)}")
    places = {
        place
        for name in map(parse_item_id, wanted)
        if name is not None and (place := parse_message_id(name.message_id)) is not None
    }
    size, most = 0, int(call.services.settings.server.max_body_mb * 2**20)
    for conversation_id, seq in places:  # each message once, however many of its items are referenced
        try:
            page = await call.hf.messages(call.owner, conversation_id, first=seq, last=seq, excluded=False)
        except NotFound:
            continue  # the parser reports it, with its position in the request
        for item in (item for message in page.items for item in items_of(message) if item["id"] in wanted):
            known[item["id"]] = item
            size += wanted[item["id"]] * len(_encode(item))
        if size > most:
            raise HttpError(
                413,
                f"the items that {param} refers to exceed {most / 2**20:g} MiB, each counted as often as "
                "it is referred to ([server] max_body_mb)",
                "request_too_large",
                param=param,
            )
    call.hold_bytes(size)
    return known.get


ROUTE = "/v1/conversations"
LARGEST_PAGE = 100
MOST_TRIES = 100


async def create(call: RequestContext) -> JsonResponse:
    check_stores(call, "creating a conversation")
    sent, body = await _read(call, optional=True)
    key = call.header(IDEMPOTENCY_KEY)
    resolve = await resolver(call, body.get("items"))

    def read() -> tuple[ConversationRequest, list[NewMessage]]:
        asked = parse_conversation(body, resolve=resolve)
        return asked, [new_message(message) for message in asked.messages]

    asked, messages = await call.work(len(sent), read)
    source = call.header(SOURCE)
    if source is not None:
        check_name("X-Holdfast-Source", source)
    made = await call.hf.create_conversation(
        call.owner,
        messages=messages,
        metadata=asked.metadata,
        source=source or DEFAULT_SOURCE,
        request_key=None if key is None else idempotency_key("/v1/conversations", key, sha256(sent).digest()),
    )
    return _shown(call, made)


async def conversations(call: RequestContext) -> JsonResponse:
    page = await call.hf.conversations(
        owners_of(call),
        after=call.query("after") or None,
        limit=call.query_number("limit", 20, 1, LARGEST_PAGE),
    )
    return JsonResponse(objects.listed([_object(call, each) for each in page.items], has_more=page.has_more))


async def retrieve(call: RequestContext) -> JsonResponse:
    return _shown(call, await _found(call, owner_of(call)))


async def update(call: RequestContext) -> JsonResponse:
    check_stores(call, "setting metadata")
    metadata = parse_metadata(await call.json())
    found = await _found(call, call.owner)
    await call.hf.set_metadata(call.owner, found.id, metadata)
    return _shown(call, replace(found, metadata=metadata))


async def delete(call: RequestContext) -> JsonResponse:
    found = await _found(call, call.owner)
    await call.hf.delete_conversation(call.owner, found.id, found.turn_id, "its conversation was deleted")
    return JsonResponse(deleted_conversation(found.id))


async def add_items(call: RequestContext) -> JsonResponse:
    check_stores(call, "adding items")
    sent, body = await _read(call)
    found = await _found(call, call.owner)
    resolve = await resolver(call, body.get("items"))

    def read() -> tuple[tuple[dict[str, Any], ...], list[NewMessage]]:
        said = parse_items(body, resolve=resolve)
        return said, [new_message(message) for message in said]

    said, messages = await call.work(len(sent), read)
    wait_seconds = call.services.settings.server.busy_wait_seconds
    last_seq = await call.hf.add_messages(call.owner, found.id, messages, wait_seconds, check=call.check_key)

    def shown() -> dict[str, Any]:
        numbered = enumerate(said, last_seq - len(said) + 1)
        return listed([item for seq, one in numbered for item in items_from(one, message_id(found.id, seq))])

    return JsonResponse(await call.work(len(sent), shown), headers=_headers(found))


async def _read(call: RequestContext, *, optional: bool = False) -> tuple[bytes, dict[str, Any]]:
    """The body and its parsed fields."""
    body = await call.body()
    fields = await call.work(len(body), lambda: call.parsed(body, optional=optional))
    check_counts(fields.get("items"), "items", call.services.settings.limits.messages_per_request)
    return body, fields


async def items(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    order = call.query("order") or "desc"
    if order not in ("asc", "desc"):
        raise BadParameter("order", f"must be asc or desc, not {order!r:.40}")
    descending = order == "desc"
    limit = call.query_number("limit", 20, 1, LARGEST_PAGE)
    found = await _found(call, owner)
    after = call.query("after") or None
    first, last = 1, None
    if after is not None:
        _, seq = place_of_item(after, found.id)
        first, last = (1, seq) if descending else (seq, None)
    page = await call.hf.messages(
        owner,
        found.id,
        first=first,
        last=last,
        limit=limit + 1,  # the first message may be on the previous page
        newest_first=descending,
        excluded=False,
        most_bytes=PAGE_BYTES,
    )
    await _note_reading(call, owner, found)
    shown = item_page(page.items, limit=limit, after=after, descending=descending, more=page.has_more)
    return JsonResponse(shown, headers=_headers(found))


async def item(call: RequestContext) -> JsonResponse:
    owner = owner_of(call)
    found = await _found(call, owner)
    shown, _ = await find_item(call.hf, owner, found.id, call.path("item_id"))
    await _note_reading(call, owner, found)
    return JsonResponse(shown, headers=_headers(found))


async def delete_item(call: RequestContext) -> JsonResponse:
    found = await _found(call, call.owner)
    item_id = call.path("item_id")
    for _ in range(MOST_TRIES):
        name, seq = place_of_item(item_id, found.id)
        _, message = await find_item(call.hf, call.owner, found.id, item_id)
        rest = without_item(message.content(), name, message.gaps)
        if rest is None:
            await call.hf.delete_message(call.owner, found.id, seq)
            return _shown(call, found)
        gaps = message.gaps
        if name.part is ItemPart.CALL and name.index is not None:
            gaps = (*gaps, name.index)
        try:
            await call.hf.reduce_message(call.owner, found.id, seq, new_message(rest), gaps)
        except Conflict:
            continue  # optimistic lock: another part was deleted meanwhile; retry
        return _shown(call, found)
    raise ConversationBusy(found.id)


async def _found(call: RequestContext, owner: str) -> Conversation:
    name = call.path("id")
    try:
        return await call.hf.find_conversation(owner, Address(id=name, create=False))
    except NotFound:
        raise NotFound("conversation", name) from None


async def _note_reading(call: RequestContext, owner: str, found: Conversation) -> None:
    if owner != call.owner:
        await note_reading(call, owner, await call.hf.find_session(owner, found.tip_id))


def _object(call: RequestContext, value: Conversation) -> ConversationObject:
    ours = ConversationHoldfastObject(
        session_id=value.tip_id,
        key=value.key,
        title=value.title,
        owner=value.owner if shows_owner(call) else UNSET,
    )
    return conversation_object(value.id, value.created_at, value.metadata, ours)


def _shown(call: RequestContext, value: Conversation) -> JsonResponse:
    return JsonResponse(_object(call, value), headers=_headers(value))


def _headers(value: Conversation) -> dict[str, str]:
    return {
        "x-holdfast-session-id": value.tip_id,
        "x-hermes-session-id": value.tip_id,
        "x-holdfast-conversation-id": value.id,
    }


_LIMIT = Parameter("limit", "How many at most.", Annotated[int, Meta(ge=1, le=LARGEST_PAGE)], default=20)
_AFTER = Parameter("after", "The `last_id` of the previous page.")
_ORDER = Parameter("order", "Oldest or newest first.", Literal["asc", "desc"], default="desc")
_INCLUDE = Parameter("include", "Accepted for compatibility with OpenAI; all data is always included.")

ROUTES = (
    Route(
        "GET",
        ROUTE,
        conversations,
        "List conversations, the newest first.",
        parameters=(_AFTER, _LIMIT, OWNERS),
        answer=ListObject[ConversationObject],
    ),
    Route(
        "POST",
        ROUTE,
        create,
        "Create a conversation, empty or with items.",
        body=NewConversationBody,
        body_optional=True,
        answer=ConversationObject,
        parameters=(Parameter("X-Holdfast-Source", "The source of the conversation.", where="header"),),
    ),
    Route(
        "GET",
        f"{ROUTE}/{{id}}",
        retrieve,
        "Read a conversation.",
        parameters=(OWNER,),
        answer=ConversationObject,
    ),
    Route(
        "POST",
        f"{ROUTE}/{{id}}",
        update,
        "Replace the metadata of a conversation.",
        body=MetadataBody,
        answer=ConversationObject,
    ),
    Route(
        "DELETE",
        f"{ROUTE}/{{id}}",
        delete,
        "Cancel the running turn and delete the conversation.",
        answer=DeletedConversationObject,
    ),
    Route(
        "GET",
        f"{ROUTE}/{{id}}/items",
        items,
        "List the items of a conversation.",
        parameters=(_ORDER, _AFTER, _LIMIT, _INCLUDE, OWNER),
        answer=ItemListObject,
    ),
    Route(
        "POST",
        f"{ROUTE}/{{id}}/items",
        add_items,
        "Add items; the model is not called.",
        body=ItemsBody,
        parameters=(_INCLUDE,),
        answer=ItemListObject,
    ),
    Route(
        "GET",
        f"{ROUTE}/{{id}}/items/{{item_id}}",
        item,
        "Read one item.",
        parameters=(_INCLUDE, OWNER),
        answer=ItemObject,
    ),
    Route(
        "DELETE",
        f"{ROUTE}/{{id}}/items/{{item_id}}",
        delete_item,
        "Delete an item; the other parts of its message stay.",
        answer=ConversationObject,
    ),
)
