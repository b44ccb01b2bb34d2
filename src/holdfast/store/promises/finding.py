"""Reads. Nothing here changes anything."""

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
    """Read-only methods."""

    async def resolve(self, owner: str | None, address: Address) -> Resolved:
        """Resolve a session id (newest or stale), conversation id, alias or key. Opens nothing."""
        ...

    async def session(self, owner: str | None, session_id: str) -> Session:
        """That exact session, stale or not."""
        ...

    async def sessions(
        self, wanted: SessionFilter, *, after: str | None = None, limit: int = 20
    ) -> Page[Session]:
        """A page of sessions, the most recently active first, after the session `after`."""
        ...

    async def conversation(self, owner: str | None, address: Address) -> Conversation:
        """The conversation that a name resolves to, with its metadata. Opens nothing."""
        ...

    async def conversations(
        self, owner: str | None, *, after: str | None = None, limit: int = 20
    ) -> Page[Conversation]:
        """A page of conversations with their metadata, the newest first, after the conversation `after`."""
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
        """Messages with seqs first..last, unmodified, without deleted ones. Without `excluded`, also omits
        messages excluded from the context and inner ones, which clients never see."""
        ...

    async def visible(
        self, owner: str | None, conversation_id: str, *, limit: int | None = None
    ) -> list[Message]:
        """Messages visible to clients: neither excluded nor deleted nor inner, oldest first; only the newest
        `limit`."""
        ...

    async def conversations_with_history(
        self, owner: str, history: bytes, *, forked_from: str | None = None
    ) -> list[Conversation]:
        """Free conversations whose whole visible history has this fingerprint chain, two at most: among those
        begun without a name, or among the forks of `forked_from`."""
        ...

    async def context(self, owner: str | None, session_id: str) -> Context:
        """The context that the model would get in this session, as joined JSON bytes and as messages."""
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
        """The newest turns of a conversation (or of one of its sessions), newest first, after the turn
        `after`."""
        ...

    async def turn_messages(self, turn_id: str) -> list[Message]:
        """The messages of a turn, in order; includes messages that left the context."""
        ...

    async def turn_answer(self, turn_id: str) -> bytes | None:
        """The model's answer as `commit_reply` stored it, besides its messages."""
        ...

    async def response(self, owner: str | None, response_id: str) -> Response: ...

    async def delete_response(self, owner: str, response_id: str) -> None:
        """Delete a turn's Responses API id; the turn and its messages stay."""
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
        """Events after that cursor, up to event `upto`, oldest first."""
        ...

    async def event_bounds(self) -> tuple[int, int]:
        """The numbers of the oldest stored event and of the newest. No event up to the newest will appear
        later: a reader that has read up to it, of one owner or of all, may continue after it."""
        ...

    async def search(
        self, owner: str | None, words: str, *, conversation_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        """Messages of this owner that contain all these words. No committed message is ever missing."""
        ...

    async def statistics(self, owner: str | None) -> Statistics: ...

    async def usage(self, owner: str | None, *, limit: int = 20) -> list[OwnerUsage]:
        """Stored bytes and counts per owner, those with the most bytes first; or only this one."""
        ...

    async def alive(self, owner: str | None, *, limit: int = 200) -> list[Session]:
        """Open sessions, the most recently active first: all with a running turn or an attached process,
        others only if they are among the newest. Cheap, however many are stored."""
        ...

    async def ended_since(self, owner: str | None, since: datetime, *, limit: int = 200) -> list[Session]:
        """Sessions that have ended since then, the latest first."""
        ...

    async def resets_waiting(self, owner: str | None, *, limit: int = 100) -> list[Session]:
        """Open sessions whose reset is due, deferred or not, the longest due first; only those scheduled
        under our own policies. Cost depends on what is due, not on what is stored."""
        ...

    async def pulse(self, owner: str | None, step: timedelta, count: int) -> Pulse:
        """How many turns ended in each of the last `count` steps of time, the current one included. Reads a
        bounded number of the newest events: in a very busy time, the oldest steps may be too low."""
        ...

    async def figures(self) -> Figures:
        """Totals for an operator; cheap enough to be read every few seconds."""
        ...
