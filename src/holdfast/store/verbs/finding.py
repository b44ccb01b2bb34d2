"""Reads, each in one snapshot."""

from __future__ import annotations

from datetime import datetime, timedelta

from ...domain.contexts import Context
from ...domain.conversations import Address, Conversation
from ...domain.events import Event
from ...domain.messages import Message
from ...domain.sessions import Session
from ...domain.turns import Draft, Response, Turn
from .. import conversations as conversation_reads
from .. import reads
from .. import reads as overviews
from .. import resolve as places
from .. import turns as turn_writes
from ..base import OwnerUsage, Page, Pulse, Resolved, SessionFilter, Statistics
from ..context import read_context
from ..rows import to_stamp
from .base import Verbs


class FindingVerbs(Verbs):
    """Implements `store.promises.finding.Finds`, except `search` and `figures`, which each engine
    implements."""

    async def resolve(self, owner: str | None, address: Address) -> Resolved:
        return await self._read(lambda tx: places.place(tx, owner, address))

    async def session(self, owner: str | None, session_id: str) -> Session:
        return await self._read(lambda tx: places.session_of(tx, owner, session_id))

    async def sessions(
        self, wanted: SessionFilter, *, after: str | None = None, limit: int = 20
    ) -> Page[Session]:
        return await self._read(lambda tx: reads.sessions(tx, wanted, after, limit))

    async def conversation(self, owner: str | None, address: Address) -> Conversation:
        return await self._read(lambda tx: conversation_reads.conversation(tx, owner, address))

    async def conversations(
        self, owner: str | None, *, after: str | None = None, limit: int = 20
    ) -> Page[Conversation]:
        return await self._read(lambda tx: conversation_reads.conversations(tx, owner, after, limit))

    async def line(self, owner: str | None, conversation_id: str) -> list[Session]:
        return await self._read(lambda tx: reads.line(tx, owner, conversation_id))

    async def forks(self, owner: str | None, conversation_id: str) -> list[Session]:
        return await self._read(lambda tx: reads.forks(tx, owner, conversation_id))

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
        return await self._read(
            lambda tx: reads.messages(tx, owner, conversation_id, first, last, limit, newest_first, excluded)
        )

    async def visible(
        self, owner: str | None, conversation_id: str, *, limit: int | None = None
    ) -> list[Message]:
        return await self._read(lambda tx: reads.visible(tx, owner, conversation_id, limit))

    async def conversations_with_history(
        self, owner: str, history: bytes, *, forked_from: str | None = None
    ) -> list[Conversation]:
        return await self._read(lambda tx: reads.conversations_with_history(tx, owner, history, forked_from))

    async def context(self, owner: str | None, session_id: str) -> Context:
        return await self._read(lambda tx: read_context(tx, self._cache, owner, session_id))

    async def turn(self, owner: str | None, turn_id: str) -> Turn:
        return await self._read(lambda tx: reads.turn(tx, owner, turn_id))

    async def turns(
        self,
        owner: str | None,
        conversation_id: str,
        *,
        session_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Turn]:
        return await self._read(lambda tx: reads.turns(tx, owner, conversation_id, session_id, after, limit))

    async def turn_messages(self, turn_id: str) -> list[Message]:
        return await self._read(lambda tx: reads.turn_messages(tx, turn_id))

    async def turn_answer(self, turn_id: str) -> bytes | None:
        return await self._read(lambda tx: reads.turn_answer(tx, turn_id))

    async def response(self, owner: str | None, response_id: str) -> Response:
        return await self._read(lambda tx: reads.response(tx, owner, response_id))

    async def delete_response(self, owner: str, response_id: str) -> None:
        await self._write(lambda tx: turn_writes.delete_response(tx, owner, response_id))

    async def last_number(self, turn_id: str) -> int:
        return await self._read(lambda tx: reads.last_number(tx, turn_id))

    async def drafts(self, turn_id: str, *, after_event: int = -1) -> list[Draft]:
        return await self._read(lambda tx: reads.drafts(tx, turn_id, after_event))

    async def events(
        self,
        *,
        owner: str | None,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        conversation_id: str | None = None,
    ) -> list[Event]:
        return await self._read(lambda tx: reads.events(tx, owner, after, upto, limit, conversation_id))

    async def event_bounds(self) -> tuple[int, int]:
        return await self._read(overviews.event_bounds)

    async def statistics(self, owner: str | None) -> Statistics:
        return await self._read(lambda tx: reads.statistics(tx, owner))

    async def usage(self, owner: str | None, *, limit: int = 20) -> list[OwnerUsage]:
        return await self._read(lambda tx: reads.usage(tx, owner, limit))

    async def alive(self, owner: str | None, *, limit: int = 200) -> list[Session]:
        return await self._read(lambda tx: overviews.alive(tx, owner, limit))

    async def ended_since(self, owner: str | None, since: datetime, *, limit: int = 200) -> list[Session]:
        return await self._read(lambda tx: overviews.ended_since(tx, owner, to_stamp(since), limit))

    async def resets_waiting(self, owner: str | None, *, limit: int = 100) -> list[Session]:
        return await self._read(lambda tx: overviews.resets_waiting(tx, owner, limit))

    async def pulse(self, owner: str | None, step: timedelta, count: int) -> Pulse:
        return await self._read(lambda tx: overviews.pulse(tx, owner, step, count))
