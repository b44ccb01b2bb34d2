"""`/logs`: the newest log lines of this server process; for admins."""

from __future__ import annotations

from ..server.admin.logs import LEVELS
from ..server.http import HttpResponse
from .pages import html
from .request import PageRequest


async def logs(visit: PageRequest) -> HttpResponse:
    """Lines of at least `level`; with `requests=1` those of the access log too."""
    level = visit.query("level") if visit.query("level") in LEVELS else "info"
    requests = visit.query("requests") == "1"
    asked = {"level": level, "requests": "1" if requests else "0", "owner": None}
    page = await visit.ask("GET", "/api/logs", query=asked)
    return html(
        visit,
        "logs.html",
        page=page,
        level=level,
        levels=LEVELS,
        requests=requests,
        access=visit.services.access_log.is_on,
        node=visit.hf.node_id,
    )
