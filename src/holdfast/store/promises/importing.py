"""Carrying conversations from one store to another, and taking over what was kept elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ...domain.records import ConversationRecord, Hanging, Imported, MessageRecord, Part


class Carries(Protocol):
    """Gives conversations away whole, and takes them over."""

    async def conversation_ids(
        self, owner: str | None, *, after: int = 0, limit: int = 100
    ) -> list[tuple[int, str]]:
        """Conversations in the order in which they began, behind the number `after`: numbers and ids."""
        ...

    async def record(
        self, owner: str | None, conversation_id: str
    ) -> tuple[ConversationRecord, Sequence[Hanging]]:
        """A conversation and all that hangs on it but its messages, as of one moment. A turn that is running
        is given as interrupted: a copy of it will not go on."""
        ...

    async def message_records(
        self, conversation_id: str, *, first: int, last: int, limit: int = 500
    ) -> list[MessageRecord]:
        """Its messages from number `first` to `last`, with all they carry; deleted ones without text."""
        ...

    async def imported(self, owner: str, origin: str, names: Sequence[str]) -> Mapping[str, Imported]:
        """What is known of these names of things elsewhere, as far as they were taken over."""
        ...

    async def import_part(self, part: Part) -> None:
        """Take over a conversation, or what is new of it, with its ids, numbers, times and marks.

        Nobody is told of it as of something that happens now: nothing is reset, flushed or run. Conflict,
        having written nothing, if its id, key or a name of it is taken by another conversation, or if the
        conversation does not stand where the part goes on.
        """
        ...

    async def messages_from(self, conversation_id: str, origins: Collection[str]) -> Mapping[str, int]:
        """Of these places elsewhere, the numbers of the messages that came from there and still count."""
        ...

    async def set_key(
        self, owner: str, conversation_id: str, key: str, *, instead_of: str | None = None
    ) -> None:
        """Let this key lead to a conversation that has none. Conflict, having changed nothing, if it has
        another, or if the key leads elsewhere; unless that is `instead_of`, which loses it."""
        ...
