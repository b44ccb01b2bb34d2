"""Results of reads: a page of a list, a resolved name, a search hit, the lineage of a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .conversations import Conversation
from .messages import Message
from .sessions import Session
from .value import Value

T = TypeVar("T")

PAGE_BYTES = 16 << 20
"""How many bytes of messages a surface shows on one page, whatever limit was requested."""


class Resolved(Value, frozen=True):
    """Result of resolving a name: the conversation, its newest session, and the session that was named."""

    conversation: Conversation
    tip: Session
    addressed: str | None
    """Id of the session that was named, if any; differs from the tip's when the conversation moved on."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: Sequence[T]
    has_more: bool


class SessionFilter(Value, frozen=True):
    owner: str | None
    ended: bool | None = None
    source: str | None = None
    key: str | None = None
    title: str | None = None
    """A substring of the title or key."""
    newest: bool = False
    """True: only the newest session of each conversation."""


class Found(Value, frozen=True):
    """A search hit."""

    message: Message
    snippet: str
    key: str | None
    title: str | None


class LineageTree(Value, frozen=True):
    """A conversation's sessions, oldest first, and the lineages forked from it."""

    sessions: tuple[Session, ...]
    forks: tuple[LineageTree, ...]

    def __iter__(self) -> Iterator[Session]:
        """Every session of the tree."""
        yield from self.sessions
        for fork in self.forks:
            yield from fork
