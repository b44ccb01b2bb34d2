"""Log lines on stderr, as text for people or as one JSON object per line for machines.

No line holds message text, a command line or a secret: only ids, numbers and reasons are logged. One record
is one line of printable text. Control characters and line breaks in foreign text (keys, names, upstream
errors) are escaped, so they can neither forge a line nor control a terminal. Only a traceback has several
lines, each escaped by itself. Imported when a command logs: most do not.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from ..domain.ids import printable
from ..os_support import log_time


class TextLines(logging.Formatter):
    """`time LEVEL logger: message`, and the traceback if there is one, in printable characters. The time is
    this machine's, with its offset from UTC."""

    def format(self, record: logging.LogRecord) -> str:
        line = printable(f"{record.levelname} {record.name}: {record.getMessage()}")
        line = f"{log_time(record.created)} {line}"
        if record.exc_info:
            trace = self.formatException(record.exc_info).split("\n")
            line = "\n".join((line, *map(printable, trace)))
        return line


class JSONLines(logging.Formatter):
    """`{"at", "level", "logger", "message"}`, and `"exception"` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False)
        return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def start_logging(level: str, style: str) -> None:
    """Log records of at least `level` to stderr, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines() if style == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for chatty in ("uvicorn", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
