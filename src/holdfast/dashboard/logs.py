"""`/logs`: the newest log lines of this server process, filtered and live; for admins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from ..server.access_log import LOGGER
from ..server.admin.logs import LEVELS
from ..server.log_buffer import MOST_LINES
from ..server.response_writer import HttpResponse
from .pages import html
from .request import PageRequest

MOST_SHOWN = 200
KINDS = {
    "": "log and API requests",
    "all": "everything, also pages",
    "program": "only the log",
    "requests": "only API requests",
    "failed": "only failed requests",
}
"""Requests for pages are many while a page is open: they are shown if asked for, or failed."""
API = ("/v1", "/api")
_NAMED = re.compile(r"\(request (\S+)\)")


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A log line, with the facts of a request if it is one."""

    line: Mapping[str, Any]
    request: Mapping[str, str] | None

    @property
    def has_failed(self) -> bool:
        return self.request is not None and int(self.request["status"]) >= 400

    @property
    def is_for_a_page(self) -> bool:
        return self.request is not None and not self.request["route"].startswith(API)

    @property
    def request_id(self) -> str | None:
        """The id of the request that the line is about, to find its other lines by."""
        if self.request is not None:
            return self.request["request_id"]
        named = _NAMED.search(self.line["message"])
        return named[1] if named else None

    @property
    def is_of(self) -> str:
        """What tells lines of the same page apart, and stays when newer ones come."""
        return f"{self.line['at']}-{crc32(self.line['message'].encode()):08x}"

    def belongs_to(self, kind: str) -> bool:
        """Whether this kind of lines, one of KINDS, contains it."""
        match kind:
            case "all":
                return True
            case "program":
                return self.request is None
            case "requests":
                return self.request is not None and not self.is_for_a_page
            case "failed":
                return self.has_failed
        return self.has_failed or not self.is_for_a_page


def shown_line(line: Mapping[str, Any]) -> ShownLine:
    return ShownLine(line, _request_in(line["message"]) if line["logger"] == LOGGER else None)


def _request_in(message: str) -> Mapping[str, str] | None:
    """The facts of a request, from its line in the access log; None: it is another line. Only an owner's name
    may contain spaces, so it is what the words before and after it leave."""
    before, _, rest = message.partition(" owner=")
    words, after = before.split(" "), rest.rsplit(" ", 6)
    if len(words) != 3 or len(after) != 7 or (after[3], after[5]) != ("ms", "B") or not words[2].isdecimal():
        return None
    owner, key, ms, _, size, _, request_id = after
    names = ("method", "route", "status", "owner", "key_id", "ms", "bytes", "request_id")
    return dict(zip(names, (*words, owner, key.removeprefix("key="), ms, size, request_id), strict=True))


async def logs(visit: PageRequest) -> HttpResponse:
    """Lines of at least `level` and of this `kind` that contain `q`."""
    level = visit.query("level") if visit.query("level") in LEVELS else "info"
    kind = visit.query("kind") if visit.query("kind") in KINDS else "all" if visit.query("q") else ""
    asked = {"level": level, "requests": "1", "q": visit.query("q"), "limit": MOST_LINES, "owner": None}
    page = await visit.ask("GET", "/api/logs", query=asked)
    lines = [each for each in map(shown_line, page["data"]) if each.belongs_to(kind)]
    return html(
        visit,
        "logs.html",
        lines=lines[:MOST_SHOWN],
        number=len(lines),
        most=MOST_LINES,
        asked={"level": level, "kind": kind, "q": visit.query("q")},
        levels=LEVELS,
        kinds=KINDS,
        access=visit.services.access_log.is_on,
        node=visit.hf.node_id,
    )
