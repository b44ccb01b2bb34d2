"""Finds the outcome of open tool calls of a retried turn, before the model is given "outcome unknown".

Only calls of the turn's last step can be open. A tool that is declared idempotent is run again, with the same
idempotency key. For any other, the `reconcile` hook may know the outcome. If neither does, the model is given
the stored result: "outcome unknown". Nothing else is ever run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...domain.contexts import is_unknown
from ...domain.messages import Message


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of the server's own tools whose result was lost, and the number of its placeholder result."""

    call: dict[str, Any]
    step_seq: int
    position: int
    """Its position among the step's own calls."""
    result_seq: int


def open_calls(messages: Sequence[Message]) -> list[OpenCall]:
    """The open calls of a turn with these messages, in the order of its last step. Placeholders that were
    replaced before do not count."""
    step = next((each for each in reversed(messages) if each.own_calls), None)
    if step is None:
        return []
    placeholders: dict[str, int] = {}
    for message in messages:
        if message.seq > step.seq and message.role == "tool":
            value = message.content()
            call_id = str(value.get("tool_call_id"))
            if is_unknown(value.get("content")):
                placeholders[call_id] = message.seq
            else:
                placeholders.pop(call_id, None)
    calls = {str(call["id"]): call for call in step.content().get("tool_calls") or ()}
    return [
        OpenCall(calls[call_id], step.seq, position, placeholders[call_id])
        for position, call_id in enumerate(step.own_calls)
        if call_id in placeholders and call_id in calls
    ]
