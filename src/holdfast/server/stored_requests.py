"""What is stored of a request to ask the model again, on any node: see `domain/recovery.py`.

Apart from `rebuild.py`, which reads it back and imports the routes that call this.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..domain.recovery import Origin, RequestToStore, encoded_request, is_covered
from .conversation_ref import wants_recovery
from .http import RequestContext


def to_store(
    call: RequestContext,
    surface: str,
    body: bytes,
    instructions: tuple[bytes, ...],
    *,
    origin: Origin = Origin.FOREGROUND,
    headers: Mapping[str, str] | None = None,
) -> RequestToStore:
    """The request as `begin_turn` stores it. `body`: its fields as JSON, without the messages and without any
    key."""
    policy = call.services.settings.turns.recover
    return RequestToStore(
        encoded_request(surface, body, instructions, call.caller.key_id, dict(headers) if headers else None),
        origin,
        is_covered(policy, origin, wants_recovery(call)),
    )
