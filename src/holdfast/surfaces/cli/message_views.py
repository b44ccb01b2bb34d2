"""Messages and search hits, for people's eyes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ...domain.messages import Message, MessageStatus
from ...store.base import Found
from .output import Styled, one_line, say
from .words import clock

ROLE_STYLES = {"user": "bold cyan", "assistant": "bold green", "tool": "bold magenta"}


def show_messages(messages: Sequence[Message], now: datetime) -> None:
    for number, message in enumerate(messages):
        if number:
            say()
        cut = Styled("  interrupted", "yellow") if message.status is MessageStatus.INTERRUPTED else Styled("")
        head = Styled(f"#{message.seq} ", "dim")
        say(head, _role(message.role), Styled(f"  {clock(message.created_at, now)}", "dim"), cut)
        _body(message.content())


def show_context(messages: Sequence[Mapping[str, Any]]) -> None:
    for number, message in enumerate(messages):
        if number:
            say()
        say(_role(str(message.get("role"))))
        _body(message)


def show_found(found: Sequence[Found], now: datetime) -> None:
    for number, each in enumerate(found):
        if number:
            say()
        message = each.message
        where = each.key or each.title or message.conversation_id
        say(
            Styled(one_line(where), "bold"),
            Styled(f"  #{message.seq}  ", "dim"),
            _role(message.role),
            Styled(f"  {clock(message.created_at, now)}  {message.session_id}", "dim"),
        )
        say("  ", one_line(each.snippet))


def _role(role: str) -> Styled:
    return Styled(role, ROLE_STYLES.get(role, "bold"))


def _body(message: Mapping[str, Any]) -> None:
    text = text_of(message.get("content"))
    if text:
        say(text)
    for call in message.get("tool_calls") or ():
        function = (call.get("function") or {}) if isinstance(call, Mapping) else {}
        say(Styled(f"→ {function.get('name', 'tool')}({function.get('arguments', '')})", "magenta"))
    if message.get("tool_call_id"):
        say(Styled(f"(answers {message['tool_call_id']})", "dim"))


def text_of(content: Any) -> str:
    """The words of a message's content; parts that are no words by their kind."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            parts.append(f"[{part.get('type', 'part')}]")
    return "\n".join(parts)
