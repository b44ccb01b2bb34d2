"""Shows what happens to the conversation while the prompt waits: resets, compactions, processes, other turns.

Subscribes to the conversation's events and prints those that concern the person above the prompt. Events
caused by this chat are not shown again. A notice is shown once; its row stays undelivered until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ..cli.format import Styled, count
from ..cli.session_views import show_messages
from ..domain.events import Event, EventType
from ..domain.processes import ProcessState, shown
from ..domain.sessions import EndReason
from ..errors import NotFound, StoreError
from .state import ChatState

log = logging.getLogger(__name__)

TURN_ENDS = {
    EventType.TURN_COMPLETED,
    EventType.TURN_INTERRUPTED,
    EventType.TURN_FAILED,
    EventType.TURN_CANCELLED,
}
TOLD = {
    *TURN_ENDS,
    EventType.SESSION_ENDED,
    EventType.SESSION_RESET,
    EventType.RESET_DEFERRED,
    EventType.COMPACTION_COMPLETED,
    EventType.COMPACTION_FAILED,
    EventType.PROCESS_STARTED,
    EventType.PROCESS_ENDED,
    EventType.PROCESS_LOST,
    EventType.CONVERSATION_DELETED,
}
ENDINGS: Mapping[str, str] = {
    EndReason.REAPED: (
        "This chat was not responding and its session was ended; your next message continues it."
    ),
    EndReason.CLOSED: "This session was ended elsewhere; your next message continues the conversation.",
    EndReason.COMPLETED: "This session was ended elsewhere; your next message continues the conversation.",
    EndReason.NEW: "This session was ended elsewhere; your next message starts a new one.",
}


class LiveUpdates:
    """Use as `async with LiveUpdates(state) as updates`, and call `show` between replies."""

    def __init__(self, state: ChatState) -> None:
        self._state = state
        self._pending: list[Event] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LiveUpdates:
        _, newest = await self._state.node.event_bounds()
        self._task = asyncio.create_task(self._follow(newest))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(ended, Exception):
            log.error("live updates stopped with an error: %r", ended)

    async def show(self) -> None:
        """Show the events and notices since the last call."""
        state = self._state
        pending, self._pending = self._pending, []
        for event in pending:
            if event.conversation_id == state.conversation_id and not self._is_own(event):
                await self._show(event)
        for notice in await state.node.undelivered(state.conversation_id):
            if notice.id not in state.shown_notices:
                state.say(Styled(notice.text, "yellow"))
                state.shown_notices[notice.id] = notice.process_id is not None

    async def _follow(self, after: int) -> None:
        """Collect this conversation's events; retry after store errors."""
        state = self._state
        while True:
            try:
                async for event in state.node.events(after, follow=True):
                    after = event.id
                    if event.type in TOLD and event.conversation_id == state.conversation_id:
                        self._pending.append(event)
                        if not self._is_own(event):
                            await state.terminal.lines.print_above(self.show)
            except StoreError:
                await asyncio.sleep(1.0)  # not reported here: the next message reports the error

    def _is_own(self, event: Event) -> bool:
        if event.type in TURN_ENDS:
            return event.turn_id in self._state.own_turns
        if event.type == EventType.COMPACTION_COMPLETED:
            return event.data.get("parent") in self._state.own_ends
        own_act = event.type in (EventType.SESSION_ENDED, EventType.COMPACTION_FAILED)
        return own_act and event.session_id in self._state.own_ends

    async def _show(self, event: Event) -> None:
        state, data = self._state, event.data
        match event.type:
            case EventType.CONVERSATION_DELETED:
                state.say(Styled("This conversation was deleted elsewhere. /new starts another.", "yellow"))
            case EventType.SESSION_ENDED if (reason := str(data.get("reason"))) in ENDINGS:
                state.say(Styled(ENDINGS[reason], "yellow"))
            case EventType.RESET_DEFERRED:
                assert event.session_id is not None
                found = await state.node.why(state.owner, event.session_id)
                state.say(Styled(found.sentence, "yellow"))
            case EventType.COMPACTION_COMPLETED:
                left = count(int(data.get("messages") or 0), "older message")
                state.say(f"Compacted: a summary replaces {left} in the context; they stay readable.")
            case EventType.COMPACTION_FAILED:
                state.say(f"Could not compact ({data.get('reason')}); nothing was changed.")
            case EventType.PROCESS_STARTED | EventType.PROCESS_ENDED | EventType.PROCESS_LOST:
                await self._show_process(event)
            case each if each in TURN_ENDS:
                await self._show_turn(event)

    async def _show_process(self, event: Event) -> None:
        name = str(event.data.get("process"))
        try:
            process = await self._state.node.process(self._state.owner, name)
        except NotFound:
            return  # the process row has already been pruned
        if event.type == EventType.PROCESS_STARTED:
            self._state.say(f"Running in the background: {shown(process.command)} ({name}); /ps lists all.")
        elif process.state is ProcessState.STOPPED:  # any other end has a notice
            self._state.say(f"Stopped: {shown(process.command)} ({name}).")

    async def _show_turn(self, event: Event) -> None:
        """Show the messages of a turn that ran elsewhere in this conversation."""
        state = self._state
        assert event.turn_id is not None
        said = [message for message in await state.node.turn_messages(event.turn_id) if not message.inner]
        if said:
            state.say("Messages from elsewhere:")
            show_messages(said, state.node.now())
