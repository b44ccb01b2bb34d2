"""`terminal`: a shell command on the server's machine, with all the rights of the server's user.

It is no sandbox. In the foreground it has a time limit, and an end of its output that always fits; in the
background it is a process of the session, which everybody can see and which outlives the turn and the server.
Nothing of holdfast's own is in its environment, nor the keys of the server; they may still be in files that
its user can read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...domain.keys import TERMINAL, check_right
from ...domain.processes import Process, check_command
from ...errors import BadInput
from ..supervisor import Supervisor
from .base import LONGEST_OUTPUT, Arguments, ToolCall, function, shortened
from .commands import Finished, run_command

SECONDS = 120.0
MOST_SECONDS = 600.0
FIRST_LOOK_SECONDS = 0.3
"""How long a background process is watched for an end that comes at once."""


class Terminal:
    name = TERMINAL

    def __init__(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        self._supervisor = supervisor
        self._environment = environment

    @property
    def schema(self) -> dict[str, Any]:
        return function(
            self.name,
            "Run a shell command and get its output and exit code. Each call is a new shell without input. "
            "What should go on running, such as a server or a long build, needs background=true; the result "
            "is a process id for the process tool.",
            ("command",),
            command={"type": "string", "description": "For /bin/sh."},
            background={"type": "boolean", "description": "Start it and return at once.", "default": False},
            cwd={"type": "string", "description": "The directory to run it in."},
            timeout_seconds={
                "type": "number",
                "description": f"Foreground only; {SECONDS:g} unless given, {MOST_SECONDS:g} at most.",
            },
        )

    async def run(self, call: ToolCall) -> str:
        check_right(call.rights, TERMINAL, "running a command")
        arguments = Arguments(call)
        command = check_command(arguments.text("command"))
        cwd = directory(arguments.maybe_text("cwd"))
        if arguments.flag("background"):
            return await self._start(call, command, cwd)
        seconds = arguments.number("timeout_seconds", SECONDS, 0.1, MOST_SECONDS)
        return told(await run_command(command, cwd, self._environment, seconds, LONGEST_OUTPUT), seconds)

    async def _start(self, call: ToolCall, command: str, cwd: str) -> str:
        started = await self._supervisor.start(call.owner, call.session_id, command, cwd, stdin=True)
        seen = await self._supervisor.wait(call.owner, started.id, FIRST_LOOK_SECONDS)
        if not seen.finished:
            return f"[Started in the background as {started.id}.]"
        said = (await self._supervisor.log(call.owner, started.id)).text
        return f"{shortened(said)}\n[{started.id} has ended already: {ending(seen)}]".lstrip()


def directory(cwd: str | None) -> str:
    """Where to run something: there, else where the server is."""
    place = os.path.abspath(os.path.expanduser(cwd)) if cwd else os.getcwd()
    if not os.path.isdir(place):
        raise BadInput(f"there is no directory {place!r}")
    return place


def told(finished: Finished, seconds: float) -> str:
    """The end of a foreground command, for the model."""
    said = finished.output.rstrip("\n") or "[no output]"
    if finished.timed_out:
        why = f"it ran longer than {seconds:g} s and was stopped; what may take longer needs background=true"
        if finished.surviving:
            why += f". {finished.surviving} of the processes it started could not be stopped and still run"
        return f"{said}\n[{why}]"
    lines = [said, f"[{code(finished.exit_code)}]"]
    if finished.left_behind:
        lines.append(
            f"[Processes it had left running have been stopped ({finished.left_behind}); what should go on "
            "running needs background=true]"
        )
    if finished.detached:
        lines.append(
            f"[{finished.detached} of the processes it started have detached themselves and run on; "
            "holdfast does not look after them]"
        )
    return "\n".join(lines)


def code(exit_code: int) -> str:
    return f"exit code {exit_code}" if exit_code >= 0 else f"ended by signal {-exit_code}"


def ending(process: Process) -> str:
    return process.state.value if process.exit_code is None else code(process.exit_code)
