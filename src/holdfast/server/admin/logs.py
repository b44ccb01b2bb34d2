"""`GET /api/logs`: the newest log lines of this server process; admin keys."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from ...domain.api_keys import check_admin
from .. import objects
from ..http import RequestContext
from ..log_buffer import MOST_LINES
from ..openai.parameters import BadParameter
from ..response_writer import JsonResponse
from ..routes import Parameter, Route
from ..schemas import ListObject, LogLineObject
from .health import FLAG, flag

LEVEL = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[str, ...] = get_args(LEVEL)
USUAL_LINES = 200


async def logs(call: RequestContext) -> JsonResponse:
    check_admin(call.caller, "/api/logs")
    services, level = call.services, call.query("level") or "info"
    if level not in LEVELS:
        raise BadParameter("level", f"must be one of {', '.join(LEVELS)}, not {level!r:.40}")
    limit = call.query_number("limit", USUAL_LINES, 1, MOST_LINES)
    requests = services.access_log.newest() if flag(call, "requests") and level in ("debug", "info") else ()
    found = services.log_buffer.newest(level, requests, containing=call.query("q") or "", limit=limit)
    return JsonResponse(objects.listed([objects.log_line(each) for each in found]))


ROUTES = (
    Route(
        "GET",
        "/api/logs",
        logs,
        "List the newest log lines of this server process, newest first; admin keys.",
        parameters=(
            Parameter("level", "Only lines of at least this level.", LEVEL),
            Parameter("requests", "Also the lines of the access log.", FLAG),
            Parameter("q", "Only lines that contain this text, such as a request id."),
            Parameter("limit", "How many at most.", Annotated[int, Meta(ge=1, le=MOST_LINES)]),
        ),
        answer=ListObject[LogLineObject],
    ),
)
