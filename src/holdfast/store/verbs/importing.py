"""Export and import of whole conversations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...domain.records import ConversationRecord, Hanging, Imported, MessageRecord, Part
from .. import exports, imports
from .base import Verbs


class ImportingVerbs(Verbs):
    """Implements `store.promises.importing.Carries`."""

    async def conversation_ids(
        self, owner: str | None, *, after: int = 0, limit: int = 100
    ) -> list[tuple[int, str]]:
        return await self._read(lambda tx: exports.conversation_ids(tx, owner, after, limit))

    async def record(
        self, owner: str | None, conversation_id: str
    ) -> tuple[ConversationRecord, Sequence[Hanging]]:
        return await self._read(lambda tx: exports.record(tx, owner, conversation_id))

    async def message_records(
        self, conversation_id: str, *, first: int, last: int, limit: int = 500
    ) -> list[MessageRecord]:
        return await self._read(lambda tx: exports.message_records(tx, conversation_id, first, last, limit))

    async def imported(self, owner: str, origin: str, names: Sequence[str]) -> Mapping[str, Imported]:
        return await self._read(lambda tx: imports.imported(tx, owner, origin, names))

    async def import_part(self, part: Part) -> None:
        await self._write(lambda tx: imports.import_part(tx, part))
        self.start_indexing()

    async def messages_from(self, conversation_id: str, origins: Collection[str]) -> Mapping[str, int]:
        return await self._read(lambda tx: imports.messages_from(tx, conversation_id, origins))

    async def set_key(
        self, owner: str, conversation_id: str, key: str, *, instead_of: str | None = None
    ) -> None:
        await self._write(lambda tx: imports.set_key(tx, owner, conversation_id, key, instead_of))
