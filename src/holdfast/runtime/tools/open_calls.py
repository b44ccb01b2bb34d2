"""Finds the outcome of open tool calls of a retried turn, before the model is given "outcome unknown".

Only calls of the turn's last step can be open. A tool that is declared idempotent is run again, with the same
idempotency key. For any other, the `reconcile` hook may know the outcome. If neither does, the model is given
the stored result: "outcome unknown". Nothing else is ever run again.

The hook asks a webhook. The request is a POST of the call, with its idempotency key as `Idempotency-Key`: the
key that the command had in its environment. The webhook answers 200 with `{"result": TEXT}` if it knows the
outcome. Anything else, also no answer in time, means that it does not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ...domain.contexts import is_unknown
from ...domain.messages import Message
from ..webhook import Webhook
from .toolbox import LONGEST_OUTPUT, ToolCall, shortened

log = logging.getLogger(__name__)

RECONCILE_SECONDS = 30.0


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


class Outcome(msgspec.Struct, frozen=True):
    """The body of the webhook's answer."""

    result: str | None = None


class ReconcileWebhook:
    """A `Reconcile` that asks the webhook at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self, call: ToolCall) -> str | None:
        asked = {
            "object": "tool_call",
            "id": call.key,
            "name": call.name,
            "arguments": call.arguments,
            "owner": call.owner,
            "conversation_id": call.conversation_id,
            "session_id": call.session_id,
            "turn_id": call.turn_id,
        }
        webhook = Webhook(self._url, RECONCILE_SECONDS)  # its own: other calls may ask at the same time
        try:
            answer = await webhook.ask(msgspec.json.encode(asked), call.key)
        finally:
            await webhook.close()
        if isinstance(answer, str):
            log.warning("the outcome of %s is unknown: the reconcile webhook %s", call.key, answer)
            return None
        try:
            result = msgspec.json.decode(answer or b"{}", type=Outcome).result
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            log.warning("the outcome of %s is unknown: the reconcile webhook's answer is not ours", call.key)
            return None
        return None if result is None else shortened(result, LONGEST_OUTPUT)
