"""`/processes`: background processes of sessions, and their logs."""

from __future__ import annotations

from ..errors import Conflict
from ..server.http import HttpResponse
from .pages import html
from .request import PageRequest

PAGE = 50
TAIL = 500


async def processes(visit: PageRequest) -> HttpResponse:
    running = visit.query("all") != "1"
    asked = {"running": "1" if running else "", "after": visit.query("after"), "limit": PAGE}
    page = await visit.ask("GET", "/api/processes", query=asked)
    return html(visit, "processes.html", page=page, running=running)


async def process(visit: PageRequest) -> HttpResponse:
    names = {"id": visit.path("id")}
    found = await visit.ask("GET", "/api/processes/{id}", names=names)
    unheard = ""
    log = None
    try:
        log = await visit.ask("GET", "/api/processes/{id}/log", names=names, query={"tail": TAIL})
    except Conflict as error:  # it is only watched, or runs on another host
        unheard = str(error)
    return html(visit, "process.html", process=found, log=log, unheard=unheard)


async def process_log(visit: PageRequest) -> HttpResponse:
    """The process log as the API's object, for the script that shows it live."""
    asked = {name: visit.query(name) for name in ("after", "tail")}
    return await visit.answer("GET", "/api/processes/{id}/log", names={"id": visit.path("id")}, query=asked)
