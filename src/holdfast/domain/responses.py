"""The Responses API's view of a turn: its id and parameters, its status, and the event by which a webhook
learns of its end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .turns import Turn, TurnStatus
from .value import Value

CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why the model stopped before the end of its answer, and the Responses API's name for it."""


class Response(Value, frozen=True):
    """A turn with its Responses API id and the request's parameters."""

    id: str
    turn: Turn
    request: bytes
    previous_id: str | None
    background: bool
    brought: int
    """How many of the turn's first messages came with the request."""
    created_at: datetime
    joined: bool = False
    """True: its messages joined a running turn, which is `turn`, from its `first_seq` on."""


def response_status(status: TurnStatus, finish_reason: str | None = None, *, is_fault: bool = False) -> str:
    """The Responses API's status of a turn; `finish_reason` is the model's. `is_fault`: a
    background response that its server's death or stop interrupted, and which is not retried, has failed."""
    match status:
        case TurnStatus.QUEUED:
            return "queued"
        case TurnStatus.RUNNING:
            return "in_progress"
        case TurnStatus.COMPLETED:
            return "incomplete" if finish_reason in CUT_SHORT else "completed"
        case TurnStatus.INTERRUPTED if not is_fault:
            return "incomplete"
        case TurnStatus.CANCELLED:
            return "cancelled"
        case _:
            return "failed"


def finish_reason(answer: bytes | None) -> str | None:
    """Why the model stopped, by the stored answer."""
    found = msgspec.json.decode(answer or b"{}")
    choices: Any = found.get("choices") or ({},)
    reason: str | None = choices[0].get("finish_reason")
    return reason


def response_event(event_id: str, response_id: str, status: str, at: datetime) -> str:
    """The body of the webhook event for a response that ended with this status: OpenAI's shape."""
    event = {
        "id": event_id,
        "object": "event",
        "created_at": int(at.timestamp()),
        "type": f"response.{status}",
        "data": {"id": response_id},
    }
    return msgspec.json.encode(event).decode()
