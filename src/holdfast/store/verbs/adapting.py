"""Stores of frameworks: messages outside of turns, items, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ...domain.checkpoints import Checkpoint, CheckpointWrite, NewCheckpoint
from ...domain.conversations import Address
from ...domain.items import Item, ItemPlace, PutItem
from ...domain.messages import Message, NewMessage
from ...domain.session_messages import InContext, Named
from .. import checkpoints, items, session_messages
from .base import Verbs


class AdaptingVerbs(Verbs):
    """Implements `store.promises.adapting.Adapts`."""

    async def in_context(self, owner: str, address: Address, *, limit: int | None = None) -> InContext | None:
        return await self._read(lambda tx: session_messages.in_context(tx, owner, address, limit))

    async def append_named(
        self, owner: str, conversation_id: str, node_id: str, messages: Sequence[Named]
    ) -> int:
        return await self._write(
            lambda tx: session_messages.append(tx, owner, conversation_id, node_id, messages)
        )

    async def remove_last(self, owner: str, conversation_id: str, count: int) -> list[Message]:
        return await self._write(lambda tx: session_messages.remove_last(tx, owner, conversation_id, count))

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
    ) -> int:
        return await self._write(
            lambda tx: session_messages.replace(
                tx, owner, conversation_id, node_id, since, messages, last_seq, also
            )
        )

    async def state(self, owner: str, conversation_id: str) -> dict[str, Any]:
        return await self._read(lambda tx: items.state(tx, owner, conversation_id))

    async def update_state(
        self, owner: str, conversation_id: str, changes: Mapping[str, Any], removed: Sequence[str] = ()
    ) -> dict[str, Any]:
        return await self._write(lambda tx: items.update_state(tx, owner, conversation_id, changes, removed))

    async def put_items(self, owner: str, changes: Sequence[PutItem]) -> None:
        await self._write(lambda tx: items.put(tx, owner, changes))

    async def append_with_items(
        self,
        owner: str,
        conversation_id: str,
        node_id: str,
        messages: Sequence[Named],
        places: Sequence[ItemPlace],
        fold: Callable[[Sequence[Item | None]], Sequence[PutItem]],
    ) -> int:
        return await self._write(
            lambda tx: items.append_with_items(tx, owner, conversation_id, node_id, messages, places, fold)
        )

    async def item(self, owner: str, space: str, namespace: str, name: str) -> Item | None:
        return await self._read(lambda tx: items.get(tx, owner, space, namespace, name))

    async def refresh_items(self, owner: str, space: str, names: Sequence[tuple[str, str]]) -> None:
        await self._write(lambda tx: items.refresh(tx, owner, space, names))

    async def items_under(self, owner: str, space: str, prefix: str) -> list[Item]:
        return await self._read(lambda tx: items.under(tx, owner, space, prefix))

    async def item_namespaces(self, owner: str, space: str) -> list[str]:
        return await self._read(lambda tx: items.namespaces(tx, owner, space))

    async def drop_expired_items(self, limit: int) -> int:
        return await self._write(lambda tx: items.drop_expired(tx, limit))

    async def put_checkpoint(
        self,
        owner: str,
        key: str,
        source: str,
        node_id: str,
        checkpoint: NewCheckpoint,
        messages: Sequence[Named] = (),
    ) -> None:
        await self._write(lambda tx: checkpoints.put(tx, owner, key, source, node_id, checkpoint, messages))

    async def put_checkpoint_writes(
        self,
        owner: str,
        key: str,
        source: str,
        ns: str,
        checkpoint_id: str,
        writes: Sequence[CheckpointWrite],
    ) -> None:
        await self._write(
            lambda tx: checkpoints.put_writes(tx, owner, key, source, ns, checkpoint_id, writes)
        )

    async def checkpoint(
        self, owner: str, key: str, ns: str, checkpoint_id: str | None
    ) -> tuple[Checkpoint, list[CheckpointWrite]] | None:
        return await self._read(lambda tx: checkpoints.get(tx, owner, key, ns, checkpoint_id))

    async def checkpoints(
        self,
        owner: str,
        key: str | None,
        ns: str | None,
        *,
        after: Checkpoint | None = None,
        older_than: str | None = None,
        limit: int = 100,
    ) -> list[tuple[Checkpoint, list[CheckpointWrite]]]:
        return await self._read(lambda tx: checkpoints.page(tx, owner, key, ns, after, older_than, limit))

    async def copy_checkpoints(self, owner: str, key: str, target: str, node_id: str) -> None:
        await self._write(lambda tx: checkpoints.copy(tx, owner, key, target, node_id))

    async def delete_checkpoints(self, owner: str, key: str, doomed: Sequence[tuple[str, str]]) -> int:
        return await self._write(lambda tx: checkpoints.delete(tx, owner, key, doomed))

    async def delete_checkpoints_of_runs(self, owner: str, runs: Sequence[str]) -> int:
        return await self._write(lambda tx: checkpoints.delete_runs(tx, owner, runs))
