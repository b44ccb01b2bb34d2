"""`process`: lets the model act on the background processes of its own conversation only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ...domain.api_keys import TERMINAL, check_right
from ...domain.processes import Process, is_active, label_of, pinned_until, span
from ...errors import BadInput, NotFound
from ...store.store import Store
from ..processes.supervisor import Supervisor
from .terminal import ending
from .toolbox import Arguments, ToolCall, function, shortened

LINES = 200
MOST_LINES = 2000
POLLED_LINES = 20
WAIT_SECONDS = 60.0
MOST_WAIT_SECONDS = 600.0
MOST_LISTED = 50
PIN_HOURS = 24.0
MOST_LOOKS, LOOK_SECONDS = 10, 0.05


class ProcessTool:
    name = "process"
    idempotent = False

    def __init__(self, store: Store, supervisor: Supervisor) -> None:
        self._store = store
        self._supervisor = supervisor
        self._acts: Mapping[str, Callable[[ToolCall, Arguments], Awaitable[str]]] = {
            "list": self._list,
            "poll": self._poll,
            "log": self._log,
            "wait": self._wait,
            "write": self._write,
            "stop": self._stop,
            "pin": self._pin,
        }

    @property
    def schema(self) -> dict[str, Any]:
        return function(
            self.name,
            "Manage background processes of this conversation. list: all of them. poll: state and last "
            "output of one. log: more of its output. wait: until it has ended or timeout_seconds are over. "
            "write: give it text as input (a line needs its newline); only where you also have the terminal "
            "tool. stop: end it. pin: let it keep this conversation from being reset for some hours, 24 at "
            "most; 0 unpins.",
            ("action",),
            action={"type": "string", "enum": list(self._acts)},
            id={"type": "string", "description": "The process, for every action but list."},
            text={"type": "string", "description": "write: what to give it."},
            lines={
                "type": "integer",
                "description": f"log: how many of the last lines; {LINES} unless given.",
            },
            timeout_seconds={"type": "number", "description": f"wait: {WAIT_SECONDS:g} unless given."},
            hours={"type": "number", "description": f"pin: {PIN_HOURS:g} unless given."},
        )

    async def run(self, call: ToolCall) -> str:
        arguments = Arguments(call)
        action = arguments.text("action")
        act = self._acts.get(action)
        if act is None:
            raise BadInput(f"there is no action {action!r:.80}; the actions are {', '.join(self._acts)}")
        return await act(call, arguments)

    async def _found(self, call: ToolCall, arguments: Arguments) -> Process:
        """The named process of the caller's conversation, as it is right now."""
        process_id = arguments.text("id")
        try:
            process = await self._store.process(call.owner, process_id)
        except NotFound:
            process = None
        if process is None or process.conversation_id != call.conversation_id:
            raise BadInput(f"this conversation has no process {process_id!r:.80}; list shows those it has")
        return await self._settled(process)

    async def _settled(self, process: Process) -> Process:
        """The process as it is right now. If its command has just ended, its descendants get a moment to end
        too."""
        for _ in range(MOST_LOOKS):
            process = await self._supervisor.seen(process)
            if process.ended or not process.finished:
                break
            await asyncio.sleep(LOOK_SECONDS)
        return process

    async def _list(self, call: ToolCall, arguments: Arguments) -> str:
        page = await self._store.processes(
            call.owner, conversation_id=call.conversation_id, limit=MOST_LISTED
        )
        lines = [self._line(each) for each in await asyncio.gather(*map(self._settled, page.items))]
        if page.has_more:
            lines.append(f"[only the newest {MOST_LISTED} are listed]")
        return "\n".join(lines) or "[This conversation has started no background process.]"

    async def _poll(self, call: ToolCall, arguments: Arguments) -> str:
        return await self._state(call, await self._found(call, arguments))

    async def _log(self, call: ToolCall, arguments: Arguments) -> str:
        process = await self._found(call, arguments)
        lines = int(arguments.number("lines", LINES, 1, MOST_LINES))
        part = await self._supervisor.log(call.owner, process.id, tail=lines)
        return shortened(part.text) or "[No output.]"

    async def _wait(self, call: ToolCall, arguments: Arguments) -> str:
        process = await self._found(call, arguments)
        seconds = arguments.number("timeout_seconds", WAIT_SECONDS, 0, MOST_WAIT_SECONDS)
        waited = await self._supervisor.wait(call.owner, process.id, seconds)
        return await self._state(call, await self._settled(waited))

    async def _write(self, call: ToolCall, arguments: Arguments) -> str:
        check_right(call.rights, TERMINAL, "writing to a process")  # it may be a shell
        process = await self._found(call, arguments)
        await self._supervisor.write(call.owner, process.id, arguments.text("text"))
        return "[Written.]"

    async def _stop(self, call: ToolCall, arguments: Arguments) -> str:
        process = await self._found(call, arguments)
        if process.ended:
            return f"[It has ended already: {ending(process)}.]"
        if process.watched:
            check_right(call.rights, TERMINAL, "stopping a process that was started elsewhere")
        return self._line(await self._supervisor.stop(call.owner, process.id, "its agent stopped it"))

    async def _pin(self, call: ToolCall, arguments: Arguments) -> str:
        process = await self._found(call, arguments)
        hours = arguments.number("hours", PIN_HOURS, 0, PIN_HOURS)
        until = pinned_until(hours, self._store.now(), by_agent=True)
        return self._line(await self._store.pin_process(call.owner, process.id, until))

    async def _state(self, call: ToolCall, process: Process) -> str:
        """Its state and its last output."""
        if process.watched:
            return self._line(process)
        part = await self._supervisor.log(call.owner, process.id, tail=POLLED_LINES)
        return f"{self._line(process)}\n{shortened(part.text)}".rstrip()

    def _line(self, process: Process) -> str:
        """One process on one line."""
        now = self._store.now()
        facts = [ending(process) if process.finished else process.state.value]
        if not process.ended:
            age = f"for {span(now - process.started_at)}"
            facts.append(f"what it started runs {age}" if process.finished else age)
            if is_active(process, now, self._supervisor.limits):
                facts.append(process.activity or "active")
        if process.pinned_until is not None and not process.ended:
            facts.append(f"pinned until {process.pinned_until:%Y-%m-%d %H:%M} UTC")
        return f"{process.id} ({', '.join(facts)}): {label_of(process)}"
