"""Log lines on stderr, as text for people or as one JSON object a line for machines.

No line holds message text or a secret: what is logged names ids, numbers and reasons.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


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
        return json.dumps(line, ensure_ascii=False)


def start_logging(level: str, style: str) -> None:
    """Write what is at least as grave as `level` to stderr, as `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JSONLines() if style == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for chatty in ("uvicorn", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
