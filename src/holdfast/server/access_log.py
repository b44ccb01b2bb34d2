"""The access log: one line per request on stderr, with the rest of the log, and nothing of its content.

A line has the time, the method, the route (not the path: it holds ids), the status, the owner and the id of
the API key, milliseconds, bytes of the response and the request id. For an unknown route it has the path,
escaped as the client has sent it, at most LONGEST_PATH characters, and without its query, which may hold a
secret. Lines are written in batches, a tenth of a second after the first: a process that is killed loses
those. Probes (`/healthz`, `/readyz`, `/metrics`) are not logged.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..domain.ids import printable
from ..os_support import log_time
from .log_buffer import MOST_LINES, LogLine

if TYPE_CHECKING:
    from ..settings import LogSettings
    from .http import RequestContext

BATCH_SECONDS = 0.1
LOGGER = "holdfast.access"
log = logging.getLogger(LOGGER)
PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
UNKNOWN_ROUTE = "unknown"
LONGEST_PATH = 200
UNSHOWN = frozenset({"/logs", "/api/logs"})


class _Line(msgspec.Struct, omit_defaults=True):
    """A line in JSON; it begins as those of the other loggers do."""

    at: str
    level: str
    logger: str
    message: str
    method: str
    route: str
    status: int
    owner: str | None
    key_id: str | None
    ms: float
    bytes: int
    request_id: str
    path: str = ""


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the log's reader is gone; the requests are not


class AccessLine(NamedTuple):
    """A request, as it is kept for `/logs`."""

    at: float
    method: str
    route: str
    status: int
    owner: str | None
    key_id: str | None
    ms: float
    bytes: int
    request_id: str
    path: str = ""
    """That of the request, if its route is unknown."""

    @property
    def text(self) -> str:
        return (
            f"{self.method} {self.path or self.route} {self.status} owner={self.owner or '-'} "
            f"key={self.key_id or '-'} {self.ms:g} ms {self.bytes} B {self.request_id}"
        )

    def line(self) -> LogLine:
        return LogLine(datetime.fromtimestamp(self.at, UTC), "info", LOGGER, self.text)


def _path_of(scope: Mapping[str, Any]) -> str:
    """The path as the client has sent it, percent-encoded, without the query."""
    sent: bytes = scope.get("raw_path") or str(scope["path"]).encode()
    path = printable(sent.partition(b"?")[0].decode("latin-1"))
    return path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}…"


class AccessLog:
    """Writes lines in the format of `[log]`, and keeps the newest. Off if `log.access` is, or the level is
    above `info`."""

    def __init__(self, settings: LogSettings, write: Callable[[str], None] = _to_stderr) -> None:
        self._on = settings.access and settings.level in ("debug", "info")
        self._json = settings.format == "json"
        self._write = write
        self._lines: list[AccessLine] = []
        self._timer: asyncio.TimerHandle | None = None
        self._kept: deque[AccessLine] = deque(maxlen=MOST_LINES)

    @property
    def is_on(self) -> bool:
        return self._on and log.isEnabledFor(logging.INFO)

    def newest(self) -> list[AccessLine]:
        """The newest requests, oldest first, except those for `/logs` itself."""
        return [line for line in self._kept if line.route not in UNSHOWN]

    def note(self, call: RequestContext, route: str) -> None:
        """Log a request that has ended. Status 499: the client disconnected before its response."""
        if route in PROBES or not self.is_on:
            return
        caller = call.known_caller
        owner, key_id = (caller.owner, caller.key_id) if caller is not None else (None, None)
        if owner is not None and not owner.isprintable():
            owner = printable(owner)
        method, status = str(call.request.scope["method"]), call.status or 499
        ms = round((time.monotonic() - call.began) * 1000, 1)
        path = _path_of(call.request.scope) if route == UNKNOWN_ROUTE else ""
        line = AccessLine(
            time.time(), method, route, status, owner, key_id, ms, call.sent_bytes, call.id, path
        )
        self._kept.append(line)
        self._lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what is waiting."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if self._lines:
            lines, self._lines = self._lines, []
            self._write("".join([f"{self._formatted(line)}\n" for line in lines]))

    def _formatted(self, line: AccessLine) -> str:
        if not self._json:
            return f"{log_time(line.at)} INFO {LOGGER}: {line.text}"
        at = datetime.fromtimestamp(line.at, UTC).isoformat().replace("+00:00", "Z")
        said = f"{line.method} {line.path or line.route} {line.status}"
        return msgspec.json.encode(_Line(at, "info", LOGGER, said, *line[1:])).decode()
