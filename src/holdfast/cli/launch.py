"""`holdfast launch PROGRAM`: runs an agent program on the local server, for this run only.

The program gets an API key of scope `chat` that is revoked when it ends; it never sees the local admin key,
because the commands that it runs inherit its environment. Its exit code is ours, and signals reach it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..domain import api_keys
from ..domain.api_keys import ApiKey
from ..domain.ids import DEFAULT_OWNER
from ..domain.pages import SessionFilter
from ..domain.sessions import Edge, Session
from ..errors import BadSetting
from ..settings import home
from .context import AsJson, CommandContext, command
from .format import Cell, Column, complain, hint, print_json, remark, table
from .groups import app
from .keys import NEVER
from .programs import ALSO_KNOWN_AS, PROGRAMS, LocalEndpoint, Program, environment_of
from .shared_server import ServerInUse, get_json, server_in_use

if TYPE_CHECKING:
    from ..app import Operations

KEY_DAYS = 30.0
"""The run's key is revoked when the program ends. It expires if this process is killed before."""
MOST_SESSIONS = 100
"""How many recently active sessions are looked through for those of this run."""


@command(app, "launch", passes_on=True)
async def launch(
    invocation: CommandContext,
    program: Annotated[
        str | None, typer.Argument(metavar="PROGRAM", help=f"One of: {', '.join(PROGRAMS)}.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Passed to the program unchanged.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Continue this conversation, also one of another program."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model that it uses; default: the settings'.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the programs, and which are installed.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run Codex, Claude Code, opencode and others on the local server.

    The server is started if none runs, and stopped again after the last program. What the program needs is
    set for this run only: no file of yours is changed. Its sessions are kept under the names that the program
    shows; --store never keeps nothing. Options of this command are given before the program's name.

    \b
    Examples:
      holdfast launch codex
      holdfast launch claude -p "what is in this directory?"
      holdfast launch codex -- exec --json "run the tests"
      holdfast launch --resume 0199a213-81c0-7800-8aa1-bbab2a035a53 claude
      holdfast launch --list --json
    """
    if listed:
        _list(as_json)
        return 0
    if program is None:
        invocation.wrong_usage(f"name a program: {', '.join(PROGRAMS)}; `holdfast launch --list` shows them")
    chosen = PROGRAMS.get(ALSO_KNOWN_AS.get(program, program))
    if chosen is None:
        invocation.wrong_usage(f"there is no program {program!r}; the programs are {', '.join(PROGRAMS)}")
    if as_json:
        invocation.wrong_usage("--json is for --list; after the program's name it is passed to the program")
    keeps = invocation.store_url != NEVER
    if not keeps:  # the word names no store: it is about the run's key
        invocation = replace(invocation, store_url=None)
    if invocation.of_everybody:
        invocation.wrong_usage("a program acts as one owner; name it with --owner NAME")
    words = list(arguments or ())
    if words and words[0] == "--":
        del words[0]
    path = shutil.which(chosen.command)
    if path is None:
        complain(f"{chosen.command} is not installed", f"Install {chosen.title} with `{chosen.install}`")
        return 1
    return await _ProgramRun(invocation, chosen, path, keeps).run(words, resume, model)


def _list(as_json: bool) -> None:
    found = [(each, shutil.which(each.command)) for each in PROGRAMS.values()]
    if as_json:
        from ..server import objects

        print_json(
            objects.listed(
                [
                    {
                        "id": each.name,
                        "object": "program",
                        "name": each.title,
                        "command": each.command,
                        "installed": path is not None,
                        "path": path,
                        "install": each.install,
                    }
                    for each, path in found
                ]
            )
        )
        return
    rows: list[list[Cell]] = [
        [each.name, each.title, path or f"not installed: {each.install}"] for each, path in found
    ]
    table([Column("launch"), Column("program"), Column("command")], rows)


class _ProgramRun:
    """One run of one program."""

    def __init__(self, invocation: CommandContext, program: Program, path: str, keeps: bool) -> None:
        self._invocation = invocation
        self._program = program
        self._path = path
        self._keeps = keeps
        self._owner = invocation.owner or DEFAULT_OWNER

    async def run(self, words: Sequence[str], resume: str | None, model: str | None) -> int:
        """Returns the program's exit code; 128 + n if signal n killed it."""
        invocation = self._invocation
        resumed: str | None = None
        async with invocation.making() as opened:
            if resume is not None:
                resumed = (await opened.hf.resolve_name(self._owner, resume)).conversation.id
            key, token = await opened.hf.create_key(
                self._owner,
                api_keys.Scope.CHAT,
                (),
                keeps=self._keeps,
                name=f"launch {self._program.name}",
                expires_days=KEY_DAYS,
            )
            began = opened.hf.now()
        options = {
            name: str(value)
            for name, value in (("config", invocation.config), ("store", invocation.store_url))
            if value is not None
        }
        server: ServerInUse | None = None
        try:
            async with server_in_use(invocation.settings, home(), options) as server:
                served = await self._model(server, str(token), model)
                headers = {"X-Holdfast-Source": self._program.name}
                if resumed is not None:
                    headers["X-Holdfast-Session-Id"] = resumed
                endpoint = LocalEndpoint(server.url, str(token), served, headers)
                self._announce(server, served)
                code = await self._execute(endpoint, words)
        finally:
            await self._conclude(key, began, resumed, server)
        return code

    async def _model(self, server: ServerInUse, token: str, wanted: str | None) -> str:
        """The model's name for the program. Raises BadSetting if the server does not accept the run's key."""
        status, body = await get_json(f"{server.url}/v1/models", token)
        if status == 401:
            raise BadSetting(
                f"the server at {server.url} uses another store than {self._invocation.location}; stop it, "
                "or name its store with --store or --config"
            )
        data = body.get("data") if isinstance(body, dict) else None
        names = [str(each["id"]) for each in data or () if isinstance(each, dict) and "id" in each]
        configured = self._invocation.settings.model.name
        if wanted or configured:
            return wanted or configured
        if not names:
            raise BadSetting(
                f"the model of {server.url} is not available (status {status}); start it, or name one with "
                "--model NAME"
            )
        return names[0]

    def _announce(self, server: ServerInUse, model: str) -> None:
        started = " (started for this)" if server.started else ""
        remark(f"{self._program.title} uses holdfast at {server.url}{started}, model {model}")
        clients = self._invocation.settings.clients
        if not self._keeps:
            remark("Nothing of its sessions is kept (--store never)")
            return
        although = (
            ", also where it asks with store: false"
            if clients.names and clients.store_false == "keep"
            else ""
        )
        remark(
            f"Its sessions are kept as owner {self._owner}{although}; "
            f"`holdfast launch --store never {self._program.name}` keeps nothing"
        )

    async def _execute(self, endpoint: LocalEndpoint, words: Sequence[str]) -> int:
        with tempfile.TemporaryDirectory(prefix="holdfast-launch-") as scratch:
            prepared = self._program.prepare(endpoint, Path(scratch), os.environ)
            environment = environment_of(prepared, os.environ)
            return await run_program([self._path, *prepared.arguments, *words], environment)

    async def _conclude(
        self, key: ApiKey, began: datetime, resumed: str | None, server: ServerInUse | None
    ) -> None:
        """Revoke the run's key, then print the sessions of this run and how to continue them."""
        async with self._invocation.making(quiet=True) as opened:
            await opened.hf.revoke_key(key.id, None)
            found = await self._sessions(opened.hf, began, resumed) if self._keeps else []
            names = [(each, await opened.hf.aliases(None, each.conversation_id)) for each in found]
        for session, aliases in names:
            self._tell(session, aliases)
        if server is not None and server.ending:
            remark(server.ending)

    async def _sessions(self, hf: Operations, began: datetime, resumed: str | None) -> list[Session]:
        """The sessions in which this run was active, without those of sub-agents."""
        page = await hf.session_page(SessionFilter(self._owner), limit=MOST_SESSIONS)
        return [
            each
            for each in page.items
            if each.last_activity_at >= began
            and each.id == each.tip_id
            and each.edge is not Edge.SUBAGENT
            and (each.source == self._program.name or each.conversation_id == resumed)
        ]

    def _tell(self, session: Session, aliases: Sequence[str]) -> None:
        name = aliases[-1] if aliases else session.key or session.conversation_id
        program, line = self._program, self._invocation.command
        hint(f"Kept as {name}. To continue")
        if program.resume and aliases:
            own = program.resume.format(shlex.quote(name)).split(" ", 1)[1]
            hint(f"  in {program.title}: holdfast launch {program.name} {own}")
        hint(f"  in the terminal: {line('chat', '--resume', name)}")
        other = "claude" if program.name != "claude" else "codex"
        hint(f"  in another program: {line('launch', '--resume', name)} {other}")


FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


async def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program in our place: with our terminal, and with the signals that we get. Returns its exit code;
    128 + n if signal n killed it. Raises BadSetting if it cannot be executed."""
    loop = asyncio.get_running_loop()
    process: asyncio.subprocess.Process | None = None
    early: list[signal.Signals] = []

    def forward(number: signal.Signals) -> None:
        if process is None:
            early.append(number)
        elif process.returncode is None and not (_of_the_keyboard(number) and _in_foreground()):
            process.send_signal(number)

    taken = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    for number in taken:  # before the program starts: it may run for a while before asyncio returns it
        loop.add_signal_handler(number, forward, number)
    try:
        process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
        for number in early:
            forward(number)
        code = await process.wait()
    except OSError as error:
        raise BadSetting(f"{command[0]} cannot be executed: {error.strerror}") from error
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
    return code if code >= 0 else 128 - code


def _of_the_keyboard(number: signal.Signals) -> bool:
    return number in (signal.SIGINT, signal.SIGQUIT)


def _in_foreground() -> bool:
    """True if this process group has the terminal, which sends its signals to the program itself."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False
