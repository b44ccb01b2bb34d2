"""Drafts: what a running reply has already said, checkpoint by checkpoint.

A draft is a list of rows, append-only. Each holds the stream's events as they were sent, so that a
stream can be resumed, and what they add to the reply, so that a crash can keep it. Each reserves a
block of event numbers beyond its own: after a crash the terminal event is numbered above the
reservation, so whatever a client has seen, `starting_after` reaches it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import BadMessage
from .messages import MAX_BODY_BYTES, MessageStatus, NewMessage, new_message
from .names import storable

RESERVED_EVENTS = 10_000

_NOT_TEXT = frozenset({"role", "tool_calls", "tool_call_id"})
_ALWAYS_FITS = MAX_BODY_BYTES // 8  # a character takes at most six bytes in JSON


@dataclass(frozen=True, slots=True)
class Draft:
    """One checkpoint of a running reply."""

    first_event: int
    last_event: int
    events: bytes = b""
    adds: dict[str, str] = field(default_factory=dict)
    """Text to be appended to fields of the reply, such as `content`."""
    restarts: bool = False
    """Does the reply begin anew here? What earlier rows added no longer counts."""
    after_seq: int = field(default=0, compare=False)
    """The number of the message that the reply follows, as the store has noted it: a turn may hold several
    replies, and each has its own checkpoints."""

    @property
    def reserved_to(self) -> int:
        return self.last_event + RESERVED_EVENTS

    def __post_init__(self) -> None:
        if not 0 <= self.first_event <= self.last_event:
            raise BadMessage(
                f"a draft's events must be numbered upwards: {self.first_event}..{self.last_event}"
            )
        for name, text in self.adds.items():
            if name in _NOT_TEXT or not isinstance(text, str):
                raise BadMessage(f"a draft adds to text such as content, not to {name}")


def first_event_of(attempt: int, reserved_to: int) -> int:
    """The number of the first event of an attempt that takes a turn up again: above all that was ever told.

    Checkpoints of earlier attempts have used or reserved numbers up to `reserved_to` (-1: there are none).
    The one behind is the end's, by which whoever listened meanwhile heard that they had broken off. And each
    attempt may have told something before its first checkpoint.
    """
    return reserved_to + 2 + (attempt - 1) * RESERVED_EVENTS


def said(drafts: Iterable[Draft]) -> dict[str, str]:
    """What a reply had said according to its checkpoints, field by field."""
    texts: dict[str, list[str]] = {}
    for draft in drafts:
        if draft.restarts:
            texts.clear()
        for name, text in draft.adds.items():
            texts.setdefault(name, []).append(storable(text))
    return {name: "".join(pieces) for name, pieces in texts.items()}


def interrupted_reply(drafts: Iterable[Draft]) -> NewMessage | None:
    """The reply that a crash left unfinished, as a message; None if nothing had been said.

    A checkpoint that was taken can always be kept: of more than a message can hold, its beginning.
    """
    texts = {name: text for name, text in said(drafts).items() if text}
    if not texts:
        return None
    content = texts.pop("content", "")
    try:
        whole = new_message({"role": "assistant", "content": content, **texts})
    except BadMessage:
        whole = new_message({"role": "assistant", "content": content[:_ALWAYS_FITS]})
    return NewMessage(whole.role, whole.body, status=MessageStatus.INTERRUPTED)
