"""A finished response told again as a stream, when what was streamed is no longer kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .item_events import Event, whole_item

LAST = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.incomplete",
}


def terminal_event(response: Mapping[str, Any], number: int) -> Event:
    """The last event of a stream, from its final response object."""
    return {"type": LAST[response["status"]], "response": response, "sequence_number": number}


def replay(response: Mapping[str, Any], *, last: int | None = None, first: int = 0) -> list[Event]:
    """A finished response as a whole stream, for a client whose stream was not kept.

    What was said is numbered from `first` on; that the last item is done, and the end, so that the end has
    number `last` (if there is room). So a client that had heard part of it gets, with `starting_after`, at
    least the whole of the last item and the response, and the rest only if it had not come so far.
    """
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
    closing: list[Event] = []
    for index, item in enumerate(response["output"]):
        events += closing
        said, closing = whole_item(item, index)
        events += said
    closing.append({"type": LAST[response["status"]], "response": response})
    for number, event in enumerate(events, first):
        event["sequence_number"] = number
    begins = first + len(events)
    if last is not None:
        begins = max(begins, last - len(closing) + 1)
    for number, event in enumerate(closing, begins):
        event["sequence_number"] = number
    return events + closing
