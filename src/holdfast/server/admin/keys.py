"""`/api/keys`: API keys, for admins. A key is shown once, when it is created.

Lists and revokes an owner's keys, the caller's own unless it names another. A key that a request creates may
have only tools that the request's own key has.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ...domain.api_keys import RateLimits, Scope, check_admin, check_right
from ...errors import NotFound
from .. import objects
from ..http import RequestContext
from ..openai.parameters import RequestBody, must_be
from ..owners import OWNERS, owners_of
from ..response_writer import JsonResponse
from ..routes import Route
from ..schemas import ApiKeyObject, ListObject, NewApiKeyObject

Limit = Annotated[int, Meta(ge=0), must_be("a whole number; 0 is unlimited", minimum=0)]


class KeyBody(RequestBody, frozen=True, kw_only=True):
    owner: Annotated[str | None, must_be("the owner it acts as; the caller's own unless named")] = None
    scope: Annotated[Scope, must_be("one of chat, bridge, admin")] = Scope.CHAT
    tools: Annotated[tuple[str, ...], must_be("a list of tools that the caller's own key has")] = ()
    name: Annotated[str, must_be("what people call it, in one line")] = ""
    expires_days: Annotated[
        float | None, must_be("the days until it expires, more than 0", exclusiveMinimum=0)
    ] = None
    requests_per_minute: Limit = 0
    requests_per_day: Limit = 0
    tokens_per_minute: Limit = 0
    tokens_per_day: Limit = 0
    store: Annotated[
        Literal["always", "never"], must_be("always or never; never: nothing of its requests is stored")
    ] = "always"
    webhook: Annotated[
        str, must_be("a connector of kind webhook with a url; it is notified when a background response ends")
    ] = ""


async def keys(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "listing API keys")
    return JsonResponse(objects.listed([objects.api_key(key) for key in await call.hf.keys(owners_of(call))]))


async def create(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "creating an API key")
    asked = await call.decoded(KeyBody)
    for tool in asked.tools:
        check_right(call.caller.tools, tool, f"creating a key with the tool {tool!r:.40}")
    key, token = await call.hf.create_key(
        call.owner if asked.owner is None else asked.owner,
        asked.scope,
        asked.tools,
        keeps=asked.store == "always",
        name=asked.name,
        expires_days=asked.expires_days,
        limits=RateLimits(
            asked.requests_per_minute, asked.requests_per_day, asked.tokens_per_minute, asked.tokens_per_day
        ),
        webhook=asked.webhook,
    )
    return JsonResponse(objects.new_api_key(key, token))


async def revoke(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "revoking an API key")
    key_id = call.path("id")
    await call.hf.revoke_key(key_id, owners_of(call))
    found = await call.hf.find_key(key_id)
    if found is None:
        raise NotFound("API key", key_id)
    return JsonResponse(objects.api_key(found[0]))


ROUTES = (
    Route(
        "GET",
        "/api/keys",
        keys,
        "List API keys in the order of their creation, revoked ones too; for admins.",
        parameters=(OWNERS,),
        answer=ListObject[ApiKeyObject],
    ),
    Route(
        "POST",
        "/api/keys",
        create,
        "Create an API key; for admins. The answer is the only one that shows it.",
        body=KeyBody,
        body_optional=True,
        answer=NewApiKeyObject,
    ),
    Route(
        "POST",
        "/api/keys/{id}/revoke",
        revoke,
        "Revoke an API key permanently; for admins. Idempotent.",
        parameters=(OWNERS,),
        answer=ApiKeyObject,
    ),
)
