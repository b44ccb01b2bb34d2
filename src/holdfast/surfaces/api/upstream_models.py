"""`GET /v1/models`: the models that the upstream offers."""

from __future__ import annotations

from typing import Any

from ...errors import NotFound
from ..objects import listed
from .call import Call, Reply
from .routes import Route


async def models(call: Call) -> Reply:
    return Reply(listed(await call.services.model.models()))


async def model(call: Call) -> Reply:
    name = call.path("model")
    found: dict[str, Any] | None = next(
        (entry for entry in await call.services.model.models() if entry["id"] == name), None
    )
    if found is None:
        raise NotFound("model", name)
    return Reply(found)


ROUTES = (
    Route("GET", "/v1/models", models, "The upstream's models."),
    Route("GET", "/v1/models/{model:path}", model, "One of the upstream's models."),
)
