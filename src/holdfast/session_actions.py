"""Actions on a session outside of its turns: why it is reset, memories, compaction, background processes.

A compaction and a process belong to the newest session of the conversation, whichever this object names.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .domain.compaction import Compacted
from .domain.context_size import Size
from .domain.conversations import Address
from .domain.memories import Memory
from .domain.processes import Process
from .domain.sessions import Session
from .domain.turns import Lease
from .domain.why import Why
from .errors import BadInput, NestedTurn
from .runtime.contexts.context_fitter import ContextFitter
from .runtime.processes.launcher import Command
from .runtime.states import why_of
from .session_messages import SessionMessages

MOST_MEMORIES = 100


class SessionActions(SessionMessages):
    """A part of `LiveSession`."""

    if TYPE_CHECKING:

        async def _going_on(self) -> Session: ...

    async def why(self) -> Why:
        """Whether and when this session is reset, by which rule, what defers it and until when. Changes
        nothing."""
        session = await self._going_on()
        return await why_of(self._services.store, self._services.owner, session.id)

    async def memories(self) -> list[Memory]:
        """Memories of earlier sessions of this conversation, newest first, at most 100. They are not part of
        `context`: put them into your instructions."""
        services = self._services
        page = await services.store.memories(
            services.owner, conversation_id=self.conversation_id, limit=MOST_MEMORIES
        )
        return list(page.items)

    async def remember(self, text: str) -> Memory:
        """Add a memory to this conversation: turns of the server are given it from now on. Raises BadInput
        and QuotaExceeded."""
        return await self._services.store.remember(self._services.owner, self.conversation_id, text)

    async def set_title(self, title: str) -> None:
        """Set the title of the conversation."""
        await self._services.store.set_title(self._services.owner, self.conversation_id, title)

    async def compact(self) -> None:
        """Replace the older messages by a summary, now. `id` becomes that of the session that continues.

        Needs a model (`holdfast.open(…, model=…)`). Nothing is deleted: all messages stay readable. Raises
        NotCompacted if there is nothing to gain, and ModelError if there is no summary; then nothing has
        changed. Refused within a turn of this session: a turn compacts its own context.
        """
        services = self._services
        if services.compactor is None:
            raise BadInput("compacting needs a model to ask: holdfast.open(…, model=my_model)")
        if own := services.gate.own_turn(self.conversation_id):
            raise NestedTurn(self.conversation_id, own)
        place = await services.store.resolve(services.owner, Address(id=self.conversation_id))
        self._session = await services.compactor.by_hand(place.tip, services.busy_wait_seconds)

    async def compact_if_full(self) -> None:
        """Start a compaction in the background if the context is over the threshold; without a model:
        nothing."""
        services = self._services
        if services.compactor is None:
            return
        session = await self._going_on()
        fitter = ContextFitter(services.compactor, _IdleHolder(session), None)
        fitter.set_prompt(await services.store.context(services.owner, session.id), Size())
        await fitter.compact_if_over_threshold(0)

    async def spawn(self, command: Command, cwd: str | Path | None = None, *, stdin: bool = False) -> Process:
        """Start a background command that belongs to this session, visible to all programs on the store.

        A string is run by the shell, a list is executed as it is. It outlives this program. `stdin`: input
        can be written.
        """
        services = self._services

        async def start() -> Process:
            return await services.supervisor.start(
                services.owner, await self._tip(), command, cwd, stdin=stdin
            )

        return await services.heartbeat.as_living(start)

    async def watch(self, pid: int) -> Process:
        """Supervise a process of this machine and user that was started elsewhere, as this session's."""
        services = self._services

        async def watch() -> Process:
            return await services.supervisor.watch(services.owner, await self._tip(), pid)

        return await services.heartbeat.as_living(watch)

    async def processes(self, *, running: bool | None = None) -> list[Process]:
        """Processes of this conversation's sessions, newest first; `running` selects only running or only
        ended ones."""
        services = self._services
        page = await services.store.processes(
            services.owner, conversation_id=self.conversation_id, limit=1000
        )
        seen = [await services.supervisor.seen(each) for each in page.items]
        return [each for each in seen if running is None or each.ended is not running]

    async def _tip(self) -> str:
        place = await self._services.store.resolve(self._services.owner, Address(id=self.conversation_id))
        return place.tip.id


@dataclass(frozen=True, slots=True)
class _IdleHolder:
    """A session without a turn, as the ContextFitter sees it: it only measures."""

    session: Session

    @property
    def lease(self) -> Lease:
        raise BadInput("a session without a turn holds no lease")

    def compacts(self) -> None:
        return None

    def moved(self, done: Compacted) -> None:
        return None
