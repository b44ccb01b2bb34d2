"""What a home's agent was to remember, as memories of conversations.

Hermes tells it to every session of the home. Here a memory belongs to a conversation, so each that is given
it gets one of its own. A file that has not changed since the last time is not remembered again, also if what
came of it was forgotten here.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ..domain.conversations import Address
from ..domain.ids import new_id
from ..domain.memories import MemoryOrigin
from ..domain.records import Mark, MemoryRecord, Part, Stand
from ..store.base import Store
from .writing import ORIGIN

LONGEST = 15_000


async def remember(store: Store, owner: str, conversation_id: str, file: str, entries: Sequence[str]) -> int:
    """Remember the entries of a file with this conversation; how many memories that made. Conflict if the
    conversation is being spoken in, NotFound if it is gone."""
    pieces = pieces_of(entries)
    name, print_ = f"memories/{file} for {conversation_id}", zlib.crc32("\n".join(pieces).encode())
    known = (await store.imported(owner, ORIGIN, [name])).get(name)
    if known is not None and known.last_row == print_:
        return 0
    record, _ = await store.record(owner, conversation_id)
    tip = (await store.resolve(owner, Address(id=conversation_id))).tip
    made_by, now = MemoryOrigin.PERSON.value, store.now()
    memories = tuple(MemoryRecord(new_id("mem"), None, made_by, piece, now) for piece in pieces)
    stand = Stand(record.last_seq, tip.id)
    await store.import_part(Part(ORIGIN, record, memories, (Mark(name, tip.id, print_),), stand))
    return len(memories)


def pieces_of(entries: Sequence[str]) -> list[str]:
    """Entries put together, into as few texts as there may be."""
    pieces: list[str] = []
    for entry in entries:
        for start in range(0, len(entry), LONGEST):
            piece = entry[start : start + LONGEST]
            if pieces and len(pieces[-1]) + len(piece) < LONGEST:
                pieces[-1] = f"{pieces[-1]}\n{piece}"
            else:
                pieces.append(piece)
    return pieces
