"""Results of reads: a page of a list, a resolved name, a search hit, a conversation's lineage, a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from .conversations import Conversation
from .headings import NO_HEADING, ConversationSums, Heading
from .messages import Message
from .nodes import Liveness, Node
from .sessions import Session, SessionState
from .value import Value

T = TypeVar("T")

MOST_SORTED = 500
"""How many sessions are read for a list that is sorted or counted."""
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

    def includes(self, session: Session) -> bool:
        """True: the session has the source and key, and is the newest if that is wanted. Owner, title and end
        are not compared here."""
        return (
            (self.source is None or session.source == self.source)
            and (self.key is None or session.key == self.key)
            and (not self.newest or session.id == session.tip_id)
        )


class SessionSort(StrEnum):
    """Orders of a list of sessions: by name, or the largest conversations first."""

    NAME = "name"
    MESSAGES = "messages"
    TOKENS = "tokens"

    def size(self, sums: ConversationSums) -> int:
        """What the largest come first by."""
        return sums.messages if self is SessionSort.MESSAGES else sums.input_tokens + sums.output_tokens


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session with what a list shows of it."""

    session: Session
    state: SessionState
    heading: Heading
    """Empty for a reader who may not see the text of messages."""
    sums: ConversationSums
    """Those of its conversation."""


@dataclass(frozen=True, slots=True)
class SessionRows:
    """A page of a list that was sorted or filtered."""

    rows: Sequence[SessionRow]
    number: int
    """How many rows all pages have."""
    has_more: bool
    """True: there are more sessions than were read."""


def name_of(session: Session, headings: Mapping[str, Heading]) -> str:
    """What a list calls a session: its key and title, or first words in place of a title; may be empty."""
    title = session.title or headings.get(session.conversation_id, NO_HEADING).first_words
    return " ".join(filter(None, (session.key, title)))


def is_named(session: Session, headings: Mapping[str, Heading], words: str) -> bool:
    """True if these lower-case words are in the name of a session, or are the beginning of its id. Words are
    not looked for within ids: `ada` is in many."""
    is_id = words.startswith("sess_")
    return words in name_of(session, headings).lower() or (is_id and session.id.startswith(words))


class SearchFilter(Value, frozen=True):
    """Which messages a search reads, besides their words; None: any."""

    conversation_id: str | None = None
    role: str | None = None
    source: str | None = None
    """That of the message's session."""
    since: datetime | None = None
    """Messages created then or later."""

    @property
    def is_by_row(self) -> bool:
        """True: what it asks of a message is in the message's row, not in the search index."""
        return (self.role, self.source, self.since) != (None, None, None)


EVERY_MESSAGE = SearchFilter()
MOST_COUNTED = 1_000
"""Up to how many hits a search counts."""


class Found(Value, frozen=True):
    """A search hit."""

    message: Message
    snippet: str
    key: str | None
    title: str | None


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page of search hits."""

    hits: Sequence[Found]
    number: int
    """How many hits all pages have, up to what was to be counted."""
    has_more: bool
    """True: there are more than were counted."""


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
