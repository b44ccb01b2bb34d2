"""Side requests: what an agent program asks under the name of its session, beside its conversation.

A title, a topic, a summary for the program's own compaction. Only text is kept, and a bounded amount of it:
the end of the request, because the instructions of a compaction come last, and the history before them is in
the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .ids import storable
from .messages import text_of
from .value import Value

LONGEST_TEXT = 65_536
"""Characters kept of a request, and of a reply."""
MOST_KEPT = 100
"""Side requests kept under one name; a further one replaces the oldest."""


class SideText(Value, frozen=True):
    """The text of a side request and of its reply, within LONGEST_TEXT each."""

    messages: list[dict[str, str]]
    """`role` and `content`, in the order in which they were sent."""
    reply: str
    truncated: bool
    """True: something of the request or of the reply was left out."""


class SideRequest(Value, frozen=True):
    id: str
    owner: str
    name: str
    """The session's name, as the program sent it."""
    conversation_id: str | None
    """None: no conversation had this name yet."""
    kind: str
    text: SideText
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    created_at: datetime


def side_text(messages: Sequence[Mapping[str, Any]], reply: str) -> SideText:
    """The text to keep of a side request: the end of what was sent, and the beginning of the reply."""
    left = LONGEST_TEXT
    kept: list[dict[str, str]] = []
    truncated = len(reply) > LONGEST_TEXT
    for message in reversed(messages):
        content = storable(text_of(message.get("content")))
        if left <= 0 and content:
            truncated = True
            break
        truncated = truncated or len(content) > left
        content = content[:left]
        left -= len(content)
        kept.append({"role": storable(str(message.get("role")))[:64], "content": content})
    kept.reverse()
    return SideText(kept, storable(reply[:LONGEST_TEXT]), truncated)
