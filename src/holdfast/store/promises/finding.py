"""Looking things up: everything here reads, and changes nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from ...domain.contexts import Context
from ...domain.conversations import Address, Conversation
from ...domain.events import Event
from ...domain.messages import Message
from ...domain.sessions import Session
from ...domain.turns import Draft, Response, Turn
from ..values import Figures, Found, OwnerUsage, Page, Pulse, Resolved, SessionFilter, Statistics


class Finds(Protocol):
    """Reads, and changes nothing."""

    async def resolve(self, owner: str | None, address: Address) -> Resolved:
        """Where a session id (newest or stale), conversation id, alias or key leads. Opens nothing."""
        ...

    async def session(self, owner: str | None, session_id: str) -> Session:
        """That very session, stale or not."""
        ...

    async def sessions(
        self, wanted: SessionFilter, *, after: str | None = None, limit: int = 20
    ) -> Page[Session]:
        """A page of sessions, the most recently active first, behind the session `after`."""
        ...

    async def conversation(self, owner: str | None, address: Address) -> Conversation:
        """The conversation that a name leads to, with its metadata. Opens nothing."""
        ...

    async def conversations(
        self, owner: str | None, *, after: str | None = None, limit: int = 20
    ) -> Page[Conversation]:
        """A page of conversations with their metadata, the newest first, behind the conversation `after`."""
        ...

    async def line(self, owner: str | None, conversation_id: str) -> list[Session]:
        """All sessions of a conversation, oldest first."""
        ...

    async def forks(self, owner: str | None, conversation_id: str) -> list[Session]:
        """The first sessions of conversations that were forked from this one."""
        ...

    async def messages(
        self,
        owner: str | None,
        conversation_id: str,
        *,
        first: int = 1,
        last: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        excluded: bool = True,
    ) -> Page[Message]:
        """Messages numbered first..last as they were said, deleted ones left out; without `excluded`, those
        too that have left the context, and inner ones, which no client is shown."""
        ...

    async def visible(
        self, owner: str | None, conversation_id: str, *, limit: int | None = None
    ) -> list[Message]:
        """What a client has been shown: neither excluded nor deleted nor inner, oldest first; only the newest
        `limit`."""
        ...

    async def conversations_with_history(
        self, owner: str, history: bytes, *, forked_from: str | None = None
    ) -> list[Conversation]:
        """Free conversations whose whole visible history has this chain, two at most: of those begun without
        a name, or of the forks of `forked_from`."""
        ...

    async def context(self, owner: str | None, session_id: str) -> Context:
        """What the model would get in this session, as joined JSON bytes and as messages."""
        ...

    async def turn(self, owner: str | None, turn_id: str) -> Turn: ...

    async def turns(
        self,
        owner: str | None,
        conversation_id: str,
        *,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Turn]:
        """The newest turns of a conversation (or of one of its sessions), newest first, behind the turn
        `after`."""
        ...

    async def turn_messages(self, turn_id: str) -> list[Message]:
        """What was said in a turn, in order; messages that left the context included."""
        ...

    async def turn_answer(self, turn_id: str) -> bytes | None:
        """What `commit_reply` kept of the model's answer besides its messages."""
        ...

    async def response(self, owner: str | None, response_id: str) -> Response: ...

    async def delete_response(self, owner: str, response_id: str) -> None:
        """Forget that a turn was a response; the turn and what was said stay."""
        ...

    async def last_number(self, turn_id: str) -> int:
        """The highest event number that any checkpoint of this turn used or reserved; -1: there is none."""
        ...

    async def drafts(self, turn_id: str, *, after_event: int = -1) -> list[Draft]:
        """A turn's checkpoints that hold events numbered above `after_event`."""
        ...

    async def events(
        self,
        *,
        owner: str | None,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        conversation_id: str | None = None,
    ) -> list[Event]:
        """What happened after that cursor, up to event `upto`, oldest first."""
        ...

    async def event_bounds(self) -> tuple[int, int]:
        """The numbers of the oldest event that is kept and of the newest. No event up to the newest will
        appear later: whoever has read up to it, of one owner or of all, may go on behind it."""
        ...

    async def search(
        self, owner: str | None, words: str, *, conversation_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        """Messages of this owner that hold all these words. No committed message is ever missing."""
        ...

    async def statistics(self, owner: str | None) -> Statistics: ...

    async def usage(self, owner: str | None, *, limit: int = 20) -> list[OwnerUsage]:
        """How much each owner has stored, those with the most bytes first; or only this one."""
        ...

    async def alive(self, owner: str | None, *, limit: int = 200) -> list[Session]:
        """Open sessions, the most recently active first: all with a running turn or an attached process, and
        others as far as they are among the newest. Cheap, however many are stored."""
        ...

    async def ended_since(self, owner: str | None, since: datetime, *, limit: int = 200) -> list[Session]:
        """Sessions that have ended since then, the latest first."""
        ...

    async def resets_waiting(self, owner: str | None, *, limit: int = 100) -> list[Session]:
        """Open sessions whose reset is due, put off or not, the longest due first; only those that our own
        policies have dated. Costs what is due, not what is stored."""
        ...

    async def pulse(self, owner: str | None, step: timedelta, count: int) -> Pulse:
        """How many turns ended in each of the last `count` steps of time, the one under way included. Reads
        a bounded number of the newest events: of a very busy time, the oldest steps may be too low."""
        ...

    async def figures(self) -> Figures:
        """How much there is of everything, for an operator; cheap enough to be asked every few seconds."""
        ...
