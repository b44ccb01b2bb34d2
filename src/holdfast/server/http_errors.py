"""Maps exceptions to HTTP errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

Model errors that concern the request (400, 404, 413, 422, 429) are passed on. If the model rejects our API
key or fails, the status is 502; if it times out, 504. `x-should-retry` tells the official SDKs whether a
retry of the same request can succeed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import to_builtins

from ..errors import (
    BadInput,
    BadKey,
    Conflict,
    ContextTooLarge,
    ConversationBusy,
    HoldfastError,
    KeyExpired,
    ModelError,
    NotAllowed,
    NotCompacted,
    NotFound,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    RequestMismatch,
    SearchTimeout,
    StatementFailed,
    StoreError,
    StoreFull,
    TooLarge,
    ToolCallClosed,
    TurnStopped,
    TurnSuperseded,
)
from .schemas import ErrorDetail

PASSED_ON = frozenset({400, 404, 413, 422, 429})

INVALID = "invalid_request_error"
CONFLICT = "conflict_error"
SERVER = "server_error"
UPSTREAM = "upstream_error"


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Status, error object and headers as sent to the client."""

    status: int
    message: str
    type: str
    code: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def object(self) -> ErrorDetail:
        return ErrorDetail(message=self.message, type=self.type, param=self.param, code=self.code)


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def anthropic_error(failure: ErrorResponse, request_id: str) -> dict[str, Any]:
    """The body of an error in Anthropic's shape. `code` and `param` are ours, as in OpenAI's shape."""
    type_ = ANTHROPIC_TYPES.get(failure.status)
    if type_ is None:
        type_ = "api_error" if failure.status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {**to_builtins(failure.object()), "type": type_},
        "request_id": request_id,
    }


class HttpError(HoldfastError):
    """A request rejected at the HTTP level: wrong path, method or host, too large, or too many."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = ErrorResponse(
            status, message, INVALID if status < 500 else SERVER, code, param, headers or {}
        )


_INTERNAL = "internal error; the server's log has the details"
_NO_THREADS = "the server's system cannot start another thread; retry later"

RETRY = {"x-should-retry": "true"}
NO_RETRY = {"x-should-retry": "false"}


def failure_of(error: BaseException) -> ErrorResponse:
    """The error response for an exception."""
    said = error.public if isinstance(error, HoldfastError) else str(error)
    match error:
        case HttpError():
            return error.failure
        case RateLimited():
            return _rate_limited(error)
        case KeyExpired():
            return ErrorResponse(
                401, said, INVALID, "api_key_expired", headers={"www-authenticate": "Bearer"}
            )
        case BadKey():
            return ErrorResponse(
                401, said, INVALID, "invalid_api_key", headers={"www-authenticate": "Bearer"}
            )
        case NotAllowed():
            return ErrorResponse(403, said, "permission_error", "insufficient_scope")
        case ContextTooLarge():
            return ErrorResponse(413, said, INVALID, "context_too_large", headers=NO_RETRY)
        case TooLarge():
            return ErrorResponse(413, said, INVALID, "too_large", headers=NO_RETRY)
        case SearchTimeout():
            return ErrorResponse(400, said, INVALID, "search_timeout", "q")
        case QuotaExceeded():
            return ErrorResponse(413, said, INVALID, "quota_exceeded", error.setting, NO_RETRY)
        case BadInput():
            return ErrorResponse(400, said, INVALID, "invalid_value", getattr(error, "param", None))
        case NotFound():
            return ErrorResponse(404, said, INVALID, "not_found")
        case ConversationBusy():
            return ErrorResponse(
                409, said, CONFLICT, "conversation_locked", headers={**RETRY, "retry-after": "1"}
            )
        case QueueFull():
            return ErrorResponse(429, said, CONFLICT, "queue_full", headers={**RETRY, "retry-after": "5"})
        case RequestMismatch():
            return ErrorResponse(409, said, CONFLICT, "idempotency_key_reused", "Idempotency-Key", NO_RETRY)
        case TurnSuperseded():
            return ErrorResponse(409, said, CONFLICT, "turn_superseded", headers=NO_RETRY)
        case ToolCallClosed():
            return ErrorResponse(409, said, CONFLICT, "tool_call_closed", "messages", NO_RETRY)
        case NotCompacted():
            return ErrorResponse(409, said, CONFLICT, "not_compacted", headers=NO_RETRY)
        case Conflict():
            return ErrorResponse(409, said, CONFLICT, "conflict", headers=NO_RETRY)
        case TurnStopped():
            if error.retry:
                return ErrorResponse(
                    503, said, SERVER, "turn_interrupted", headers={**RETRY, "retry-after": "1"}
                )
            return ErrorResponse(409, said, CONFLICT, f"turn_{error.status}", headers=NO_RETRY)
        case ModelError():
            return _of_model(error)
        case StoreFull():
            return ErrorResponse(507, said, SERVER, "insufficient_storage", headers=RETRY)
        case StatementFailed():
            return ErrorResponse(500, said, SERVER, "internal_error")
        case StoreError():
            return ErrorResponse(503, said, SERVER, "store_unavailable", headers=RETRY)
        case RecursionError():
            return ErrorResponse(400, "the request is nested too deeply", INVALID, "invalid_value")
        case HoldfastError():
            return ErrorResponse(500, said, SERVER, "internal_error")
        case RuntimeError() if said == "can't start new thread":  # Python has no class for it
            return ErrorResponse(503, _NO_THREADS, SERVER, "no_threads", headers=RETRY)
        case _:
            return ErrorResponse(500, _INTERNAL, SERVER, "internal_error")


LONGEST_SDK_WAIT = 60
"""Seconds of `retry-after` up to which the official SDKs wait as long as it says."""


def _rate_limited(error: RateLimited) -> ErrorResponse:
    """OpenAI's 429: its type is what is limited, `requests` or `tokens`."""
    seconds = max(1, math.ceil(error.seconds))
    again = RETRY if seconds <= LONGEST_SDK_WAIT else NO_RETRY
    return ErrorResponse(
        429,
        str(error),
        error.limit.partition("_per_")[0],
        "rate_limit_exceeded",
        headers={**again, "retry-after": str(seconds)},
    )


def _of_model(error: ModelError) -> ErrorResponse:
    status = error.status
    headers = {} if error.retry_after is None else {"retry-after": f"{error.retry_after:g}"}
    if status in PASSED_ON:
        type_, code = error.type or INVALID, error.code or _CODES.get(status, "invalid_value")
        return ErrorResponse(status, error.said or error.public, type_, code, error.param, headers)
    if status in (401, 403):
        return ErrorResponse(502, error.public, UPSTREAM, "upstream_auth", headers=NO_RETRY)
    if status == 504:
        return ErrorResponse(504, error.public, UPSTREAM, "upstream_timeout", headers=headers)
    return ErrorResponse(502, error.public, UPSTREAM, "upstream_error", headers=headers)


_CODES = {404: "model_not_found", 413: "request_too_large", 429: "rate_limit_exceeded"}
