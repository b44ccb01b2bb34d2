"""Notices: what a person should be told, such as a reset or processes that were stopped.

A notice is written in the transaction of the change it tells of, so there is none without the other. It
stays undelivered until whoever talks to the person says that they have been told; delivering it twice is
delivering it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .ids import check_text

LONGEST_TEXT = 10_000


@dataclass(frozen=True, slots=True)
class Notice:
    id: str
    owner: str
    conversation_id: str
    key: str | None
    """The conversation's key: where the person can be reached."""
    kind: str
    text: str
    created_at: datetime
    delivered_at: datetime | None = None
    process_id: str | None = None
    """The process whose end it tells of, if that is what it does."""


def check_notice(kind: str, text: str) -> None:
    """Raises BadInput if this cannot be kept."""
    check_text("a notice's kind", kind)
    check_text("a notice's text", text, LONGEST_TEXT)
