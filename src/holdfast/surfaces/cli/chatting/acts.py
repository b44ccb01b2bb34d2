"""What the chat's commands do: each what its namesake on the command line would do to this conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ....domain.sessions import EndReason
from ....errors import NotFound
from ....runtime.reasons import why_of
from ....runtime.states import states_of
from ....store.base import SessionFilter
from .. import session_views
from ..output import Styled, say
from ..processes import show_processes
from .answering import Answering, Ended
from .room import Room, enter
from .slash import MEANINGS, Slash, Wanted

RECENT = 10


class Acts:
    def __init__(self, room: Room, answering: Answering) -> None:
        self._room = room
        self._answering = answering
        self._acts: dict[Slash, Callable[[str], Awaitable[Ended | None]]] = {
            Slash.NEW: self._new,
            Slash.RESUME: self._resume,
            Slash.RETRY: self._retry,
            Slash.FORK: self._fork,
            Slash.COMPACT: self._compact,
            Slash.WHY: self._why,
            Slash.PS: self._ps,
            Slash.TITLE: self._title,
            Slash.HELP: self._help,
        }

    async def do(self, wanted: Wanted) -> Ended:
        """Raises HoldfastError, having changed nothing, if it cannot be done."""
        return await self._acts[wanted.slash](wanted.argument) or Ended(True)

    async def _new(self, _: str) -> None:
        room = self._room
        try:
            tip = await room.tip()
        except NotFound:  # somebody has deleted the conversation
            room.live = await room.node.session(room.live.key)
            room.tell(f"Begun in {room.live.id}.")
            return
        if not tip.ended:
            room.own_ends.add(tip.id)
            await room.node.leases.when_free(
                lambda: room.node.store.end_session(room.owner, tip.id, EndReason.NEW), self._patience
            )
        room.live = await room.node.session(id=room.conversation_id)
        room.tell(f"Begun afresh in {room.live.id}; {tip.id} stays readable, and /resume {tip.id} goes back.")

    async def _resume(self, name: str) -> None:
        if not name:
            await self._list()
            return
        room = self._room
        before = (await room.tip()).id
        room.live = await enter(room.node, name, self._patience)
        line = await room.node.store.line(room.owner, room.conversation_id)
        room.own_ends.update(session.id for session in line if session.ended)
        named = f" ({room.live.key})" if room.live.key else ""
        room.tell(f"{'You are' if room.live.id == before else 'Now'} in {room.live.id}{named}.")

    async def _list(self) -> None:
        room = self._room
        page = await room.node.store.sessions(SessionFilter(room.owner), limit=RECENT)
        states = await states_of(room.node.store, page.items)
        session_views.show_list(page.items, states, room.node.store.now(), with_owner=False)
        room.tell("/resume ID_OR_KEY goes on with one of them.")

    async def _retry(self, _: str) -> Ended:
        return await self._answering.retry()

    async def _fork(self, key: str) -> None:
        room = self._room
        tip, before = await room.tip(), room.conversation_id
        forked = await room.node.keeper.as_living(
            lambda: room.node.store.fork(
                room.owner, tip.id, room.node.node_id, key=key or None, attached=True
            )
        )
        room.live = await room.node.session(id=forked.conversation_id)
        room.tell(f"Now in {forked.id}, a copy; /resume {before} goes back.")

    async def _compact(self, _: str) -> None:
        room = self._room
        before = (await room.tip()).id
        room.own_ends.add(before)
        room.tell("Summarising what is older; Ctrl-C gives it up …")
        compacting = asyncio.ensure_future(room.live.compact())
        room.desk.on_interrupt = compacting.cancel
        try:
            await compacting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the chat itself is to end
            room.tell("Given up: everything stays as it was.")
            return
        finally:
            room.desk.on_interrupt = None
        room.tell(f"Compacted: goes on in {room.live.id}; {before} leads there, and stays readable.")

    async def _why(self, _: str) -> None:
        room = self._room
        found = await why_of(room.node.store, room.owner, (await room.tip()).id)
        say(found.sentence)

    async def _ps(self, _: str) -> None:
        room = self._room
        found = await room.live.processes()
        if found:
            show_processes(room.invocation, found, room.node.store.now())
        else:
            room.tell("This conversation has started no process.")

    async def _title(self, title: str) -> None:
        room = self._room
        if title:
            await room.node.store.set_title(room.owner, room.conversation_id, title)
            room.tell(f"This conversation is called {title!r} now.")
        else:
            named = (await room.tip()).title
            room.tell(
                f"This conversation is called {named!r}." if named else "This conversation has no title."
            )

    async def _help(self, _: str) -> None:
        for slash, (takes, meaning) in MEANINGS.items():
            say(Styled(f"  /{slash} {takes}".ljust(24), "bold"), meaning)
        self._room.tell(
            "Ctrl-C interrupts a reply and keeps what it said. A line that ends in \\ goes on below."
        )

    @property
    def _patience(self) -> float:
        return self._room.invocation.settings.server.busy_wait_seconds
