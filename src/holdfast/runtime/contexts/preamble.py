"""Adds instructions at the start of a turn: memories, and background processes that have ended.

Memories are of earlier sessions: the conversation's, or all of its owner's, as many as fit. They are read for
each turn. So a memory that arrives late is used from the next turn on, and a deleted one no longer.

The end of a process is reported only to the session that started it, or to the one that continues its
context. The person is informed by a notice, whatever became of the session. Only people and clients begin
turns.
"""

from __future__ import annotations

import logging

from ...domain.ids import storable
from ...domain.memories import recalled_text
from ...domain.messages import instruction
from ...domain.processes import Process
from ...domain.sessions import Edge, Session
from ...domain.turns import TurnBegun
from ...domain.value import Value
from ...errors import Conflict, NotFound
from ...store.store import Store
from ..processes.launcher import ProcessReader

log = logging.getLogger(__name__)

LAST_LINES = 20
LONGEST = 4000
"""Characters of a process's last output."""
ROOM = 8000
"""Characters of the last output of all of them together: no compaction can shorten it."""
MOST_PROCESSES = 50
MOST_MEMORIES = 200


class Recall(Value, frozen=True):
    """Which memories are included, and how many."""

    whole_owner: bool = False
    characters: int = 4000


class TurnPreamble:
    """Without a `recall`, memories are not included."""

    def __init__(self, store: Store, processes: ProcessReader, recall: Recall | None = None) -> None:
        self._store = store
        self._processes = processes
        self._recall = recall

    async def of(self, begun: TurnBegun) -> tuple[bytes, ...]:
        """Instructions for this turn; empty if there is nothing to report."""
        remembered = await self._memories(begun) if self._recall is not None else ()
        return (*remembered, *await self._processes_of(begun)) if begun.notices else remembered

    async def _memories(self, begun: TurnBegun) -> tuple[bytes, ...]:
        recall, session = self._recall, begun.session
        assert recall is not None
        if not (begun.may_have_memories or recall.whole_owner):
            return ()
        page = await self._store.memories(
            session.owner,
            conversation_id=None if recall.whole_owner else session.conversation_id,
            limit=MOST_MEMORIES,
        )
        text = recalled_text(page.items, recall.characters)
        return () if text is None else (instruction(text),)

    async def _processes_of(self, begun: TurnBegun) -> tuple[bytes, ...]:
        concerned = [notice for notice in begun.notices if notice.process_id is not None]
        ended, room = [], ROOM
        for notice in reversed(concerned[-MOST_PROCESSES:]):  # the newest get the room that there is
            assert notice.process_id is not None
            try:
                process = await self._store.process(begun.turn.owner, notice.process_id)
            except NotFound:  # ended so long ago that its row was deleted
                continue
            if _concerns(process, begun.session):
                said = await self._last_words(process, min(room, LONGEST)) if room else ""
                room -= len(said)
                ended.append(f"{notice.text} Its last output:\n{said}" if said else notice.text)
        if not ended:
            return ()
        if (more := len(concerned) - MOST_PROCESSES) > 0:
            ended.append(f"[{more} more, earlier]")
        return (instruction("\n".join(("[Background processes that have ended since:]", *reversed(ended)))),)

    async def _last_words(self, process: Process, most: int) -> str:
        try:
            part = await self._processes.log(process.owner, process.id, tail=LAST_LINES)
        except (Conflict, OSError) as error:  # it was only watched, or ran on another machine
            log.debug("the preamble for %s could not be read: %s", process.id, error)
            return ""
        return storable(part.text.strip())[-most:]


def _concerns(process: Process, session: Session) -> bool:
    if process.session_id == session.id:
        return True
    return session.edge in (Edge.RESUME, Edge.COMPACTION) and session.parent_id == process.session_id
