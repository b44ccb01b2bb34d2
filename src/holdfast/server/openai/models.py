"""`GET /v1/models`: the models that the upstream offers.

A request with the header `anthropic-version` gets Anthropic's shape, any other OpenAI's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ...errors import NotFound
from ..http import RequestContext
from ..objects import listed
from ..response_writer import JsonResponse
from ..routes import Route
from ..schemas import ListObject
from .schemas import ModelObject

LATEST = 2**33
"""Seconds since 1970: a time in the year 2242."""


async def models(call: RequestContext) -> JsonResponse:
    found = await call.services.model.models()
    if not call.is_anthropic:
        return JsonResponse(listed(found))
    data = [anthropic_model(entry) for entry in found]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return JsonResponse({"data": data, "has_more": False, "first_id": first, "last_id": last})


async def model(call: RequestContext) -> JsonResponse:
    name = call.path("model")
    found: dict[str, Any] | None = next(
        (entry for entry in await call.services.model.models() if entry["id"] == name), None
    )
    if found is None:
        raise NotFound("model", name)
    return JsonResponse(anthropic_model(found) if call.is_anthropic else found)


def anthropic_model(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A model object in Anthropic's shape. A time that cannot be one is taken for unknown: some upstreams
    report milliseconds."""
    created = entry.get("created")
    at = datetime.fromtimestamp(created if isinstance(created, int) and 0 < created < LATEST else 0, UTC)
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": str(entry.get("display_name") or entry["id"]),
        "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


ROUTES = (
    Route("GET", "/v1/models", models, "List the upstream's models.", answer=ListObject[ModelObject]),
    Route("GET", "/v1/models/{model:path}", model, "Read one of the upstream's models.", answer=ModelObject),
)
