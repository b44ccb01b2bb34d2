"""Results of reads: a page of a list, a resolved name, a search hit, a conversation's lineage, a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from .conversations import Conversation
from .messages import Message
from .nodes import Liveness, Node
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


# --- nodes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node with what is known of it now."""

    node: Node
    liveness: Liveness
    why: str
    """The evidence of its liveness, or why it is gone."""
    running_turns: int = 0

    def running_for(self, now: datetime) -> timedelta | None:
        """How long it has run, or ran if it is gone: one that was reaped, up to its last heartbeat."""
        node = self.node
        if node.started_at is None:
            return None
        last = node.left_at or (node.heartbeat_at if node.reaped_at else None) or now
        return max(timedelta(), last - node.started_at)


def why_gone(node: Node) -> str:
    """Why a node is gone, for people; empty while it is not."""
    if node.left_at is not None:
        return "left cleanly"
    if node.reaped_at is None:
        return ""
    return f"reaped: {node.reaped_why or 'its process ended, or it hung'}"
