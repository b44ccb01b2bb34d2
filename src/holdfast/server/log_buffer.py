"""The newest log lines of this process, in memory, for `/api/logs` and the page that shows them.

Lines are those of stderr: no message text, no command line, no secret. They are lost when the process ends;
keep stderr to have more. Lines of the access log have a buffer of their own, so that many requests do not
push a warning out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from typing import TYPE_CHECKING

from ..domain.ids import printable

if TYPE_CHECKING:
    from .access_log import AccessLine

MOST_LINES = 1_000
LONGEST_LINE = 2_000
LONGEST_TRACE = 8_000

_formatter = logging.Formatter()


@dataclass(frozen=True, slots=True)
class LogLine:
    at: datetime
    level: str
    """debug, info, warning, error or critical."""
    logger: str
    message: str
    exception: str | None = None
    """The traceback, if there is one."""

    @property
    def text(self) -> str:
        """All of it that can be searched."""
        return f"{self.level} {self.logger}: {self.message}\n{self.exception or ''}"


class LogBuffer(logging.Handler):
    """Keeps the newest MOST_LINES records; thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(_line_of(record))
        except Exception:  # a record that cannot be formatted must not fail what was logged
            self.handleError(record)

    def newest(
        self, level: str, requests: Iterable[AccessLine] = (), *, containing: str = "", limit: int = 200
    ) -> list[LogLine]:
        """The newest lines of at least this level that contain this text, with those of `requests`, newest
        first. Upper and lower case are the same."""
        least, wanted = logging.getLevelNamesMapping()[level.upper()], containing.lower()
        lines = [line for line in list(self._lines) if _number(line) >= least]
        both = merge(lines, [each.line() for each in requests], key=lambda line: line.at)
        return [line for line in both if not wanted or wanted in line.text.lower()][-limit:][::-1]


def _line_of(record: logging.LogRecord) -> LogLine:
    exception = None
    if record.exc_info:
        trace = _formatter.formatException(record.exc_info)[-LONGEST_TRACE:]
        exception = "\n".join(map(printable, trace.split("\n")))
    return LogLine(
        datetime.fromtimestamp(record.created, UTC),
        record.levelname.lower(),
        record.name,
        printable(record.getMessage())[:LONGEST_LINE],
        exception,
    )


def _number(line: LogLine) -> int:
    return logging.getLevelNamesMapping().get(line.level.upper(), logging.INFO)
