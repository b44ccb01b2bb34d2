"""Stores of frameworks: messages outside of turns, items, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from ...domain.checkpoints import Checkpoint, CheckpointWrite, NewCheckpoint
from ...domain.conversations import Address
from ...domain.items import Item, ItemPlace, PutItem
from ...domain.messages import Message, NewMessage
from ...domain.session_messages import InContext, Named


class Adapts(Protocol):
    """Methods that adapters use. The functions in `store/session_messages.py`, `store/items.py` and
    `store/checkpoints.py` say what each guarantees."""

    async def in_context(
        self, owner: str, address: Address, *, limit: int | None = None
    ) -> InContext | None: ...

    async def append_named(
        self, owner: str, conversation_id: str, node_id: str, messages: Sequence[Named]
    ) -> int: ...

    async def remove_last(self, owner: str, conversation_id: str, count: int) -> list[Message]: ...

    async def replace_messages(
        self,
        owner: str,
        conversation_id: str,
        node_id: str,
        *,
        since: int,
        messages: Sequence[NewMessage],
        last_seq: int | None = None,
        also: Collection[int] = (),
    ) -> int: ...

    async def state(self, owner: str, conversation_id: str) -> dict[str, Any]: ...

    async def update_state(
        self, owner: str, conversation_id: str, changes: Mapping[str, Any], removed: Sequence[str] = ()
    ) -> dict[str, Any]: ...

    async def put_items(self, owner: str, changes: Sequence[PutItem]) -> None: ...

    async def append_with_items(
        self,
        owner: str,
        conversation_id: str,
        node_id: str,
        messages: Sequence[Named],
        places: Sequence[ItemPlace],
        fold: Callable[[Sequence[Item | None]], Sequence[PutItem]],
    ) -> int: ...

    async def item(self, owner: str, space: str, namespace: str, name: str) -> Item | None: ...

    async def refresh_items(self, owner: str, space: str, names: Sequence[tuple[str, str]]) -> None: ...

    async def items_under(self, owner: str, space: str, prefix: str) -> list[Item]: ...

    async def item_namespaces(self, owner: str, space: str) -> list[str]: ...

    async def drop_expired_items(self, limit: int) -> int: ...

    async def put_checkpoint(
        self,
        owner: str,
        key: str,
        source: str,
        node_id: str,
        checkpoint: NewCheckpoint,
        messages: Sequence[Named] = (),
    ) -> None: ...

    async def put_checkpoint_writes(
        self,
        owner: str,
        key: str,
        source: str,
        ns: str,
        checkpoint_id: str,
        writes: Sequence[CheckpointWrite],
    ) -> None: ...

    async def checkpoint(
        self, owner: str, key: str, ns: str, checkpoint_id: str | None
    ) -> tuple[Checkpoint, list[CheckpointWrite]] | None: ...

    async def checkpoints(
        self,
        owner: str,
        key: str | None,
        ns: str | None,
        *,
        after: Checkpoint | None = None,
        older_than: str | None = None,
        limit: int = 100,
    ) -> list[tuple[Checkpoint, list[CheckpointWrite]]]: ...

    async def copy_checkpoints(self, owner: str, key: str, target: str, node_id: str) -> None: ...

    async def delete_checkpoints(self, owner: str, key: str, doomed: Sequence[tuple[str, str]]) -> int: ...

    async def delete_checkpoints_of_runs(self, owner: str, runs: Sequence[str]) -> int: ...
