"""`GET /v1/models`: the models that the upstream offers."""

from __future__ import annotations

from typing import Any

from ...errors import NotFound
from ..http import JsonResponse, RequestContext
from ..objects import listed
from ..routes import Route
from ..schemas import ListObject
from .schemas import ModelObject


async def models(call: RequestContext) -> JsonResponse:
    return JsonResponse(listed(await call.services.model.models()))


async def model(call: RequestContext) -> JsonResponse:
    name = call.path("model")
    found: dict[str, Any] | None = next(
        (entry for entry in await call.services.model.models() if entry["id"] == name), None
    )
    if found is None:
        raise NotFound("model", name)
    return JsonResponse(found)


ROUTES = (
    Route("GET", "/v1/models", models, "List the upstream's models.", answer=ListObject[ModelObject]),
    Route("GET", "/v1/models/{model:path}", model, "Read one of the upstream's models.", answer=ModelObject),
)
