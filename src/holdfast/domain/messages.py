"""Messages: OpenAI message objects, stored as the JSON bytes they arrived as.

A body is validated once, on input (`new_messages.py`); after that it is passed on as bytes, because the
fastest way to send a history on is not to parse it. Only what decisions need is extracted: the role, the ids
of its tool calls, the call it answers. Unknown fields stay in the body unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from .ids import message_id
from .value import Value

NESTED_TOO_DEEPLY = "[nested too deeply to be shown]"


class MessageStatus(StrEnum):
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"


class NewMessage(Value, frozen=True):
    """A validated message, not stored yet."""

    role: str
    body: bytes
    calls: tuple[str, ...] = ()
    answers: str | None = None
    status: MessageStatus = MessageStatus.COMPLETED
    inner: bool = False
    """True: exchanged between the model and the server's own tools; not shown to clients."""
    own_calls: tuple[str, ...] = ()
    """Calls that the server answers itself; clients see only the others."""
    extra: str | None = None
    """A JSON object with data that is not for the model."""


def size_of(messages: Iterable[NewMessage]) -> int:
    """Bytes that these messages add to a conversation."""
    return sum([len(message.body) for message in messages])


class Message(Value, frozen=True):
    """A stored message of a conversation, with its number `seq`."""

    conversation_id: str
    seq: int
    session_id: str
    turn_id: str | None
    role: str
    status: MessageStatus
    created_at: datetime
    body: bytes
    origin: str | None = None
    """The id of the message this one was copied from, if by a fork."""
    gaps: tuple[int, ...] = ()
    """Indexes, from 0, of calls deleted from it; the remaining calls keep theirs."""
    inner: bool = False
    own_calls: tuple[str, ...] = ()
    extra: str | None = None
    """A JSON object with data that is not for the model. Shown with the message, never sent to the model."""

    @property
    def id(self) -> str:
        return message_id(self.conversation_id, self.seq)

    def content(self) -> dict[str, Any]:
        """The OpenAI message object; a placeholder note if it is nested too deeply to be read."""
        try:
            decoded: dict[str, Any] = msgspec.json.decode(self.body)
        except RecursionError:
            named = {"tool_call_id": ""} if self.role == "tool" else {}
            return {"role": self.role, "content": NESTED_TOO_DEEPLY, **named}
        return decoded

    def carried(self) -> dict[str, Any]:
        """Data stored with it that is not for the model."""
        return msgspec.json.decode(self.extra, type=dict[str, Any]) if self.extra else {}

    def shown(self) -> dict[str, Any]:
        """The message object as clients see it: without the calls that the server answers itself."""
        return without_calls(self.content(), self.own_calls)


def without_calls(value: Mapping[str, Any], call_ids: Collection[str]) -> dict[str, Any]:
    """A message object without these of its calls."""
    left = dict(value)
    if call_ids:
        calls = [call for call in left.pop("tool_calls", None) or () if call.get("id") not in call_ids]
        if calls:
            left["tool_calls"] = calls
    return left


def instruction(text: str) -> bytes:
    """The JSON of a system message, sent to the model and not stored."""
    return msgspec.json.encode({"role": "system", "content": text})


def text_of(content: Any) -> str:
    """The text of a message's content, whole or in parts."""
    if isinstance(content, list):
        texts = [part if isinstance(part, str) else part.get("text") for part in content]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""
