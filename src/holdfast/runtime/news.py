"""What the model is told at the beginning of a turn: background processes that have ended since.

Only the session that started a process hears of it, or the one that goes on with that session's context. The
person is told by a notice, whatever has become of the session. Nothing begins a turn but people and clients.
"""

from __future__ import annotations

import logging

from ..domain.messages import instruction
from ..domain.names import storable
from ..domain.processes import Process
from ..domain.sessions import Edge, Session
from ..domain.turns import TurnBegun
from ..errors import Conflict, NotFound
from ..store.base import Store
from .process_reader import ProcessReader

log = logging.getLogger(__name__)

LAST_LINES = 20
LONGEST = 4000
"""Characters of what a process said last."""


class News:
    def __init__(self, store: Store, processes: ProcessReader) -> None:
        self._store = store
        self._processes = processes

    async def of(self, begun: TurnBegun) -> tuple[bytes, ...]:
        """Instructions for this turn, if there is anything new."""
        told = []
        for notice in begun.notices:
            if notice.process_id is not None:
                try:
                    process = await self._store.process(begun.turn.owner, notice.process_id)
                except NotFound:  # so long ago that it has been forgotten
                    continue
                if _concerns(process, begun.session):
                    told.append(f"{notice.text}{await self._last_words(process)}")
        if not told:
            return ()
        return (instruction("\n".join(("[Background processes that have ended since:]", *told))),)

    async def _last_words(self, process: Process) -> str:
        try:
            part = await self._processes.log(process.owner, process.id, tail=LAST_LINES)
        except (Conflict, OSError) as error:  # it was only watched, or ran on another machine
            log.debug("nothing can be told of what %s said: %s", process.id, error)
            return ""
        said = storable(part.text.strip())[-LONGEST:]
        return f" It said last:\n{said}" if said else ""


def _concerns(process: Process, session: Session) -> bool:
    if process.session_id == session.id:
        return True
    return session.edge in (Edge.RESUME, Edge.COMPACTION) and session.parent_id == process.session_id
