"""The messages of a session outside of its turns, as frameworks use them, and its state.

Each method that writes is one transaction and waits for a running turn to end. Removed messages leave the
context and stay readable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .domain.conversations import Address
from .domain.items import Item, ItemPlace, PutItem
from .domain.messages import Message, NewMessage
from .domain.new_messages import SdkObject, new_messages
from .domain.session_messages import Named
from .errors import BadInput

if TYPE_CHECKING:
    from .domain.sessions import Session
    from .session import NodeServices

T = TypeVar("T")

Content = str | Mapping[str, Any] | SdkObject | Iterable[Mapping[str, Any] | SdkObject]
"""A text, an OpenAI message, an SDK's object of one, or several of these."""


class SessionMessages:
    """A part of `LiveSession`."""

    _services: NodeServices
    _session: Session

    if TYPE_CHECKING:

        @property
        def conversation_id(self) -> str: ...

        async def refresh(self) -> Session: ...

    async def messages(self, scope: str = "session", *, limit: int | None = None) -> list[Message]:
        """The messages of this session or, with `scope="conversation"`, of the whole conversation; with
        `scope="context"` those that the next turn would see, without its summaries. `limit`: only the newest.
        """
        if scope not in ("session", "conversation", "context"):
            raise BadInput(f"scope must be 'session', 'conversation' or 'context', not {scope!r}")
        if scope == "context":
            context = await self._services.store.in_context(
                self._services.owner, Address(id=self.conversation_id), limit=limit
            )
            return context.messages if context is not None else []
        first, last = 1, None
        if scope == "session":
            session = await self.refresh()
            first, last = session.first_seq, session.last_seq
        page = await self._services.store.messages(
            self._services.owner,
            self.conversation_id,
            first=first,
            last=last,
            limit=limit,
            newest_first=limit is not None,
        )
        return list(page.items) if limit is None else list(reversed(page.items))

    async def rewind(self, to: str | int) -> None:
        """Continue from an earlier message: its id, its number (0: before the first), or a turn's id, which
        means its end.

        What followed leaves the context and stays readable; rewinding to a later message brings it back. `id`
        may become that of another session. Raises ConversationBusy while a turn runs.
        """
        services = self._services

        async def rewind() -> Session:
            return (await services.store.rewind(services.owner, self.conversation_id, to)).session

        self._session = await services.gate.when_free(rewind, 0.0)

    async def append(self, content: Content, *, names: Sequence[str] | None = None) -> int:
        """Append messages outside of any turn, in one transaction; returns how many were stored.

        `names`, one for each message, make it idempotent: a message whose name this conversation knows is not
        stored again. Waits for a running turn to end.
        """
        messages = new_messages(content)
        if names is not None and len(names) != len(messages):
            raise BadInput(f"{len(messages)} messages need as many names, not {len(names)}")
        return await self._append(
            [Named(message, names[i] if names else None) for i, message in enumerate(messages)]
        )

    async def _append(
        self,
        messages: Sequence[Named],
        places: Sequence[ItemPlace] = (),
        fold: Callable[[Sequence[Item | None]], Sequence[PutItem]] = lambda _: (),
    ) -> int:
        """The same for messages that are validated already, with the items that `fold` derives from those at
        these places."""

        async def append() -> int:
            store, node_id = self._services.store, self._services.heartbeat.node_id
            return await store.append_with_items(
                self._services.owner, self.conversation_id, node_id, messages, places, fold
            )

        return await self._when_free(append) if messages else 0

    async def remove_last(self, count: int = 1) -> list[Message]:
        """Remove the newest messages from the context; returns them, oldest first. They stay readable with
        `messages()`. Waits for a running turn to end."""
        services = self._services
        return await self._when_free(
            lambda: services.store.remove_last(services.owner, self.conversation_id, count)
        )

    async def replace(self, content: Content, *, since: int = 1, last_seq: int | None = None) -> int:
        """Replace the messages of the context from seq `since` on by these, in one transaction; returns the
        last seq. The replaced ones stay readable with `messages()`.

        With `last_seq`, the last seq that the caller has read, raises Conflict and changes nothing if there
        are newer messages. Waits for a running turn to end.
        """
        return await self._replace(new_messages(content), since=since, last_seq=last_seq)

    async def _replace(
        self,
        messages: Sequence[NewMessage],
        *,
        since: int = 1,
        last_seq: int | None = None,
        also: Collection[int] = (),
    ) -> int:
        """The same for messages that are validated already; those with a seq in `also` are removed too."""

        async def replace() -> int:
            store, node_id = self._services.store, self._services.heartbeat.node_id
            return await store.replace_messages(
                self._services.owner,
                self.conversation_id,
                node_id,
                since=since,
                messages=messages,
                last_seq=last_seq,
                also=also,
            )

        return await self._when_free(replace)

    async def clear(self) -> None:
        """Empty the context. The messages stay readable with `messages()`; the session continues."""
        await self.replace(())

    async def state(self) -> dict[str, Any]:
        """Data that programs keep with this conversation: never sent to the model, deleted with it."""
        return await self._services.store.state(self._services.owner, self.conversation_id)

    async def update_state(self, changes: Mapping[str, Any], remove: Iterable[str] = ()) -> dict[str, Any]:
        """Merge these JSON values into the state and remove these names, atomically; returns the state."""
        return await self._services.store.update_state(
            self._services.owner, self.conversation_id, changes, tuple(remove)
        )

    async def _when_free(self, act: Callable[[], Awaitable[T]]) -> T:
        services = self._services

        async def living() -> T:
            return await services.heartbeat.as_living(act)

        return await services.gate.when_free(living, services.busy_wait_seconds)
