"""`/sessions`, `/search`, `/notices`, `/nodes`, `/settings`: list pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..domain.api_keys import check_admin
from ..domain.headings import NO_SUMS, ConversationSums
from ..domain.pages import (
    MOST_COUNTED,
    MOST_SORTED,
    FoundPage,
    SearchFilter,
    SessionFilter,
    SessionSort,
)
from ..domain.sessions import SessionState
from ..errors import BadInput
from ..server import objects
from ..server.owners import note_reading, owner_of, owners_of, shows_owner
from ..server.response_writer import HttpResponse
from .pages import go, html
from .request import PageRequest
from .usage import owners_for, statistics

PAGE = 50
MOST_MARKED = 20
EVERYBODY = "*"
PERIODS = {
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "365d": timedelta(days=365),
}
NOTICE_STATES = ("undelivered", "delivered", "all")
ROLES = ("user", "assistant", "tool", "system")


async def sessions(visit: PageRequest) -> HttpResponse:
    """One row for each conversation, with its newest session; with `all=1` one for each session. The rows
    that a filter leaves are counted, and sorted, among the MOST_SORTED most recently active."""
    asked = {name: visit.query(name) for name in ("state", "source", "key", "q", "after")}
    every = visit.query("all") == "1"
    sort = SessionSort(visit.query("sort")) if visit.query("sort") in set(SessionSort) else None
    filters = {name: asked[name] for name in ("q", "state", "source", "key")}
    rows = _page if not any(filters.values()) and sort is None else _sorted_page
    page, counts, owners = await asyncio.gather(
        rows(visit, asked, every, sort), statistics(visit), owners_for(visit)
    )
    sources = {*counts.sources, *(each["source"] for each in page.rows), asked["source"]} - {""}
    return html(
        visit,
        "sessions.html",
        page=page,
        asked=asked,
        filters=filters,
        filtered=any(filters.values()),
        kept={**filters, "all": "1" if every else None},
        every=every,
        sort=sort.value if sort else "",
        states=list(SessionState),
        sources=sorted(sources),
        counts=counts,
        owners=owners,
        most_sorted=MOST_SORTED,
    )


@dataclass(frozen=True, slots=True)
class ListPage:
    """Rows of a list, as objects of the API, and the way to the pages beside it."""

    rows: Sequence[Mapping[str, Any]]
    earlier: Mapping[str, Any] | None = None
    """Query parameters of the page before this one; None: it is the first."""
    later: Mapping[str, Any] | None = None
    matching: int | None = None
    """How many rows all pages have; None: they were not counted."""
    more: bool = False
    """True: there are more than were counted."""
    first: int = 1
    """The number of the first row."""


async def _page(visit: PageRequest, asked: Mapping[str, str], every: bool, _: object) -> ListPage:
    """A page of all rows, the most recently active first, as the API lists them."""
    query = {"after": asked["after"], "limit": PAGE, "newest": "0" if every else "1"}
    page = await visit.ask("GET", "/api/sessions", query=query)
    rows = page["data"]
    if not every:
        sums = await visit.hf.sums_of_conversations([each["conversation_id"] for each in rows])
        rows = [_with_sums(each, sums.get(each["conversation_id"], NO_SUMS)) for each in rows]
    return ListPage(
        rows,
        earlier={} if asked["after"] else None,
        later={"after": page["last_id"]} if page["has_more"] else None,
    )


async def _sorted_page(
    visit: PageRequest, asked: Mapping[str, str], every: bool, sort: SessionSort | None
) -> ListPage:
    """A page of the rows that the filters leave, in this order."""
    inner = visit.inner("GET")
    if asked["state"] and asked["state"] not in set(SessionState):
        raise BadInput(f"state must be one of {', '.join(SessionState)}, not {asked['state']!r:.40}")
    wanted = SessionFilter(
        owners_of(inner),
        source=asked["source"] or None,
        key=asked["key"] or None,
        title=asked["q"] or None,
        newest=not every,
    )
    state = SessionState(asked["state"]) if asked["state"] else None
    skip = visit.call.query_number("skip", 0)
    found = await visit.hf.session_rows(
        wanted, state, sort=sort, reader=visit.caller.owner, skip=skip, limit=PAGE
    )
    shown = []
    for row in found.rows:
        value = objects.session(row.session, row.state, with_owner=shows_owner(inner), heading=row.heading)
        fields = msgspec.to_builtins(value)
        shown.append(fields if every else _with_sums(fields, row.sums))
    kept = {"sort": sort.value if sort else None}
    return ListPage(
        shown,
        earlier={**kept, "skip": max(0, skip - PAGE) or None} if skip else None,
        later={**kept, "skip": skip + PAGE} if found.number > skip + PAGE else None,
        matching=found.number,
        more=found.has_more,
        first=skip + 1,
    )


def _with_sums(session: Mapping[str, Any], sums: ConversationSums) -> Mapping[str, Any]:
    """A session's object with the figures of its whole conversation."""
    usage = {"input_tokens": sums.input_tokens, "output_tokens": sums.output_tokens}
    return {
        **session,
        "message_count": sums.messages,
        "usage": usage,
        "sessions": sums.sessions,
        "model": sums.model or session["model"],
    }


# --- search --------------------------------------------------------------------------------------------


async def search(visit: PageRequest) -> HttpResponse:
    asked = {name: visit.query(name) for name in ("q", "role", "source", "period")}
    if visit.owner_named == EVERYBODY:  # messages are read one owner at a time
        return go(visit.link("/search", **{**asked, "owner": None}))
    skip = min(visit.call.query_number("skip", 0), MOST_COUNTED)
    page = await _found(visit, asked, skip) if asked["q"] else FoundPage((), 0, False)
    return html(
        visit,
        "search.html",
        asked=asked,
        found=[(each, marked(whole_words(each.snippet), asked["q"])) for each in page.hits],
        names=await first_words(visit, [each.message.conversation_id for each in page.hits]),
        number=page.number,
        has_more=page.has_more,
        filtered=any(asked[name] for name in ("role", "source", "period")),
        first=skip + 1,
        earlier=max(0, skip - PAGE) if skip else None,
        later=skip + PAGE if page.number > skip + PAGE else None,
        roles=ROLES,
        periods=PERIODS,
        sources=sorted((await statistics(visit)).sources),
    )


async def _found(visit: PageRequest, asked: Mapping[str, str], skip: int) -> FoundPage:
    inner = visit.inner("GET")
    owner = owner_of(inner)
    period = PERIODS.get(asked["period"])
    wanted = SearchFilter(
        role=asked["role"] or None,
        source=asked["source"] or None,
        since=visit.now - period if period else None,
    )
    page = await visit.hf.search_page(owner, asked["q"], wanted, skip=skip, limit=PAGE)
    await note_reading(inner, owner, None)
    return page


async def first_words(visit: PageRequest, conversation_ids: Sequence[str]) -> Mapping[str, str]:
    """What lists call conversations without a title, by id; those without any words are left out."""
    found = await visit.hf.headings(sorted(set(conversation_ids)))
    return {id_: heading.first_words for id_, heading in found.items() if heading.first_words}


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
    unnamed = (
        [] if visit.owner_named else [each["conversation_id"] for each in page["data"] if not each["key"]]
    )
    return html(
        visit,
        "notices.html",
        names=await first_words(visit, unnamed) if unnamed else {},
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
    for each in effective(visit.services.settings, visit.services.model):
        if every or not each["origin"].startswith("default"):
            section, _, name = each["name"].rpartition(".")
            found = {**each, "name": name, "shown": shown_value(each["value"])}
            sections.setdefault(section, []).append(found)
    return html(visit, "settings.html", sections=sections, every=every)
