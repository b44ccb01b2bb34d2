"""Messages of a session as frameworks see them: what is in the context, and what is appended by name."""

from __future__ import annotations

from typing import NamedTuple

from .ids import check_name
from .messages import Message, NewMessage
from .value import Value
from .views import Summary


class Named(Value, frozen=True):
    """A message to append, with the name its framework gave it; a name that the conversation knows is not
    stored again."""

    message: NewMessage
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("the name of a message", self.name)


class ContextBody(NamedTuple):
    """The body of a message in a context, and its extra data."""

    body: bytes
    extra: str | None


class InContext(Value, frozen=True):
    """The messages of a context in order, each with its seq, and the summaries that replace older ones.
    `last_seq` is the conversation's: an optimistic lock for `replace`."""

    parts: tuple[Message | Summary, ...]
    last_seq: int

    @property
    def messages(self) -> list[Message]:
        return [part for part in self.parts if isinstance(part, Message)]
