"""`holdfast ps|logs|stop|pin`: background processes of sessions."""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ..domain.processes import Process, is_pinned, shown
from ..server import objects
from .context import AsJson, CommandContext, command
from .format import (
    Cell,
    Column,
    ago,
    complain,
    harmless,
    note,
    print_json,
    say,
    span,
    state,
    table,
    wide,
    write,
)
from .groups import app
from .signals import busy

if TYPE_CHECKING:
    from ..app import Holdfast
    from ..server.schemas import ProcessObject

ProcessId = Annotated[
    str, typer.Argument(metavar="PROC", help="The id of a process, as `holdfast ps` shows it.")
]

FOLLOW_SECONDS = 0.2


@command(app, "ps")
async def ps(
    invocation: CommandContext,
    id_or_key: Annotated[
        str | None,
        typer.Argument(metavar="[ID_OR_KEY]", help="Only those of this session's conversation."),
    ] = None,
    running: Annotated[bool, typer.Option("--running", help="Only those that have not ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many at most.")] = 20,
    after: Annotated[
        str | None, typer.Option(metavar="PROC", help="Next page: processes after this id.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List background processes, newest first.

    \b
    Examples:
      holdfast ps
      holdfast ps telegram:dm:42 --running
    """

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            if as_json:
                print_json(objects.listed([]))
            else:
                note(f"there is no store yet at {invocation.location}")
            return
        conversation = None
        if id_or_key is not None:
            conversation = (await opened.hf.resolve_name(opened.owner, id_or_key)).conversation.id
        after = await opened.full_id(after) if after else None
        page = await opened.hf.processes(
            opened.owner,
            conversation_id=conversation,
            running=True if running else None,
            after=after,
            limit=limit,
        )
        now = opened.hf.now()
        seen = await opened.hf.processes_seen(page.items)
        found = [each for each in seen if not (running and each.ended)]
        if as_json:
            data = [_object(invocation, opened.hf, each, now) for each in found]
            print_json(objects.listed(data, has_more=page.has_more))
        elif not found:
            note("no session has started a process" if id_or_key is None else "it has started no process")
        else:
            show_processes(opened.hf, found, now)
            if page.has_more:
                note(f"there are more: {invocation.command('ps', '--after', found[-1].id)}")


def _object(invocation: CommandContext, hf: Holdfast, process: Process, now: datetime) -> ProcessObject:
    active = hf.is_active(process, now)
    return objects.process(process, active, with_owner=invocation.of_everybody)


def show_processes(hf: Holdfast, found: list[Process], now: datetime) -> None:

    roomy = wide()
    rows: list[list[Cell]] = [
        [
            each.id,
            state(each.state.value),
            "" if each.pid is None else str(each.pid),
            "" if each.exit_code is None else str(each.exit_code),
            ago(each.started_at, now),
            _doing(each, now, hf.is_active(each, now)),
            *([each.session_id] if roomy else []),
            shown(each.command),
        ]
        for each in found
    ]
    titles = [
        "process",
        "state",
        "pid",
        "exit",
        "started",
        "doing",
        *(["session"] if roomy else []),
        "command",
    ]
    table(
        [Column(each, right=each in ("pid", "exit"), whole=each in ("process", "pid")) for each in titles],
        rows,
    )


def _doing(each: Process, now: datetime, active: bool) -> str:

    if each.ended:
        return f"ended {ago(each.ended_at, now)}"
    if each.stopping:
        return f"is being stopped: {each.stop_reason}"
    if is_pinned(each, now):
        assert each.pinned_until is not None
        return f"pinned for {span(each.pinned_until - now)} more"
    if each.exit_code is not None:
        return "has ended; its children still run"
    if active:
        return f"{each.activity} {ago(each.last_active_at, now)}"
    return "no connections" if each.listening else f"last active {ago(each.last_active_at, now)}"


@command(app, "logs")
async def logs(
    invocation: CommandContext,
    proc: ProcessId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the process has ended.")
    ] = False,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only the last N lines.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a process's output.

    If it is too long to be kept, its beginning and its end are; a line marks the gap.

    \b
    Examples:
      holdfast logs proc_7f3a… --tail 20
      holdfast logs proc_7f3a… --follow
    """

    async with invocation.existing(quiet=True) as opened:
        proc = await opened.full_id(proc)
        part = await opened.hf.process_log(opened.owner, proc, tail=tail)
        process = await opened.hf.process(opened.owner, proc)
        if as_json:
            print_json(objects.process_log(process, part))
            return
        write(harmless(part.text))
        while follow:
            sys.stdout.flush()
            process = await opened.hf.process(opened.owner, proc)
            (seen,) = await opened.hf.processes_seen([process])
            part = await opened.hf.process_log(opened.owner, proc, after=part.next)
            write(harmless(part.text))
            if seen.ended and not part.text:
                break
            await asyncio.sleep(FOLLOW_SECONDS)


@command(app, "stop")
async def stop(invocation: CommandContext, proc: ProcessId, as_json: AsJson = False) -> int:
    """Stop a process and everything it has started.

    SIGTERM first; SIGKILL after [processes] grace_seconds if something still runs.

    \b
    Example:
      holdfast stop proc_7f3a…
    """

    async with invocation.node(existing=True, quiet=as_json) as node:
        proc = await node.full_id(invocation.owner, proc)
        before = await node.process(invocation.owner, proc)
        with busy("waiting for it to end"):
            stopped = await node.stop_process(invocation.owner, before.id)
        if as_json:
            print_json(_object(invocation, node, stopped, node.now()))
        elif before.ended:
            say(f"{proc} had already ended: {shown(before.command)}")
        elif stopped.ended:
            say(f"{proc} has been stopped: {shown(before.command)}")
        else:
            complain(f"{proc} still runs", f"It will be stopped by the holdfast on {before.host}.")
        return 0 if stopped.ended else 1


@command(app, "pin")
async def pin(
    invocation: CommandContext,
    proc: ProcessId,
    hours: Annotated[float, typer.Option(metavar="N", help="For how long; 0: no longer.")],
    as_json: AsJson = False,
) -> None:
    """Prevent resets while this process runs, for N hours.

    \b
    Examples:
      holdfast pin proc_7f3a… --hours 8
      holdfast pin proc_7f3a… --hours 0
    """

    async with invocation.existing(quiet=as_json) as opened:
        now, proc = opened.hf.now(), await opened.full_id(proc)
        pinned = await opened.hf.pin_process(opened.owner, proc, hours)
        if as_json:
            print_json(_object(invocation, opened.hf, pinned, now))
        elif pinned.pinned_until is None:
            say(f"{proc} is no longer pinned.")
        else:
            say(f"{proc} is pinned until {pinned.pinned_until.astimezone():%Y-%m-%d %H:%M}.")
