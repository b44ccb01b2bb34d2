"""`/`: live sessions, turns per minute, sessions that wait for a reset, flushes, usage and nodes."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from ..app import Holdfast
from ..domain.figures import OwnerUsage
from ..server.http import HttpResponse
from .charts import chart_of
from .memories import counted
from .pages import html
from .request import PageRequest

MINUTE = timedelta(minutes=1)
MINUTES = 60
MOST_ALIVE = 25
MOST_EXPLAINED = 6
MOST_OWNERS = 10
USAGE_SECONDS = 30.0
MOST_REMEMBERED = 1_000


async def overview(visit: PageRequest) -> HttpResponse:
    hf, owner = visit.hf, visit.owner
    activity, pulse, waiting, leaked, beyond, flushes, usage = await asyncio.gather(
        visit.ask("GET", "/api/activity"),
        hf.pulse(owner, MINUTE, MINUTES),
        hf.resets_waiting(owner),
        hf.leaked_sessions(owner),
        _for_admins(visit),
        _flushes(visit),
        _usage(visit),
    )
    explained = await asyncio.gather(
        *(
            visit.ask(
                "GET",
                "/api/sessions/{id}/why",
                names={"id": session.id},
                query={"owner": session.owner if visit.owner_named else None},
            )
            for session in waiting[:MOST_EXPLAINED]
        )
    )
    return html(
        visit,
        "overview.html",
        alive=activity["data"][:MOST_ALIVE],
        more_alive=len(activity["data"]) - MOST_ALIVE,
        ended=activity["ended"][:MOST_ALIVE],
        running_turns=activity["running_turns"],
        processes=sum(len(each["processes"]) for each in activity["data"]),
        chart=chart_of(pulse),
        waiting=list(zip(waiting, explained, strict=False)),
        waits=len(waiting),
        deferred=sum(each["decision"] == "deferred" for each in explained)
        if len(waiting) <= MOST_EXPLAINED
        else 0,
        leaked=leaked,
        usage=usage,
        **beyond,
        **flushes,
    )


async def _flushes(visit: PageRequest) -> dict[str, Any]:
    """The numbers of pending and dead flushes; None if there is no route for flushes."""
    if not visit.has("GET", "/api/flushes"):
        return {"pending": None, "dead": None}
    pending, dead = await asyncio.gather(counted(visit, "pending"), counted(visit, "dead"))
    return {"pending": pending, "dead": dead}


_usages: WeakKeyDictionary[Holdfast, dict[str | None, tuple[float, list[OwnerUsage]]]] = WeakKeyDictionary()


async def _usage(visit: PageRequest) -> list[OwnerUsage]:
    """Storage used per owner: for admins all owners, for others their own. Cached for USAGE_SECONDS, because
    the page is rendered again at every event, and this reads every conversation."""
    owner = None if visit.is_admin and not visit.owner_named else visit.owner
    known = _usages.setdefault(visit.hf, {})
    now = time.monotonic()
    if owner not in known or now - known[owner][0] > USAGE_SECONDS:
        if len(known) >= MOST_REMEMBERED:
            known.clear()
        known[owner] = now, await visit.hf.usage(owner, limit=MOST_OWNERS)
    return known[owner][1]


async def _for_admins(visit: PageRequest) -> dict[str, Any]:
    """For admins: figures of the whole store, and its nodes."""
    if not visit.is_admin:
        return {"figures": None, "nodes": []}
    figures, nodes = await asyncio.gather(visit.hf.figures(), visit.ask("GET", "/api/nodes"))
    return {"figures": figures, "nodes": nodes["data"]}
