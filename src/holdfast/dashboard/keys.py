"""`/keys`: API keys, for admins. A new key is shown once, on the page that answers its form."""

from __future__ import annotations

import math
from typing import Any

from ..domain.api_keys import Scope, check_admin
from ..errors import BadInput, NotFound
from ..server.response_writer import HttpResponse
from .actions import Act
from .pages import go, html
from .request import PageRequest

LIMITS = (
    ("requests_per_minute", "Requests a minute"),
    ("requests_per_day", "Requests a day"),
    ("tokens_per_minute", "Tokens a minute"),
    ("tokens_per_day", "Tokens a day"),
)

REVOKE = Act(
    "revoke",
    ("POST", "/api/keys/{id}/revoke"),
    "Revoke this API key",
    "Programs that use it are refused within two seconds, and its logins end. This cannot be undone.",
    "Revoke it",
    danger=True,
)


async def keys(visit: PageRequest) -> HttpResponse:
    return await _page(visit)


async def create(visit: PageRequest) -> HttpResponse:
    """Create a key; the answer shows its token, which is stored nowhere."""
    check_admin(visit.caller, "creating an API key")
    body: dict[str, Any] = {"scope": visit.form.get("scope") or Scope.CHAT.value}
    for name in ("owner", "name"):
        if given := visit.form.get(name, "").strip():
            body[name] = given
    if days := visit.form.get("expires_days", "").strip():
        body["expires_days"] = _number(days, "the days until it expires")
    for name, label in LIMITS:
        if given := visit.form.get(name, "").strip():
            body[name] = int(_number(given, label.lower()))
    return await _page(visit, await visit.ask("POST", "/api/keys", body=body))


async def confirm_revoking(visit: PageRequest) -> HttpResponse:
    listed = (await visit.ask("GET", "/api/keys"))["data"]
    found = next((each for each in listed if each["id"] == visit.path("id")), None)
    if found is None:
        raise NotFound("API key", visit.path("id"))
    about = f"{found['name'] or found['id']}, {found['scope']} key of {found['owner']}"
    return html(visit, "confirm.html", act=REVOKE, about=about, back=visit.link("/keys"), given={})


async def revoke(visit: PageRequest) -> HttpResponse:
    await visit.ask("POST", "/api/keys/{id}/revoke", names={"id": visit.path("id")})
    return go(visit.link("/keys"))


async def _page(visit: PageRequest, new: Any = None) -> HttpResponse:
    page = await visit.ask("GET", "/api/keys")
    page["data"].sort(key=lambda each: (each["revoked_at"] is not None, each["created_at"]))
    return html(
        visit,
        "keys.html",
        page=page,
        new=new,
        scopes=[scope.value for scope in Scope],
        limits=LIMITS,
        own=visit.caller.key_id,
    )


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{what} must be a number, not {text!r:.40}")
    return number
