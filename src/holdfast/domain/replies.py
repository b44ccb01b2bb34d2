"""What clients have of replies that took several steps.

While the server's own tools work, one turn holds several replies of the model: those that call the tools
(*steps*), and the last. The store keeps each of them. A client of chat completions has them as one message:
the texts of all, parted by an empty line, and the calls of the last that are the client's. A client of the
Responses API has each that says something as a message of its own (`apart`). Steps without a word are for
nobody to see; the store does not even list them as visible.

A step that nothing follows is a reply that was cut short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from .messages import Message, MessageStatus

BETWEEN = "\n\n"
"""What parts the texts of two steps."""


def joined(replies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several replies of one turn as the one message that a chat client has; anything but the text is the
    last one's."""
    whole = dict(replies[-1])
    texts = [text for reply in replies if (text := text_of(reply.get("content")))]
    if len(replies) > 1 and texts:
        whole["content"] = BETWEEN.join(texts)
    return whole


def reply_in(messages: Sequence[Message]) -> dict[str, Any] | None:
    """What a chat client has as the answer of a turn with these messages; None: nothing was answered."""
    said = [
        message
        for message in as_shown([message for message in messages if not message.inner])
        if message.role == "assistant" and message.status is MessageStatus.COMPLETED
    ]
    return said[-1].content() if said else None


def as_shown(messages: Sequence[Message], *, apart: bool = False) -> list[Message]:
    """These messages, in order, as a client has them: steps joined with what they led to, or `apart`, and
    without the calls that the server answers itself."""
    if not any(message.own_calls for message in messages):
        return list(messages)
    found: list[Message] = []
    steps: list[Message] = []
    for message in messages:
        shown = _shown(message)
        if is_step(message):
            steps.append(shown)
        elif steps and message.role == "assistant":
            found += _led_to(steps, shown, apart)
            steps = []
        else:
            found += [*_cut_short(steps), shown]
            steps = []
    return [*found, *_cut_short(steps)]


def is_step(message: Message) -> bool:
    """Does this reply only call tools of the server, whatever else it says?"""
    return bool(message.own_calls) and not message.shown().get("tool_calls")


def text_of(content: Any) -> str:
    """The text of a message's content, whole or in parts."""
    if isinstance(content, list):
        texts = [part if isinstance(part, str) else part.get("text") for part in content]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _shown(message: Message) -> Message:
    if not message.own_calls:
        return message
    return replace(message, body=msgspec.json.encode(message.shown()), own_calls=())


def _led_to(steps: Sequence[Message], last: Message, apart: bool) -> list[Message]:
    if apart:
        return [*(step for step in steps if text_of(step.content().get("content"))), last]
    whole = joined([message.content() for message in (*steps, last)])
    return [replace(last, body=msgspec.json.encode(whole))]


def _cut_short(steps: Sequence[Message]) -> list[Message]:
    if not steps:
        return []
    whole = joined([step.content() for step in steps])
    return [replace(steps[-1], body=msgspec.json.encode(whole), status=MessageStatus.INTERRUPTED)]
