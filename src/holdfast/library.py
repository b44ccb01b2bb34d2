"""What a program calls on `Holdfast`, as `docs/reference/library.md` promises it. All of it is scoped by the
node's own owner."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from datetime import datetime
from typing import Any

from .domain.conversations import Address, Conversation
from .domain.events import Event
from .domain.ids import check_name
from .domain.pages import Found, SearchFilter, SessionFilter
from .domain.sessions import Session
from .operations import Operations
from .session import LiveSession, NodeServices
from .store.store import Store


class LibraryOperations(Operations):
    """The part of `Holdfast` for programs."""

    owner: str
    _services: NodeServices

    async def session(
        self,
        key: str | None = None,
        *,
        id: str | None = None,
        source: str = "",
        attached: bool = True,
    ) -> LiveSession:
        """Resume or start the session that the next message of this key (or id) belongs to.

        Neither: a new conversation. An attached session ends when this program does; a detached one
        (`attached=False`) ends when its policy says so.
        """
        store = self.store
        if id is not None:
            id = await self.full_id(self.owner, id)
        address = Address(id=id, key=key)
        if source:
            check_name("a source", source)

        async def open_session() -> LiveSession:
            node_id = self.heartbeat.node_id
            session = await store.open_session(self.owner, address, node_id, source=source, attached=attached)
            answering = session.answering_node
            if answering not in (None, node_id) and await self.reaper.reap_if_dead(answering):
                return await open_session()  # it belonged to a dead program: continue after it
            return LiveSession(self._services, session, attached)

        return await self.heartbeat.as_living(open_session)

    async def sessions(
        self,
        *,
        key: str | None = None,
        source: str | None = None,
        title: str | None = None,
        ended: bool | None = None,
        newest: bool = False,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Session]:
        """Sessions of this owner, the most recently active first.

        `title`: a part of the title or key. `newest`: only the newest session of each conversation. `after`:
        the id of the last session of the previous page. `limit`: at most 1,000.
        """
        wanted = SessionFilter(self.owner, ended, source, key, title, newest)
        return list((await self.store.sessions(wanted, after=after, limit=limit)).items)

    async def search(
        self,
        words: str,
        *,
        role: str | None = None,
        source: str | None = None,
        since: datetime | None = None,
        limit: int = 20,
    ) -> list[Found]:
        """Messages of this owner that hold all these words, the best first. Each word counts from its
        beginning; double quotes enclose a phrase.

        `role`, `source` (of their session) and `since` (a time with its zone) leave others out. Raises
        SearchTimeout.
        """
        wanted = SearchFilter(role=role, source=source, since=since)
        return list(await self.store.search(self.owner, words, wanted=wanted, limit=limit))

    async def conversation(self, name: str) -> Conversation:
        """The conversation of this id (its own, or of a session, turn or response), key or alias. Raises
        NotFound."""
        found = await self.resolve_name(self.owner, name)
        return await self.store.conversation(self.owner, Address(id=found.conversation.id, create=False))

    async def delete(self, name: str) -> None:
        """Delete the whole conversation of this id, key or alias permanently; a running turn is cancelled.
        Raises NotFound."""
        found = await self.resolve_name(self.owner, name)
        await self.delete_conversation(self.owner, found.conversation.id, found.tip.running_turn)

    async def export(self, name: str | None = None) -> AsyncIterator[bytes]:
        """The conversation of this id, key or alias, or all of this owner's, as lines of JSON without line
        ends; `holdfast import` reads them. Raises NotFound."""
        chosen = None
        if name is not None:
            chosen = (await self.resolve_name(self.owner, name)).conversation.id
        async for line in self.exported(self.owner, chosen):
            yield line

    def events(self, after: int = 0, *, follow: bool = False) -> EventFeed:
        """The events after event `after`: `await` it for a list, or `async for` over it.

        With `follow`, iteration continues forever with new events.
        """
        return EventFeed(self.store, self.owner, after, follow)


class EventFeed:
    """Events after a cursor, as a list (`await`) or one by one (`async for`)."""

    def __init__(self, store: Store, owner: str, after: int, follow: bool) -> None:
        self._store = store
        self._owner = owner
        self._after = after
        self._follow = follow

    def __await__(self) -> Generator[Any, None, list[Event]]:
        return self._list().__await__()

    async def _list(self) -> list[Event]:
        return [event async for event in EventFeed(self._store, self._owner, self._after, False)]

    async def __aiter__(self) -> AsyncIterator[Event]:
        cursor = self._after
        while True:
            version = self._store.version()
            batch = await self._store.events(owner=self._owner, after=cursor)
            for event in batch:
                cursor = event.id
                yield event
            if not batch:
                if not self._follow:
                    return
                await self._store.changed(version, 1.0)
