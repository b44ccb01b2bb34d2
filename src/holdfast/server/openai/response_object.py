"""The `response` object of the Responses API, for every status of its turn.

    running      in_progress (queued, until it is started)
    completed    completed; incomplete, if the model stopped at a token limit or by a content filter
    interrupted  incomplete, for the reason `interrupted`, which OpenAI does not have; in the background, by
                 the death or stop of its server: failed
    (waiting)    in_progress; queued, while there is no output
    failed       failed, with its error
    cancelled    cancelled

Every field that Open Responses requires is present with its type. A field without a value is null if the
schema allows that; otherwise it has OpenAI's default (`NOTHING_ASKED`), also in responses stored by older
versions. `holdfast` names the conversation that it became part of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ...domain.responses import CUT_SHORT, response_status
from ...domain.turns import TurnStatus
from ...domain.value import Value
from ..schemas import HoldfastObject
from .schemas import DeletedResponseObject

INTERRUPTED = "interrupted"
# The error codes that the SDKs' types allow in a response, as far as they can occur here.
CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt", 413: "invalid_prompt", 422: "invalid_prompt"}
NOTHING_ASKED: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1,
    "truncation": "disabled",
    "user": None,
}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields of a response that are known from its start."""

    id: str
    created_at: datetime
    echo: Mapping[str, Any] = field(default_factory=dict)
    """The request's `ResponsesRequest.echo`."""
    model: str = ""
    conversation_id: str | None = None
    previous_response_id: str | None = None
    background: bool = False


class ResponseState(Value, frozen=True):
    """The status of a response, with its error or its reason for being incomplete."""

    status: str
    reason: str | None = None
    """Why it is incomplete."""
    error: Mapping[str, Any] | None = None

    @property
    def is_final(self) -> bool:
        return self.status not in ("queued", "in_progress")


QUEUED = ResponseState("queued")
IN_PROGRESS = ResponseState("in_progress")


def state_of(
    status: TurnStatus,
    *,
    finish_reason: str | None = None,
    error: Mapping[str, Any] | None = None,
    is_fault: bool = False,
) -> ResponseState:
    """The state of a response whose turn has this status; see `response_status`."""
    match response_status(status, finish_reason, is_fault=is_fault):
        case "incomplete":
            cut = CUT_SHORT.get(finish_reason or "") if status is TurnStatus.COMPLETED else None
            return ResponseState("incomplete", cut or INTERRUPTED)
        case "failed":
            return ResponseState("failed", error=error or response_error("the turn failed"))
        case other:
            return ResponseState(other)


def response_error(message: str, status: int | None = None) -> dict[str, Any]:
    """The error of a failed response; `status` is the HTTP status that the request would have got."""
    return {"code": CODES.get(status or 500, "server_error"), "message": message}


def response_object(
    head: ResponseHead,
    state: ResponseState,
    *,
    output: Sequence[Mapping[str, Any]] = (),
    usage: Mapping[str, Any] | None = None,
    model: str | None = None,
    completed_at: datetime | None = None,
    holdfast: HoldfastObject | None = None,
) -> dict[str, Any]:
    """The response object. `usage`: in either of OpenAI's formats; `model`: the one that answered."""
    conversation = {"id": head.conversation_id} if head.conversation_id else None
    response = {
        "id": head.id,
        "object": "response",
        "created_at": int(head.created_at.timestamp()),
        "status": state.status,
        "completed_at": int(completed_at.timestamp())
        if completed_at and state.status == "completed"
        else None,
        "background": head.background,
        "conversation": conversation,
        "error": dict(state.error) if state.error else None,
        "incomplete_details": {"reason": state.reason} if state.status == "incomplete" else None,
        **NOTHING_ASKED,
        **{name: value for name, value in head.echo.items() if value is not None and name != "warnings"},
        "model": model or head.model,
        "output": list(output),
        "previous_response_id": head.previous_response_id,
        "prompt": None,
        "usage": response_usage(usage),
        **({"warnings": head.echo["warnings"]} if head.echo.get("warnings") else {}),
    }
    return {**response, "holdfast": holdfast} if holdfast is not None else response


def response_usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Token counts in the Responses API's format; None if the model reported none."""
    if not usage:
        return None
    read = _count(usage, "input_tokens", "prompt_tokens")
    written = _count(usage, "output_tokens", "completion_tokens")
    of_input = _details(usage, "input_tokens_details", "prompt_tokens_details")
    of_output = _details(usage, "output_tokens_details", "completion_tokens_details")
    return {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": _count(of_input, "cached_tokens"),
            "cache_write_tokens": _count(of_input, "cache_write_tokens"),
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": _count(of_output, "reasoning_tokens")},
        "total_tokens": _count(usage, "total_tokens") or read + written,
    }


def deleted_response(response_id: str) -> DeletedResponseObject:
    return DeletedResponseObject(id=response_id, object="response", deleted=True)


def _count(facts: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = facts.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _details(facts: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((facts[name] for name in names if isinstance(facts.get(name), Mapping)), {})
