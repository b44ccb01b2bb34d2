"""`/sessions`, `/search`, `/notices`, `/nodes`: list pages."""

from __future__ import annotations

from ..domain.sessions import SessionState
from ..server.http import HttpResponse
from .pages import go, html
from .request import PageRequest

PAGE = 50
EVERYBODY = "*"


async def sessions(visit: PageRequest) -> HttpResponse:
    asked = {name: visit.query(name) for name in ("state", "source", "key", "q", "after")}
    page = await visit.ask("GET", "/api/sessions", query={**asked, "limit": PAGE})
    return html(visit, "sessions.html", page=page, asked=asked, states=list(SessionState))


async def search(visit: PageRequest) -> HttpResponse:
    words = visit.query("q")
    if visit.owner_named == EVERYBODY:  # messages are read one owner at a time
        return go(visit.link("/search", q=words, owner=None))
    page = await visit.ask("GET", "/api/search", query={"q": words, "limit": PAGE}) if words else None
    return html(visit, "search.html", page=page, q=words)


async def notices(visit: PageRequest) -> HttpResponse:
    waiting = visit.query("all") != "1"
    asked = {"undelivered": "1" if waiting else "", "after": visit.query("after"), "limit": PAGE}
    page = await visit.ask("GET", "/api/notices", query=asked)
    return html(visit, "notices.html", page=page, waiting=waiting)


async def delivered(visit: PageRequest) -> HttpResponse:
    await visit.ask("POST", "/api/notices/{id}/delivered", names={"id": visit.path("id")})
    return go(visit.link("/notices"))


async def nodes(visit: PageRequest) -> HttpResponse:
    gone = visit.query("gone") == "1"
    page = await visit.ask("GET", "/api/nodes", query={"gone": "1" if gone else "0", "owner": None})
    return html(visit, "nodes.html", page=page, gone=gone)
