"""`Bridge`: runs the operations of a node for a framework, from any thread and any event loop.

An adapter is given a node that the program has opened (`holdfast.open` or `holdfast.open_sync`), or a store's
URL. For a URL one node is opened per process, store and owner; it closes when the program exits.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ..app import Holdfast
from ..domain.conversations import Address
from ..domain.ids import DEFAULT_OWNER, is_ours
from ..domain.items import Item, ItemPlace, PutItem
from ..domain.messages import NewMessage
from ..domain.session_messages import ContextBody, InContext, Named
from ..domain.views import Summary
from ..errors import BadInput, ConversationBusy, NodeReaped, NotFound
from ..runtime.shutdown import finished
from ..session import LiveSession
from ..sync import BlockingHoldfast, open_sync

P = ParamSpec("P")
T = TypeVar("T")

MOST_REMEMBERED = 1000
REFUSALS = (ConversationBusy, NodeReaped, NotFound)
"""A write that raises one of these has written nothing, and can be tried again with more effort."""

Node = Holdfast | BlockingHoldfast | str | Path
"""A node that the program has opened, or the URL (or path) of a store."""

_opened: dict[tuple[int, str, str], BlockingHoldfast] = {}
_opening = threading.Lock()


def _shared(url: str, owner: str) -> BlockingHoldfast:
    """This process's node on that store; opened on first use and again after it was closed."""
    name = (os.getpid(), url, owner)
    with _opening:
        node = _opened.get(name)
        if node is None or not node.is_open:
            node = _opened[name] = open_sync(url, owner=owner)
        return node


def close_shared() -> None:
    """Close the nodes that adapters of this process opened for a URL. An adapter made afterwards opens one
    again."""
    with _opening:
        nodes = [node for (pid, _, _), node in _opened.items() if pid == os.getpid()]
        _opened.clear()
    for node in nodes:
        node.close()


class Bridge:
    """The node that an adapter uses."""

    def __init__(self, node: Node, owner: str | None = None) -> None:
        self._conversations: dict[tuple[str, str], FrameworkConversation] = {}
        if isinstance(node, str | Path):
            url = f"sqlite:///{node}" if isinstance(node, Path) else node
            node = _shared(url, owner or DEFAULT_OWNER)
        elif owner is not None:
            raise BadInput("a node has its owner already: holdfast.open(url, owner=…)")
        if isinstance(node, BlockingHoldfast):
            self._hf, self._loop = node.inner, node.event_loop
        else:
            try:
                self._hf, self._loop = node, asyncio.get_running_loop()
            except RuntimeError:
                raise BadInput(
                    "make the adapter inside the event loop that opened holdfast, or give it "
                    "holdfast.open_sync(…) or a URL"
                ) from None

    @property
    def hf(self) -> Holdfast:
        return self._hf

    async def run_single(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await this work, a single read or write of the store, in the node's event loop. A write that was
        submitted is made even if the caller is cancelled, which then does not wait for it."""
        if asyncio.get_running_loop() is self._loop:
            return await work()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await this work, in the node's event loop, to its end even if the caller is cancelled."""
        if asyncio.get_running_loop() is self._loop:
            return await finished(work())
        future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return await finished(asyncio.wrap_future(future))

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The same, blocking."""
        self._check_may_block()
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result()

    def blocking(
        self,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a method of the store (`Store.checkpoint`), blocking, without a way over the event loop."""
        self._check_may_block()
        return self._hf.store.blocking(method, *args, **kwargs)

    def _check_may_block(self) -> None:
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            raise BadInput(
                "this would block the event loop that holdfast runs in: use the async method, or give the "
                "adapter holdfast.open_sync(…) or a URL"
            )

    def conversation(self, source: str, name: str) -> FrameworkConversation:
        """The conversation of this name, always by a key; the last used ones are remembered, so they are
        looked up once."""
        key = (source, name)
        found = self._conversations.get(key)
        if found is None:
            found = self._conversations[key] = FrameworkConversation(self, source, name, by_id=False)
            while len(self._conversations) > MOST_REMEMBERED:
                self._conversations.pop(next(iter(self._conversations)), None)
        return found


class FrameworkConversation:
    """One conversation of a framework, addressed by a key of its own or, with `by_id`, by an id of ours.
    Opened by its first message; if it was deleted elsewhere, a new one is opened."""

    def __init__(self, bridge: Bridge, source: str, name: str, *, by_id: bool = True) -> None:
        self._bridge = bridge
        self._source = source
        named = by_id and is_ours(name)
        self.address = Address(id=name) if named else Address(key=f"{source}:{name}")
        self._session: LiveSession | None = None

    async def session(self) -> LiveSession:
        """Its session, opened if it is new. Detached: it outlives this program."""
        if self._session is None:
            self._session = await self._bridge.hf.session(
                self.address.key, id=self.address.id, source=self._source, attached=False
            )
        return self._session

    async def read(self, limit: int | None = None) -> InContext | None:
        """What is in its context; None if it does not exist."""
        hf = self._bridge.hf
        return await hf.store.in_context(hf.owner, self.address, limit=limit)

    async def read_bodies(self, limit: int | None = None) -> list[ContextBody | Summary] | None:
        """The same, as bodies and extra data alone."""
        hf = self._bridge.hf
        return await hf.store.bodies_in_context(hf.owner, self.address, limit=limit)

    @property
    def is_open(self) -> bool:
        """True if this process has opened it, and has not seen that it was deleted."""
        return self._session is not None

    async def append(self, messages: list[Named]) -> int:
        """Append these in one transaction; returns how many were new."""
        if not messages:
            return 0
        if self._session is not None:
            hf, conversation_id = self._bridge.hf, self._session.conversation_id
            with suppress(*REFUSALS):
                return await hf.store.append_named(hf.owner, conversation_id, hf.node_id, messages)
        return await self._retry(lambda session: session._append(messages))

    async def append_with_items(
        self,
        messages: list[Named],
        places: Sequence[ItemPlace],
        fold: Callable[[str, Sequence[Item | None]], Sequence[PutItem]],
        *,
        reopen: bool = True,
    ) -> int:
        """Append these and, if one was new, change items, in one transaction. `fold` is given the
        conversation's id and the items at these places. `reopen=False`: NotFound if it was deleted."""

        def folded(conversation_id: str) -> Callable[[Sequence[Item | None]], Sequence[PutItem]]:
            return lambda found: fold(conversation_id, found)

        if self._session is not None:
            hf, known = self._bridge.hf, self._session.conversation_id
            with suppress(*REFUSALS):
                return await hf.store.append_with_items(
                    hf.owner, known, hf.node_id, messages, places, folded(known)
                )
        return await self._retry(
            lambda session: session._append(messages, places, folded(session.conversation_id)), reopen
        )

    async def replace(
        self,
        messages: list[NewMessage],
        *,
        since: int = 1,
        last_seq: int | None = None,
        also: Collection[int] = (),
    ) -> None:
        await self._retry(
            lambda session: session._replace(messages, since=since, last_seq=last_seq, also=also)
        )

    async def exists(self) -> bool:
        hf = self._bridge.hf
        try:
            await hf.store.resolve(hf.owner, self.address)
        except NotFound:
            return False
        return True

    async def delete(self) -> None:
        """Delete the conversation with everything in it. Idempotent."""
        hf, self._session = self._bridge.hf, None
        try:
            found = await hf.store.resolve(hf.owner, self.address)
            await hf.store.delete_conversation(hf.owner, found.conversation.id)
        except NotFound:
            return

    async def _retry(self, act: Callable[[LiveSession], Coroutine[Any, Any, T]], reopen: bool = True) -> T:
        try:
            return await act(await self.session())
        except NotFound:  # deleted since it was opened
            self._session = None
            if not reopen:
                raise
            return await act(await self.session())
