"""`/`: what is running, turns and latency over time, owners, what waits and what has failed, nodes."""

from __future__ import annotations

import asyncio
from typing import Any

from ..server.response_writer import HttpResponse
from .conversation import model_health
from .memories import counted
from .pages import html
from .request import PageRequest
from .usage import RANGES, owners_for, range_figures, range_of, statistics, stored

MOST_ALIVE = 25
MOST_LISTED = 100
MOST_EXPLAINED = 6


async def overview(visit: PageRequest) -> HttpResponse:
    hf, owner = visit.hf, visit.owner
    activity, figures, waiting, leaked, beyond, flushes, kept, owners, model = await asyncio.gather(
        visit.ask("GET", "/api/activity"),
        range_figures(visit, owner, range_of(visit)),
        hf.resets_waiting(owner),
        hf.leaked_sessions(owner),
        _for_admins(visit),
        _flushes(visit),
        stored(visit),
        owners_for(visit),
        model_health(visit),
    )
    team = await range_figures(visit, None, range_of(visit)) if owners else figures
    # What is open and does nothing is on the page of sessions.
    busy = [each for each in activity["data"] if each["doing"] or each["processes"]]
    open_sessions = len(activity["data"])
    if open_sessions >= MOST_LISTED:  # idle ones are listed up to a number
        open_sessions = max(open_sessions, (await statistics(visit)).open)
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
        alive=busy[:MOST_ALIVE],
        more_alive=len(busy) - MOST_ALIVE,
        idle=open_sessions - len(busy),
        ended=activity["ended"][:MOST_ALIVE],
        running_turns=activity["running_turns"],
        figures=figures,
        ranges=RANGES,
        model=model,
        waiting=list(zip(waiting, explained, strict=False)),
        waits=len(waiting),
        deferred=sum(each["decision"] == "deferred" for each in explained)
        if len(waiting) <= MOST_EXPLAINED
        else 0,
        leaked=leaked,
        kept=kept,
        owners=owners,
        by_owner=dict(team.by_owner),
        **beyond,
        **flushes,
    )


async def _flushes(visit: PageRequest) -> dict[str, Any]:
    """The numbers of pending and dead flushes; None if there is no route for flushes."""
    if not visit.has("GET", "/api/flushes"):
        return {"pending": None, "dead": None}
    pending, dead = await asyncio.gather(counted(visit, "pending"), counted(visit, "dead"))
    return {"pending": pending, "dead": dead}


async def _for_admins(visit: PageRequest) -> dict[str, Any]:
    """For admins: figures of the whole store, its nodes and its connectors."""
    if not visit.is_admin:
        return {"store": None, "nodes": [], "connectors": []}
    store, nodes, connectors = await asyncio.gather(
        visit.hf.figures(), visit.ask("GET", "/api/nodes"), visit.ask("GET", "/api/connectors")
    )
    return {"store": store, "nodes": nodes["data"], "connectors": connectors["data"]}
