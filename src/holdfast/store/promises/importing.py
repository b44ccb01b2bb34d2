"""Export and import of conversations, from another store or another program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ...domain.records import ConversationRecord, Hanging, Imported, MessageRecord, Part


class Carries(Protocol):
    """Exports and imports whole conversations."""

    async def conversation_ids(
        self, owner: str | None, *, after: int = 0, limit: int = 100
    ) -> list[tuple[int, str]]:
        """Conversations in the order in which they began, after the number `after`: numbers and ids."""
        ...

    async def record(
        self, owner: str | None, conversation_id: str
    ) -> tuple[ConversationRecord, Sequence[Hanging]]:
        """A conversation with everything but its messages, in one snapshot. A running turn is exported as
        interrupted, because its copy will not continue."""
        ...

    async def message_records(
        self, conversation_id: str, *, first: int, last: int, limit: int = 500
    ) -> list[MessageRecord]:
        """Its messages from seq `first` to `last`, with all their fields; deleted ones without text."""
        ...

    async def imported(self, owner: str, origin: str, names: Sequence[str]) -> Mapping[str, Imported]:
        """Import state of these names of the source, for those imported before."""
        ...

    async def import_part(self, part: Part) -> None:
        """Import a conversation, or what is new in it, with its ids, numbers, times and marks.

        Not published as current activity: nothing is reset, flushed or run. Conflict, having written nothing,
        if its id, key or an alias belongs to another conversation, or if the conversation is not at the
        version where the part continues.
        """
        ...

    async def messages_from(self, conversation_id: str, origins: Collection[str]) -> Mapping[str, int]:
        """By source position: the seqs of messages imported from there that are still valid."""
        ...

    async def set_key(
        self, owner: str, conversation_id: str, key: str, *, instead_of: str | None = None
    ) -> None:
        """Set the key of a conversation that has none. Conflict, having changed nothing, if it has another,
        or if the key belongs to another one; unless that is `instead_of`, which loses it."""
        ...
