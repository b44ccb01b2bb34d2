"""Turns a model's chat chunks into the events of a Responses stream.

    response.created, response.in_progress
      output_item.added                          for what is thought, said, and each call
        content_part.added, …delta, …done, content_part.done
      output_item.done                           when the next item begins, or at the end
    response.completed | response.incomplete | response.failed

Items have the ids that the stored reply has later, because its number is known while the conversation's
lease is held; and the last event's output is exactly what `items_of` gives for the stored reply (and the
log probabilities that were asked for, which nobody keeps). Whoever takes the turn up again begins anew,
with higher numbers.

A model may go back to an item that is done, say, think again after it spoke. Its pieces are then one item
all the same, as they are one field of the stored reply: it goes on, and is done a second time.

There is no event for a cancelled response: it ends with `response.incomplete`, and its status says
`cancelled`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from ...domain.ids import message_id
from ...domain.names import storable
from ...models.base import Chunk, is_text_field
from ...models.reply import ReplyFolder
from .item_events import (
    CALLS,
    PARTS,
    Event,
    call_delta,
    call_done,
    item_added,
    item_done,
    part_added,
    part_delta,
    part_done,
    whole_item,
)
from .item_ids import ItemPart, item_id
from .items import REASONING_FIELDS, Item, items_from
from .parts import shown, thoughts
from .replays import LAST
from .response_object import CUT_SHORT, IN_PROGRESS, ResponseHead, ResponseState, response_object

ITEM_OF = {
    "output_text": ItemPart.TEXT,
    "refusal": ItemPart.TEXT,
    "reasoning_text": ItemPart.REASONING,
}

_encode = msgspec.json.Encoder().encode


class ResponseEvents:
    """The events of one attempt at a response, numbered from `first_number` on without a gap.

    The reply will be message `seq` of the conversation. One turn may hold several replies, when tools are
    run here between them: `next_message` goes on to the next.
    """

    def __init__(
        self,
        head: ResponseHead,
        conversation_id: str,
        seq: int,
        *,
        first_number: int = 0,
        custom_tools: Collection[str] = (),
    ) -> None:
        self._head = head
        self._conversation_id = conversation_id
        self._custom_tools = custom_tools
        self._number = first_number
        self._earlier: list[Item] = []
        self._places = 0
        self._reply = _Reply(message_id(conversation_id, seq))

    def begin(self) -> list[Event]:
        response = response_object(self._head, IN_PROGRESS)
        types = ("response.created", "response.in_progress")
        return self._numbered([{"type": name, "response": response} for name in types])

    def add(self, chunk: Chunk) -> list[Event]:
        """What this chunk adds. Only the first choice counts: a response is one answer."""
        self._reply.folder.add(chunk)
        events: list[Event] = []
        for choice in chunk.value.get("choices") or ():
            delta = choice.get("delta")
            if delta and not choice.get("index"):
                self._add(delta, choice.get("logprobs"), events)
        return self._numbered(events)

    def next_message(self, seq: int, message: Mapping[str, Any] | None = None) -> list[Event]:
        """The reply is whole (`message`, if it was stored otherwise than it was said); the next is number
        `seq`."""
        events: list[Event] = []
        said = message is not None or bool(self._reply.places)
        items = self._items(message if message is not None else self._reply.message()) if said else []
        self._finish(items, events)
        self._earlier += items
        self._reply = _Reply(message_id(self._conversation_id, seq))
        return self._numbered(events)

    def end(
        self,
        state: ResponseState,
        *,
        message: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
        completed_at: datetime | None = None,
        holdfast: Mapping[str, Any] | None = None,
    ) -> list[Event]:
        """The end. `message` is the reply as it was stored, if that is not what was said; `usage`, if it is
        not what the last answer reported. Of a reply that is not whole, the texts are kept: see
        `domain.drafts`."""
        answered = state.status == "completed" or state.reason in CUT_SHORT.values()
        if message is None:
            message = self._reply.message() if answered else self._reply.kept()
        items = self._items(message, interrupted=not answered) if message is not None else []
        events: list[Event] = []
        self._finish(items, events)
        said = self._reply.folder.reply()
        response = response_object(
            self._head,
            state,
            output=[*self._earlier, *items],
            usage=usage if usage is not None else said.usage,
            model=said.model,
            completed_at=completed_at,
            holdfast=holdfast,
        )
        events.append({"type": LAST[state.status], "response": response})
        return self._numbered(events)

    def begin_encoded(self) -> list[tuple[int, bytes]]:
        return encoded(self.begin())

    def add_encoded(self, chunk: Chunk) -> list[tuple[int, bytes]]:
        return encoded(self.add(chunk))

    def end_encoded(self, state: ResponseState, **facts: Any) -> list[tuple[int, bytes]]:
        return encoded(self.end(state, **facts))

    @property
    def next_number(self) -> int:
        return self._number

    def _numbered(self, events: list[Event]) -> list[Event]:
        for event in events:
            event["sequence_number"] = self._number
            self._number += 1
        return events

    # --- while the model speaks ------------------------------------------------------------------------

    def _add(self, delta: Mapping[str, Any], logprobs: object, events: list[Event]) -> None:
        content = delta.get("content")
        if thought := self._reply.thought(delta):
            self._say("reasoning_text", thought, events)
        if isinstance(content, list):
            content = "".join(shown(part.get("text")) for part in content if _is_text(part))
        if content:
            self._say("output_text", content, events, self._reply.measured(logprobs))
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._say("refusal", refusal, events)
        if delta.get("tool_calls"):
            self._call(events)

    def _say(self, kind: str, text: str, events: list[Event], logprobs: list[Any] | None = None) -> None:
        reply = self._reply
        name = reply.names[ITEM_OF[kind]]
        if name != reply.current:
            self._turn_to(name, reply.begun(kind), events)
        index = reply.places[name]
        at = reply.parts.get(kind)
        if at is None:
            at = reply.parts[kind] = sum(ITEM_OF[other] is ITEM_OF[kind] for other in reply.parts)
            events.append(part_added(name, index, at, kind))
        events.append(part_delta(name, index, at, kind, storable(text), logprobs))

    def _call(self, events: list[Event]) -> None:
        """Tell what is new about the calls. Servers send them in many ways; the folder knows them all."""
        reply = self._reply
        message = reply.message()
        for at, call in enumerate(message["tool_calls"]):
            function = call["function"]
            if at == len(reply.told):
                if not function["name"]:
                    return  # nothing can be told of a call without a name, nor of those behind it
                reply.told.append(0)
            name = item_id(reply.id, ItemPart.CALL, at)
            new = function["arguments"][reply.told[at] :]
            if name not in reply.places or (new and name != reply.current):
                item = next(item for item in self._items(message) if item["id"] == name)
                self._turn_to(name, item, events)
            if new and function["name"] not in self._custom_tools:
                events.append(call_delta(name, reply.places[name], "function_call", new))
            reply.told[at] = len(function["arguments"])

    def _turn_to(self, name: str, item: Mapping[str, Any], events: list[Event]) -> None:
        """The model goes on to this item, new or not: the one before is done, as far as one can know."""
        reply = self._reply
        if reply.current is not None:
            # Not the calls of custom tools: what their input is can be said when their arguments are whole.
            items = [item for item in self._items(reply.message()) if item["type"] != "custom_tool_call"]
            if any(item["id"] == reply.current for item in items):
                self._close(reply.current, items, events)
        if name not in reply.places:
            reply.places[name] = self._places
            self._places += 1
            events.append(item_added(item, reply.places[name]))
        reply.undone[name] = None
        reply.current = name

    # --- items that are done ---------------------------------------------------------------------------

    def _items(self, message: Mapping[str, Any], *, interrupted: bool = False) -> list[Item]:
        items = items_from(message, self._reply.id, interrupted=interrupted, custom_tools=self._custom_tools)
        if self._reply.logprobs:
            for item in items:
                for part in item["content"] if item["type"] == "message" else ():
                    if part["type"] == "output_text":
                        part["logprobs"] = self._reply.logprobs
        return items

    def _finish(self, items: list[Item], events: list[Event]) -> None:
        """Close what is open, and tell of what could not be told before."""
        for name in list(self._reply.undone):
            self._close(name, items, events)
        for item in items:
            if item["id"] not in self._reply.places:
                self._reply.places[item["id"]] = self._places
                said, done = whole_item(item, self._places)
                self._places += 1
                events += [*said, *done]
            elif item != self._reply.done.get(item["id"]):
                events.append(item_done(item, self._reply.places[item["id"]]))  # more was said about it since

    def _close(self, name: str, items: Iterable[Item], events: list[Event]) -> None:
        """An item that is not kept (a call of a reply that broke off) is never done."""
        reply = self._reply
        if name not in reply.undone:
            return
        del reply.undone[name]
        item = next((item for item in items if item["id"] == name), None)
        if item is None:
            return
        index = reply.places[name]
        if item["type"] in CALLS:
            if item["type"] == "custom_tool_call":
                events.append(call_delta(name, index, item["type"], item["input"]))
            events.append(call_done(item, index))
        else:
            self._close_parts(item, index, events)
        events.append(item_done(item, index))
        reply.done[name] = item

    def _close_parts(self, item: Item, index: int, events: list[Event]) -> None:
        told = dict(self._reply.parts)
        for at, part in enumerate(item["content"]):
            kind = part["type"]
            place = told.pop(kind, None)
            if place is None:
                place = at
                if kind in PARTS:
                    events.append(part_added(item["id"], index, at, kind))
                    events.append(part_delta(item["id"], index, at, kind, part[PARTS[kind][1]]))
            events.extend(part_done(item["id"], index, place, part))


class _Reply:
    """One reply of the model, and what has been told of it."""

    def __init__(self, message_id: str) -> None:
        self.id = message_id
        self.names = {part: item_id(message_id, part) for part in (ItemPart.TEXT, ItemPart.REASONING)}
        self.folder = ReplyFolder(message_id)
        self.places: dict[str, int] = {}
        """Where in the output each item stands that has begun."""
        self.undone: dict[str, None] = {}
        self.done: dict[str, Item] = {}
        """As they were when they were last said to be done."""
        self.current: str | None = None
        self.parts: dict[str, int] = {}
        """Where in their item the parts stand that have begun, by kind."""
        self.told: list[int] = []
        """How much of each call's arguments."""
        self.logprobs: list[Any] = []
        self._thinks_in: str | None = None

    def message(self) -> dict[str, Any]:
        """What it amounts to so far, as it can be stored."""
        message = self.folder.reply().message
        for name, value in message.items():
            if isinstance(value, str):
                message[name] = storable(value)
        for call in message.get("tool_calls") or ():
            call["function"] = {
                name: storable(value) if isinstance(value, str) else value
                for name, value in call["function"].items()
            }
        return message

    def kept(self) -> dict[str, Any] | None:
        """What is kept of it if it stays as it is."""
        texts = {
            name: text
            for name, text in self.message().items()
            if text and isinstance(text, str) and is_text_field(name)
        }
        return {"role": "assistant", "content": "", **texts} if texts else None

    def thought(self, delta: Mapping[str, Any]) -> str:
        """What this piece says under the name that the thoughts of this reply go by."""
        for name in REASONING_FIELDS:
            text = delta.get(name)
            if text and isinstance(text, str) and self._thinks_in in (None, name):
                self._thinks_in = name
                return text
        return thoughts(delta.get("content"))

    def measured(self, logprobs: object) -> list[Any] | None:
        found = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        if not isinstance(found, list) or not found:
            return None
        new = [_logprob(one) for one in found if isinstance(one, Mapping)]
        self.logprobs += new
        return new

    def begun(self, kind: str) -> Item:
        """The item that such a part stands in, as it begins."""
        if kind == "reasoning_text":
            return {"id": self.names[ItemPart.REASONING], "type": "reasoning", "summary": [], "content": []}
        whole = items_from({"role": "assistant", "content": ""}, self.id)[0]
        return {**whole, "content": []}


def encoded(events: Iterable[Event]) -> list[tuple[int, bytes]]:
    """Each event's number and its JSON, on one line, `type` first."""
    return [(event["sequence_number"], _encode(event)) for event in events]


def frame(number: int, data: bytes) -> bytes:
    """An encoded event as server-sent events carry it; its number is what comes back as Last-Event-ID."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (data[9 : data.index(b'"', 9)], number, data)


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def _logprob(value: Mapping[str, Any]) -> dict[str, Any]:
    """The SDK's types want lists where chat may say null."""
    fields = {"token": "", "logprob": 0.0, **value, "bytes": value.get("bytes") or []}
    top = value.get("top_logprobs")
    fields["top_logprobs"] = [_logprob_alone(one) for one in top] if isinstance(top, list) else []
    return fields


def _logprob_alone(value: Any) -> Any:
    return {**value, "bytes": value.get("bytes") or []} if isinstance(value, Mapping) else value
