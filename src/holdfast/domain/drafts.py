"""Drafts: saved pieces of a running reply. After a crash, the interrupted reply is built from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import BadMessage
from .ids import storable
from .messages import MessageStatus, NewMessage
from .new_messages import MAX_BODY_BYTES, new_message

RESERVED_EVENTS = 10_000

_NOT_TEXT = frozenset({"role", "tool_calls", "tool_call_id"})
_ALWAYS_FITS = MAX_BODY_BYTES // 8  # a character takes at most six bytes in JSON


@dataclass(frozen=True, slots=True)
class Draft:
    """One saved piece of a running reply."""

    first_event: int
    last_event: int
    events: bytes = b""
    adds: dict[str, str] = field(default_factory=dict)
    """Text to be appended to fields of the reply, such as `content`."""
    restarts: bool = False
    """True: the reply starts over here, and the text of earlier drafts is discarded."""
    after_seq: int = field(default=0, compare=False)
    """Seq of the message that the reply follows, set by the store. A turn may hold several replies, each with
    its own drafts."""

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
    """Number of the first event of an attempt that resumes a turn: above every event published before.

    Drafts of earlier attempts have used or reserved numbers up to `reserved_to` (-1: no drafts).
    The next number is the end event, which notified subscribers of the interruption. Each attempt
    may also have published events before its first draft.
    """
    return reserved_to + 2 + (attempt - 1) * RESERVED_EVENTS


def drafted_text(drafts: Iterable[Draft]) -> dict[str, str]:
    """Text of a reply according to its drafts, by field."""
    texts: dict[str, list[str]] = {}
    for draft in drafts:
        if draft.restarts:
            texts.clear()
        for name, text in draft.adds.items():
            texts.setdefault(name, []).append(storable(text))
    return {name: "".join(pieces) for name, pieces in texts.items()}


def text_so_far(drafts: Sequence[Draft]) -> str:
    """The content of the reply that a turn is writing now, as far as its drafts hold it."""
    last = max((draft.after_seq for draft in drafts), default=0)
    return drafted_text(draft for draft in drafts if draft.after_seq == last).get("content", "")


def interrupted_reply(drafts: Iterable[Draft]) -> NewMessage | None:
    """The reply that a crash left unfinished, as a message; None if it has no text.

    Never fails on an accepted draft: text too long for one message is cut to its beginning.
    """
    texts = {name: text for name, text in drafted_text(drafts).items() if text}
    if not texts:
        return None
    content = texts.pop("content", "")
    try:
        whole = new_message({"role": "assistant", "content": content, **texts})
    except BadMessage:
        whole = new_message({"role": "assistant", "content": content[:_ALWAYS_FITS]})
    return NewMessage(whole.role, whole.body, status=MessageStatus.INTERRUPTED)
