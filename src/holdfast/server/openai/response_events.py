"""The events of a Responses stream: an output item is added, its parts grow, it is done.

A live stream sends them while the model generates (`ResponseEvents`). A replay of a stored response sends the
same events with one delta for each part (`replay`). These also number the events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ...domain.ids import message_id, storable
from ...domain.responses import CUT_SHORT
from ...models.base import Chunk, is_text_field
from ...models.reply import ReplyFolder
from ..schemas import HoldfastObject
from .input_items import ToolNames
from .items import REASONING_FIELDS, Item, ItemPart, item_id, items_from
from .parts import shown, thoughts
from .response_object import IN_PROGRESS, ResponseHead, ResponseState, response_object

Event = dict[str, Any]

# For each kind of part: the prefix of its event types, and the field that grows.
PARTS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}
EMPTY: Mapping[str, Mapping[str, Any]] = {
    "output_text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "refusal": {"type": "refusal", "refusal": ""},
    "reasoning_text": {"type": "reasoning_text", "text": ""},
}
# For each kind of call: the prefix of its event types, and the field that grows.
CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


def item_added(item: Mapping[str, Any], index: int) -> Event:
    """The event that adds an item, which is still empty."""
    begun = {**item, "status": "in_progress"}
    if item["type"] in CALLS:
        begun[CALLS[item["type"]][1]] = ""
    elif "content" in item:
        begun["content"] = []
    return {"type": "response.output_item.added", "output_index": index, "item": begun}


def item_done(item: Mapping[str, Any], index: int) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def part_added(item_id: str, index: int, content_index: int, kind: str) -> Event:
    return {
        "type": "response.content_part.added",
        "item_id": item_id,
        "output_index": index,
        "content_index": content_index,
        "part": dict(EMPTY[kind]),
    }


def part_delta(
    item_id: str, index: int, content_index: int, kind: str, text: str, logprobs: list[Any] | None = None
) -> Event:
    event = {
        "type": f"{PARTS[kind][0]}.delta",
        "item_id": item_id,
        "output_index": index,
        "content_index": content_index,
        "delta": text,
    }
    if kind == "output_text":
        event["logprobs"] = logprobs or []
    return event


def part_done(item_id: str, index: int, content_index: int, part: Mapping[str, Any]) -> Iterator[Event]:
    where = {"item_id": item_id, "output_index": index, "content_index": content_index}
    if part["type"] in PARTS:
        name, field = PARTS[part["type"]]
        event = {"type": f"{name}.done", **where, field: part[field]}
        if part["type"] == "output_text":
            event["logprobs"] = part.get("logprobs") or []
        yield event
    yield {"type": "response.content_part.done", **where, "part": part}


def call_delta(item_id: str, index: int, kind: str, text: str) -> Event:
    return {"type": f"{CALLS[kind][0]}.delta", "item_id": item_id, "output_index": index, "delta": text}


def call_done(item: Mapping[str, Any], index: int) -> Event:
    name, field = CALLS[item["type"]]
    return {"type": f"{name}.done", "item_id": item["id"], "output_index": index, field: item[field]}


def whole_item(item: Mapping[str, Any], index: int) -> list[Event]:
    """The events of a stored item: those that add and fill it, then those that finish it."""
    said, done = [item_added(item, index)], []
    if item["type"] in CALLS:
        text = item[CALLS[item["type"]][1]]
        if text:
            said.append(call_delta(item["id"], index, item["type"], text))
        done.append(call_done(item, index))
    elif item["type"] in ("message", "reasoning"):
        for at, part in enumerate(item.get("content") or ()):
            if part["type"] in PARTS:
                said.append(part_added(item["id"], index, at, part["type"]))
                if text := part[PARTS[part["type"]][1]]:
                    said.append(part_delta(item["id"], index, at, part["type"], text, part.get("logprobs")))
            done.extend(part_done(item["id"], index, at, part))
    done.append(item_done(item, index))
    return said + done


LAST = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.incomplete",
}


def terminal_event(response: Mapping[str, Any], number: int) -> Event:
    """The last event of a stream, with its final response object."""
    return {"type": LAST[response["status"]], "response": response, "sequence_number": number}


def replay(response: Mapping[str, Any]) -> list[Event]:
    """A finished response as a complete stream, for a client whose original events were not kept."""
    begun = {
        **{name: value for name, value in response.items() if name != "holdfast"},
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "completed_at": None,
    }
    events: list[Event] = [
        {"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")
    ]
    for index, item in enumerate(response["output"]):
        events += whole_item(item, index)
    events.append({"type": LAST[response["status"]], "response": response})
    for number, event in enumerate(events):
        event["sequence_number"] = number
    return events


ITEM_OF = {
    "output_text": ItemPart.TEXT,
    "refusal": ItemPart.TEXT,
    "reasoning_text": ItemPart.REASONING,
}

_encode = msgspec.json.Encoder().encode


class ResponseEvents:
    """Makes the events of one attempt at a response, numbered from `first_number` on without a gap.

    The reply will be message `seq` of the conversation. One turn has several replies if tools are run here
    between them: `next_message` starts the next.
    """

    def __init__(
        self,
        head: ResponseHead,
        conversation_id: str,
        seq: int,
        *,
        first_number: int = 0,
        custom_tools: Collection[str] = (),
        first_items: Sequence[Item] = (),
    ) -> None:
        """`first_items`: complete items that come before the model's."""
        self._head = head
        self._conversation_id = conversation_id
        self._custom_tools = custom_tools
        self._typed = custom_tools.typed if isinstance(custom_tools, ToolNames) else frozenset()
        self._number = self._first_number = first_number
        self._first_items = first_items
        self._earlier: list[Item] = []
        self._places = 0
        self._reply = _ReplyItems(message_id(conversation_id, seq))

    def begin(self) -> list[Event]:
        response = response_object(self._head, IN_PROGRESS)
        types = ("response.created", "response.in_progress")
        events = [{"type": name, "response": response} for name in types]
        for item in self._first_items:
            events += whole_item(item, self._places)
            self._places += 1
            self._earlier.append(item)
        return self._numbered(events)

    def begin_again(self, unfinished: list[Event]) -> list[Event]:
        """The first events of a new attempt, instead of all events so far: the response with the items that
        stay, then those of the item that is not finished."""
        response = response_object(self._head, IN_PROGRESS, output=self._earlier)
        self._number = self._first_number
        return self._numbered([{"type": "response.in_progress", "response": response}, *unfinished])

    def add(self, chunk: Chunk) -> list[Event]:
        """The events of this chunk. Only the first choice is used: a response is one answer."""
        self._reply.folder.add(chunk)
        events: list[Event] = []
        for choice in chunk.value.get("choices") or ():
            delta = choice.get("delta")
            if delta and not choice.get("index"):
                self._add(delta, choice.get("logprobs"), events)
        return self._numbered(events)

    def next_message(self, seq: int, message: Mapping[str, Any] | None = None) -> list[Event]:
        """The events that finish the reply; the next reply is message `seq`. `message`: the stored reply, if
        it differs from the streamed one."""
        events: list[Event] = []
        said = message is not None or bool(self._reply.places)
        items = self._items(message if message is not None else self._reply.message()) if said else []
        self._finish(items, events)
        self._earlier += items
        self._reply = _ReplyItems(message_id(self._conversation_id, seq))
        return self._numbered(events)

    def end(
        self,
        state: ResponseState,
        *,
        message: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
        completed_at: datetime | None = None,
        holdfast: HoldfastObject | None = None,
    ) -> list[Event]:
        """The events that end the stream. `message`: the stored reply, if it differs from the streamed one.
        `usage`: if it differs from what the last answer reported. Of an incomplete reply only the texts are
        kept."""
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

    @property
    def next_number(self) -> int:
        return self._number

    def _numbered(self, events: list[Event]) -> list[Event]:
        for event in events:
            event["sequence_number"] = self._number
            self._number += 1
        return events

    # --- while the model generates ---------------------------------------------------------------------

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
        """Add the events of new call data. Servers send calls in many ways; `ReplyFolder` handles all."""
        reply = self._reply
        message = reply.message()
        for at, call in enumerate(message["tool_calls"]):
            function = call["function"]
            if at == len(reply.told):
                if not function["name"]:
                    return  # no event is possible for a call without a name, nor for later calls
                reply.told.append(0)
            if function["name"] in self._typed:
                continue  # its item is sent when its arguments are complete
            name = item_id(reply.id, ItemPart.CALL, at)
            new = function["arguments"][reply.told[at] :]
            if name not in reply.places or (new and name != reply.current):
                item = next(item for item in self._items(message) if item["id"] == name)
                self._turn_to(name, item, events)
            if new and function["name"] not in self._custom_tools:
                events.append(call_delta(name, reply.places[name], "function_call", new))
            reply.told[at] = len(function["arguments"])

    def _turn_to(self, name: str, item: Mapping[str, Any], events: list[Event]) -> None:
        """Finish the previous item, as complete as it is known, and make this one, new or not, current."""
        reply = self._reply
        if reply.current is not None:
            # Not calls of custom tools: their input is known only when their arguments are complete.
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
        """Finish the open items, and send those that could not be sent before."""
        for name in list(self._reply.undone):
            self._close(name, items, events)
        for item in items:
            if item["id"] not in self._reply.places:
                self._reply.places[item["id"]] = self._places
                events += whole_item(item, self._places)
                self._places += 1
            elif item != self._reply.done.get(item["id"]):
                events.append(item_done(item, self._reply.places[item["id"]]))  # it has changed since

    def _close(self, name: str, items: Iterable[Item], events: list[Event]) -> None:
        """Finish an item. One that is not kept (a call of an incomplete reply) gets no done event."""
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


class _ReplyItems:
    """One reply of the model, and which of its events were sent."""

    def __init__(self, message_id: str) -> None:
        self.id = message_id
        self.names = {part: item_id(message_id, part) for part in (ItemPart.TEXT, ItemPart.REASONING)}
        self.folder = ReplyFolder(message_id)
        self.places: dict[str, int] = {}
        """The output index of each item that was added."""
        self.undone: dict[str, None] = {}
        self.done: dict[str, Item] = {}
        """Each finished item, as in its last done event."""
        self.current: str | None = None
        self.parts: dict[str, int] = {}
        """The content index of each part that was added, by kind."""
        self.told: list[int] = []
        """How many characters of each call's arguments were sent."""
        self.logprobs: list[Any] = []
        self._thinks_in: str | None = None

    def message(self) -> dict[str, Any]:
        """The reply so far as a chat message that can be stored."""
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
        """What is kept of the reply if it remains incomplete: its texts; None without any."""
        texts = {
            name: text
            for name, text in self.message().items()
            if text and isinstance(text, str) and is_text_field(name)
        }
        return {"role": "assistant", "content": "", **texts} if texts else None

    def thought(self, delta: Mapping[str, Any]) -> str:
        """The reasoning in this delta, from the one field that this reply uses for reasoning."""
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
        """The empty item that a part of this kind belongs to."""
        if kind == "reasoning_text":
            return {"id": self.names[ItemPart.REASONING], "type": "reasoning", "summary": [], "content": []}
        whole = items_from({"role": "assistant", "content": ""}, self.id)[0]
        return {**whole, "content": []}


def encoded(events: Iterable[Event]) -> list[tuple[int, bytes]]:
    """Each event's number and its JSON in one line, with `type` first."""
    return [(event["sequence_number"], _encode(event)) for event in events]


def frame(number: int, data: bytes) -> bytes:
    """An encoded event in SSE format. Its number is its SSE id, which clients send back as Last-Event-ID."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (data[9 : data.index(b'"', 9)], number, data)


def frames(events: Iterable[Event]) -> list[bytes]:
    """Each event in SSE format."""
    return [frame(number, data) for number, data in encoded(events)]


def created_before(first: bytes) -> bytes:
    """A `response.created` to go before `response.in_progress`, the first event of a new attempt, for a
    reader from the beginning. Its number is one that no event has."""
    event = msgspec.json.decode(first.split(b"\ndata: ", 1)[1])
    number = event["sequence_number"] - 1
    return frame(number, _encode({**event, "type": "response.created", "sequence_number": number}))


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def _logprob(value: Mapping[str, Any]) -> dict[str, Any]:
    """A logprob for Responses: the SDK's types require lists where chat may send null."""
    fields = {"token": "", "logprob": 0.0, **value, "bytes": value.get("bytes") or []}
    top = value.get("top_logprobs")
    fields["top_logprobs"] = [_logprob_alone(one) for one in top] if isinstance(top, list) else []
    return fields


def _logprob_alone(value: Any) -> Any:
    return {**value, "bytes": value.get("bytes") or []} if isinstance(value, Mapping) else value
