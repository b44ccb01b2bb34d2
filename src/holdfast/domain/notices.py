"""Notices: messages to a person, such as about a reset or stopped processes.

A notice is written in the transaction of the change it reports, so neither exists without the other. It stays
undelivered until the client that talks to the person marks it delivered. Delivery is idempotent.
"""

from __future__ import annotations

from datetime import datetime

from .ids import check_text
from .value import Value

LONGEST_TEXT = 10_000


class Notice(Value, frozen=True):
    id: str
    owner: str
    conversation_id: str
    key: str | None
    """The conversation's session key: where to reach the person."""
    kind: str
    text: str
    created_at: datetime
    delivered_at: datetime | None = None
    process_id: str | None = None
    """The process whose end it reports, if any."""
    sent_at: datetime | None = None
    """When the webhook of the settings accepted it."""
    told_at: datetime | None = None
    """When a reply of the conversation carried it."""


class NoticeDelivery(Value, frozen=True):
    """A notice on its way to a place on a messaging platform."""

    connector: str
    key: str
    """The place's session key."""
    state: str
    """pending, sent or dead."""
    sent_at: datetime | None
    error: str | None


def check_notice(kind: str, text: str) -> None:
    """Raises BadInput if this cannot be stored."""
    check_text("a notice's kind", kind)
    check_text("a notice's text", text, LONGEST_TEXT)
