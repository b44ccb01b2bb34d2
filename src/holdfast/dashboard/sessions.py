"""`/sessions`, `/search`, `/notices`, `/nodes`, `/settings`: list pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from ..domain.api_keys import check_admin
from ..domain.pages import Found
from ..domain.sessions import SessionState
from ..server.http import HttpResponse
from ..server.owners import note_reading, owner_of
from .pages import go, html
from .request import PageRequest
from .usage import owners_for, statistics

PAGE = 50
MOST_FOUND = 300
"""How many of the best hits of a search are filtered and counted."""
MOST_MARKED = 20
EVERYBODY = "*"
SORTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "name": lambda each: (each["title"] or each["key"] or each["id"]).lower(),
    "messages": lambda each: -each["message_count"],
    "tokens": lambda each: -(each["usage"]["input_tokens"] + each["usage"]["output_tokens"]),
}
"""How the rows of a page may be sorted; otherwise the most recently active come first."""
PERIODS = {
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "365d": timedelta(days=365),
}
NOTICE_STATES = ("undelivered", "delivered", "all")
ROLES = ("user", "assistant", "tool", "system")


async def sessions(visit: PageRequest) -> HttpResponse:
    """One row for each conversation: its newest session; with `all=1` one for each session."""
    asked = {name: visit.query(name) for name in ("state", "source", "key", "q", "after")}
    every, sort = visit.query("all") == "1", visit.query("sort")
    query = {**asked, "limit": PAGE, "newest": "0" if every else "1"}
    page, counts, owners = await asyncio.gather(
        visit.ask("GET", "/api/sessions", query=query), statistics(visit), owners_for(visit)
    )
    if sort in SORTS:
        last = page["last_id"]  # the next page follows the last in order of activity
        page = {**page, "data": sorted(page["data"], key=SORTS[sort]), "last_id": last}
    filters = {name: asked[name] for name in ("q", "state", "source", "key")}
    sources = {*counts.sources, *(each["source"] for each in page["data"]), asked["source"]} - {""}
    return html(
        visit,
        "sessions.html",
        page=page,
        asked=asked,
        filters=filters,
        filtered=any(filters.values()),
        kept={**filters, "all": "1" if every else None},
        every=every,
        sort=sort if sort in SORTS else "",
        states=list(SessionState),
        sources=sorted(sources),
        counts=counts,
        owners=owners,
    )


# --- search --------------------------------------------------------------------------------------------


async def search(visit: PageRequest) -> HttpResponse:
    asked = {name: visit.query(name) for name in ("q", "role", "source", "period")}
    if visit.owner_named == EVERYBODY:  # messages are read one owner at a time
        return go(visit.link("/search", **{**asked, "owner": None}))
    found = await _found(visit, asked) if asked["q"] else []
    return html(
        visit,
        "search.html",
        asked=asked,
        found=[(each, marked(whole_words(each.snippet), asked["q"])) for each in found[:PAGE]],
        number=len(found),
        most=MOST_FOUND,
        roles=ROLES,
        periods=PERIODS,
        sources=sorted((await statistics(visit)).sources),
    )


async def _found(visit: PageRequest, asked: Mapping[str, str]) -> list[Found]:
    """The best hits that the filters leave, in the order of the search."""
    inner = visit.inner("GET")
    owner = owner_of(inner)
    found = await visit.hf.search_messages(owner, asked["q"], limit=MOST_FOUND)
    await note_reading(inner, owner, None)
    if asked["role"]:
        found = [each for each in found if each.message.role == asked["role"]]
    if (period := PERIODS.get(asked["period"])) is not None:
        found = [each for each in found if each.message.created_at >= visit.now - period]
    if asked["source"]:
        ids = sorted({each.message.session_id for each in found})
        sources = {id_: (await visit.hf.find_session(owner, id_)).source for id_ in ids}
        found = [each for each in found if sources[each.message.session_id] == asked["source"]]
    return found


def whole_words(snippet: str) -> str:
    """A snippet that does not begin or end within a word: `…` marks where it was cut."""
    if snippet.startswith("…") and " " in snippet:
        snippet = f"…{snippet[snippet.index(' ') :]}"
    if snippet.endswith("…") and " " in snippet.strip("… "):
        snippet = f"{snippet[: snippet.rindex(' ')]} …"
    return snippet


def marked(text: str, words: str) -> list[tuple[str, bool]]:
    """The text in parts, each with whether it is a hit: one of these words, at the beginning of a word."""
    wanted = sorted({word.lower() for word in re.findall(r"\w+", words)}, key=len, reverse=True)[:MOST_MARKED]
    parts: list[tuple[str, bool]] = []
    for number, part in enumerate(re.split(r"(\w+)", text)):
        length = 0
        if number % 2 == 1:
            length = next((len(word) for word in wanted if part.lower().startswith(word)), 0)
        parts += [(part[:length], True), (part[length:], False)]
    return [each for each in parts if each[0]]


# --- notices, nodes, settings --------------------------------------------------------------------------


async def notices(visit: PageRequest) -> HttpResponse:
    """Undelivered ones, or with `state` delivered ones or all; the newest first."""
    state = visit.query("state") if visit.query("state") in NOTICE_STATES else "undelivered"
    asked = {"order": "desc", "after": visit.query("after"), "limit": PAGE}
    if state != "all":
        asked[state] = "1"
    page, owners = await asyncio.gather(visit.ask("GET", "/api/notices", query=asked), owners_for(visit))
    webhook = urlsplit(visit.services.settings.notify.webhook).hostname
    return html(
        visit,
        "notices.html",
        page=page,
        state=state,
        states=NOTICE_STATES,
        webhook=webhook,
        owners=owners,
    )


async def delivered(visit: PageRequest) -> HttpResponse:
    await visit.ask("POST", "/api/notices/{id}/delivered", names={"id": visit.path("id")})
    return go(visit.link("/notices", owner=visit.form.get("shown")))


async def all_delivered(visit: PageRequest) -> HttpResponse:
    """Mark every undelivered notice of the owner, or of all owners, delivered."""
    await visit.ask("POST", "/api/notices/delivered")
    return go(visit.link("/notices"))


async def nodes(visit: PageRequest) -> HttpResponse:
    gone = visit.query("gone") == "1"
    page = await visit.ask("GET", "/api/nodes", query={"gone": "1" if gone else "0", "owner": None})
    versions = {node["version"] for node in page["data"] if node["state"] == "alive" and node["version"]}
    return html(visit, "nodes.html", page=page, gone=gone, own=visit.hf.node_id, is_mixed=len(versions) > 1)


async def settings(visit: PageRequest) -> HttpResponse:
    """Those that are not defaults, with where they come from; with `all=1` every setting."""
    from ..cli.config import effective, shown_value  # typer's commands, which a server does not need

    check_admin(visit.caller, "/settings")
    every = visit.query("all") == "1"
    sections: dict[str, list[dict[str, Any]]] = {}
    for each in effective(visit.services.settings):
        if every or each["origin"] != "default":
            section, _, name = each["name"].rpartition(".")
            found = {**each, "name": name, "shown": shown_value(each["value"])}
            sections.setdefault(section, []).append(found)
    return html(visit, "settings.html", sections=sections, every=every)
