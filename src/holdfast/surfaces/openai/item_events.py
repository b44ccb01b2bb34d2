"""The events that tell of one output item: that it began, how its parts grew, that it is done.

A stream sends them as the model speaks; a stream that is told afterwards sends the same with one piece for
each part. Numbers are given later, by whoever puts the events in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Event = dict[str, Any]

# Of each kind of part: the events that tell of it, and the field that grows.
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
# Of each kind of call: the events that tell of it, and the field that grows.
CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


def item_added(item: Mapping[str, Any], index: int) -> Event:
    """It begins; nothing of it has been said."""
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


def whole_item(item: Mapping[str, Any], index: int) -> tuple[list[Event], list[Event]]:
    """An item told afterwards: what says it, and what says that it is done."""
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
    return said, done
