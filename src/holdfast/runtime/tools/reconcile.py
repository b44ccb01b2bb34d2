"""Asks a webhook for the outcome of a tool call whose result was lost in a crash.

The request is a POST of the call, with its idempotency key as `Idempotency-Key`: the key that the command had
in its environment. The webhook answers 200 with `{"result": TEXT}` if it knows the outcome. Anything else,
also no answer in time, means that it does not.
"""

from __future__ import annotations

import logging

import msgspec

from ..webhook import Webhook
from .toolbox import LONGEST_OUTPUT, ToolCall, shortened

log = logging.getLogger(__name__)

RECONCILE_SECONDS = 30.0


class Outcome(msgspec.Struct, frozen=True):
    """The body of the webhook's answer."""

    result: str | None = None


class ReconcileWebhook:
    """A `Reconcile` that asks the webhook at `url`."""

    def __init__(self, url: str, timeout_seconds: float = RECONCILE_SECONDS) -> None:
        self._webhook = Webhook(url, timeout_seconds)

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
        try:
            answer = await self._webhook.ask(msgspec.json.encode(asked), call.key)
        finally:
            await self._webhook.close()
        if isinstance(answer, str):
            log.warning("the outcome of %s is unknown: the reconcile webhook %s", call.key, answer)
            return None
        try:
            told = msgspec.json.decode(answer or b"{}", type=Outcome).result
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            log.warning("the outcome of %s is unknown: the reconcile webhook's answer is not ours", call.key)
            return None
        return None if told is None else shortened(told, LONGEST_OUTPUT)
