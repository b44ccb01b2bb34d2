"""`/processes`: background processes of sessions, and their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..domain.processes import ProcessState
from ..errors import Conflict, HoldfastError, NotFound
from ..os_support import identity, resources_of
from ..server.response_writer import HttpResponse
from .pages import html, short
from .request import PageRequest
from .usage import owners_for

PAGE = 50
TAIL = 500
MOST_HEARD = 20
LONGEST_LINE = 200
GROUPS = ("running", "ended", "all")
ENDS = (ProcessState.EXITED, ProcessState.STOPPED, ProcessState.LOST)
STATES = (*GROUPS, *(each.value for each in ENDS))
"""What the list can be limited to; the single states are those of processes that have ended."""


async def processes(visit: PageRequest) -> HttpResponse:
    """Running ones, or those in another `state`; of a `session`; with `q`, of those on the page the ones
    whose command contains it."""
    words, session = visit.query("q"), visit.query("session")
    state = visit.query("state") if visit.query("state") in STATES else "running"
    running = {"running": "1", "all": ""}.get(state, "0")
    asked = {"running": running, "session": session, "after": visit.query("after"), "limit": PAGE}
    unknown = ""
    try:
        page = await visit.ask("GET", "/api/processes", query=asked)
    except NotFound as error:  # the session of a link that was kept, which is deleted now
        page, unknown = {"data": [], "has_more": False, "last_id": None}, str(error)
    found = [
        each
        for each in page["data"]
        if words.lower() in each["command"].lower() and (state in GROUPS or each["state"] == state)
    ]
    lines, used, owners, names = await asyncio.gather(
        _last_lines(visit, found), _used(found), owners_for(visit), _session_names(visit, page["data"])
    )
    return html(
        visit,
        "processes.html",
        page=page,
        found=found,
        state=state,
        states=STATES,
        session=session,
        names=names,
        sessions={each["session_id"]: names[each["session_id"]] for each in page["data"]},
        unknown=unknown,
        q=words,
        lines=lines,
        used=used,
        owners=owners,
    )


async def _session_names(visit: PageRequest, found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What people call the sessions of these processes, by session id."""

    async def name(session_id: str, owner: str) -> str:
        try:
            session = await visit.hf.find_session(owner, session_id)
        except NotFound:  # deleted; its processes are still to be stopped
            return short(session_id)
        return session.key or session.title or short(session_id)

    owners = {each["session_id"]: each.get("owner") or visit.owner or visit.caller.owner for each in found}
    names = await asyncio.gather(*(name(*each) for each in owners.items()))
    return dict(zip(owners, names, strict=True))


async def _last_lines(visit: PageRequest, found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The last line of output of the first MOST_HEARD processes, by id; empty if none can be read here."""

    async def last(each: Mapping[str, Any]) -> str:
        asked = {"tail": 1, "owner": each.get("owner") or visit.owner_named}
        try:
            log = await visit.ask("GET", "/api/processes/{id}/log", names={"id": each["id"]}, query=asked)
        except HoldfastError:  # it is only watched, or runs on another host, or has no log any more
            return ""
        return str(log["text"]).strip()[-LONGEST_LINE:]

    heard = [each for each in found if not each["watched"]][:MOST_HEARD]
    return {
        each["id"]: line for each, line in zip(heard, await asyncio.gather(*map(last, heard)), strict=True)
    }


async def _used(found: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, int]]:
    """CPU seconds and memory of the processes that run on this host, by id."""
    here = identity().host
    pids = {
        each["id"]: each["pid"]
        for each in found
        if each["host"] == here and each["pid"] and not each["ended_at"]
    }
    if not pids:
        return {}
    used = await asyncio.to_thread(resources_of, set(pids.values()))
    return {id_: used[pid] for id_, pid in pids.items() if pid in used}


async def process(visit: PageRequest) -> HttpResponse:
    names = {"id": visit.path("id")}
    found = await visit.ask("GET", "/api/processes/{id}", names=names)
    unheard = ""
    log = None
    try:
        log = await visit.ask("GET", "/api/processes/{id}/log", names=names, query={"tail": TAIL})
    except Conflict as error:  # it is only watched, or runs on another host
        unheard = str(error)
    used = (await _used([found])).get(found["id"])
    return html(visit, "process.html", process=found, log=log, unheard=unheard, used=used)


async def process_log(visit: PageRequest) -> HttpResponse:
    """The process log as the API's object, for the script that shows it live."""
    asked = {name: visit.query(name) for name in ("after", "tail")}
    return await visit.answer("GET", "/api/processes/{id}/log", names={"id": visit.path("id")}, query=asked)
