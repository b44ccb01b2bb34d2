"""Messages as clients see them: without the server's own tools, the steps of a reply joined with the reply.

The server may call its own tools before it answers. A chat client receives these steps and the answer as one
message, a Responses client as several; neither sees the calls and their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from .fingerprints import fingerprint_of
from .messages import Message, MessageStatus, NewMessage, text_of
from .value import Value

BETWEEN = "\n\n"
"""Separator between the texts of two steps."""
ALIKE = 20
"""What a client kept of an interrupted reply begins like it, for so many characters."""


def joined(replies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several replies of one turn as one chat message; texts are joined, all other fields are the last
    reply's."""
    whole = dict(replies[-1])
    texts = [text for reply in replies if (text := text_of(reply.get("content")))]
    if len(replies) > 1 and texts:
        whole["content"] = BETWEEN.join(texts)
    return whole


def reply_in(messages: Sequence[Message]) -> dict[str, Any] | None:
    """The answer that a chat client gets for a turn with these messages; None: there is none."""
    said = [
        message
        for message in as_shown([message for message in messages if not message.inner])
        if message.role == "assistant" and message.status is MessageStatus.COMPLETED
    ]
    return said[-1].content() if said else None


def as_shown(messages: Sequence[Message], *, apart: bool = False) -> list[Message]:
    """These messages, in order, as clients see them: steps joined with the reply they led to, or `apart`, and
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
    """True: this reply calls only server-side tools, whatever its text."""
    return bool(message.own_calls) and not message.shown().get("tool_calls")


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


class VisibleMessage(Value, frozen=True):
    """A stored message visible to clients: neither excluded nor deleted."""

    seq: int
    session_id: str
    role: str
    print: bytes
    calls: tuple[str, ...] = ()
    interrupted: bool = False
    unanswered: bool = False
    """True: its turn ended without an answer and has none since."""
    text: str = ""
    """Of an interrupted reply, to compare it with what a client kept of it."""

    def may_be(self, message: NewMessage) -> bool:
        """True: an interrupted reply, and this may be what a client kept of it: its text or a part of it,
        perhaps more than is stored, perhaps with a note at its end."""
        if not self.interrupted or message.role != self.role:
            return False
        kept = text_of(msgspec.json.decode(message.body).get("content")).strip()
        stored = self.text.strip()
        length = min(len(kept), len(stored), ALIKE)
        return kept[:length] == stored[:length]


def awaited_calls(messages: Sequence[Message]) -> tuple[str, ...]:
    """Calls of the newest reply without a result, if only results follow it."""
    answered = set()
    for message in reversed(messages):
        value = message.content()
        if message.role != "tool":
            calls = [str(call.get("id")) for call in value.get("tool_calls") or ()]
            return tuple(call for call in calls if call not in answered)
        answered.add(value.get("tool_call_id"))
    return ()


def visible_of(messages: Sequence[Message]) -> list[VisibleMessage]:
    """These messages, as `as_shown` returns them, prepared for matching a history."""
    answered = {message.turn_id for message in messages if _is_answer(message)} | {None}
    followed = [*map(_is_answer, messages[1:]), False]
    return [
        _visible(message, unanswered=message.turn_id not in answered and not by_answer)
        for message, by_answer in zip(messages, followed, strict=False)
    ]


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and message.status is MessageStatus.COMPLETED


def _visible(message: Message, unanswered: bool) -> VisibleMessage:
    value = msgspec.json.decode(message.body)
    calls = tuple(str(call.get("id")) for call in value.get("tool_calls") or ())
    interrupted = message.status is MessageStatus.INTERRUPTED
    return VisibleMessage(
        message.seq,
        message.session_id,
        message.role,
        fingerprint_of(value),
        calls,
        interrupted=interrupted,
        unanswered=unanswered,
        text=text_of(value.get("content")) if interrupted else "",
    )
