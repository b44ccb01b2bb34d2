"""`/connectors`: connectors, who may write through them, and messages to platforms.

Connectors and pairings are for admins. An admin who names no owner sees the messages of all, without their
text if they are another's.
"""

from __future__ import annotations

from typing import Any

from ..server.response_writer import HttpResponse
from .pages import go, html
from .request import PageRequest

PAGE = 50
STATES = ("dead", "pending", "sent")
NOTHING: dict[str, Any] = {"data": []}


async def connectors(visit: PageRequest) -> HttpResponse:
    state = visit.query("state")
    owner = visit.owner_named or ("*" if visit.is_admin else None)
    asked = {"state": state, "after": visit.query("after"), "limit": PAGE, "owner": owner}
    return html(
        visit,
        "connectors.html",
        connectors=await visit.ask("GET", "/api/connectors") if visit.is_admin else NOTHING,
        pairings=await visit.ask("GET", "/api/pairings") if visit.is_admin else NOTHING,
        deliveries=await visit.ask("GET", "/api/deliveries", query=asked),
        state=state,
        states=STATES,
    )


async def approve(visit: PageRequest) -> HttpResponse:
    """Let the person with this code write."""
    given = {name: visit.form.get(name, "").strip() for name in ("code", "owner", "key")}
    await visit.ask("POST", "/api/pairings", body={name: value for name, value in given.items() if value})
    return go(visit.link("/connectors"))


async def revoke(visit: PageRequest) -> HttpResponse:
    """Refuse a person from now on."""
    await visit.ask("POST", "/api/pairings/{id}/revoke", names={"id": visit.path("id")})
    return go(visit.link("/connectors", owner=visit.form.get("owner")))


async def retry(visit: PageRequest) -> HttpResponse:
    """Send a dead letter again."""
    await visit.ask("POST", "/api/deliveries/{id}/retry", names={"id": visit.path("id")})
    return go(visit.link("/connectors", owner=visit.form.get("owner")))
