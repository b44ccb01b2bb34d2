"""`holdfast sweep|nodes`: lists nodes, and reaps what dead nodes left."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ..domain.ids import short
from ..domain.maintenance import Pruned, Reaped, Reset
from ..domain.pages import NodeReport
from ..server import objects
from .context import AsJson, CommandContext, Opened, command
from .format import Cell, Column, ago, count, note, print_json, say, span, state, table, wide
from .groups import app
from .signals import busy

A_FEW = 5


@command(app, "sweep")
async def sweep(invocation: CommandContext, as_json: AsJson = False) -> int:
    """Clean up after crashed processes and apply due resets now.

    Turns of dead processes are interrupted, and their sessions ended. Sessions that are due
    are reset ([reset]). Every command does that first, and every running program regularly. Also deletes
    data past its retention ([retention]).

    \b
    Example:
      holdfast sweep
    """

    async with invocation.reading(quiet=True) as opened:
        if opened is None:
            done, reset, pruned = Reaped(), Reset(), Pruned()
        else:
            done, reset = opened.swept.reaped, await opened.hf.reset_all(opened.swept.reset)
            with busy("deleting data past its retention"):
                pruned = await opened.hf.prune_all()
        if as_json:
            print_json(_swept(done, reset, pruned))
        elif not (done.anything or reset.anything or pruned.anything or pruned.spared):
            say("Nothing was due.")
        else:
            assert opened is not None
            await _tell(opened, done, reset, pruned)
        return 1 if done.troubles or reset.troubles else 0


async def _tell(opened: Opened, done: Reaped, reset: Reset, pruned: Pruned) -> None:

    known = {node.id: node for node in await opened.hf.nodes(gone=True)}
    for node_id, why in done.nodes.items():
        who = known[node_id]
        process = f"{who.kind.value}, process {who.identity.pid} on {who.identity.host}"
        say(f"{node_id} ({process}) is dead ({why}).")
    if done.conversations:
        turns = count(len(done.conversations), "turn")
        say(f"Interrupted {turns}, keeping its partial reply: {_few(done.conversations)}.")
    if done.sessions:
        say(f"Ended {count(len(done.sessions), 'session')} as reaped: {_few(done.sessions)}.")
    for reason in sorted(set(reset.reset.values())):
        ids = [session_id for session_id, why in reset.reset.items() if why == reason]
        say(f"Reset {count(len(ids), 'session')} ({reason}): {_few(ids)}.")
    if reset.deferred:
        which = _few(reset.deferred)
        say(f"Deferred {count(len(reset.deferred), 'due reset')}: {which}. `holdfast why ID` shows why.")
    if pruned.drafts or pruned.events or pruned.requests:
        dropped = (count(pruned.drafts, "draft"), count(pruned.events, "event"))
        say(f"Deleted {', '.join(dropped)} and {count(pruned.requests, 'request key')} past retention.")
    if pruned.conversations:
        say(f"Deleted {count(pruned.conversations, 'conversation')} past retention.")
    if pruned.spared:
        spared = count(pruned.spared, "conversation")
        say(f"Kept {spared} past retention that are in use (a turn, a program, a process or a flush).")
    for trouble in [*done.troubles, *reset.troubles]:
        say(f"Could not clean up after {trouble}. It will be retried.")


def _few(ids: list[str]) -> str:
    rest = f" and {len(ids) - A_FEW:,} more" if len(ids) > A_FEW else ""
    return ", ".join(ids[:A_FEW]) + rest


def _swept(done: Reaped, reset: Reset, pruned: Pruned) -> dict[str, object]:
    return {
        "object": "sweep",
        "anything": done.anything or reset.anything or pruned.anything,
        "nodes": [{"id": node_id, "why": why} for node_id, why in done.nodes.items()],
        "conversations": done.conversations,
        "sessions": done.sessions,
        "reset": [{"id": session_id, "reason": reason} for session_id, reason in reset.reset.items()],
        "deferred": reset.deferred,
        "pruned": {
            "drafts": pruned.drafts,
            "events": pruned.events,
            "requests": pruned.requests,
            "conversations": pruned.conversations,
            "spared": pruned.spared,
        },
        "troubles": [*done.troubles, *reset.troubles],
    }


@command(app, "nodes")
async def nodes(
    invocation: CommandContext,
    gone: Annotated[bool, typer.Option("--all", help="Also those that have left or were reaped.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the living holdfast processes of this store.

    \b
    Examples:
      holdfast nodes
      holdfast nodes --all --json
    """

    async with invocation.reading(quiet=True) as opened:
        found = await _judged(opened, gone) if opened else []
        if as_json:
            data = [objects.node(each, opened.hf.now()) for each in found] if opened else []
            print_json(objects.listed(data))
            return
        if not found:
            note("no node is alive" if opened else f"there is no store yet at {invocation.location}")
            return
        assert opened is not None
        now = opened.hf.now()
        roomy = wide()
        rows: list[list[Cell]] = []
        for each in found:
            node = each.node
            lasted = each.running_for(now)
            rows.append(
                [
                    node.id if roomy else short(node.id),
                    state("left" if node.left_at else "reaped" if node.reaped_at else each.liveness.value),
                    node.kind.value,
                    str(node.identity.pid),
                    str(each.running_turns),
                    "" if lasted is None else span(lasted),
                    *([node.version, node.identity.host] if roomy else []),
                    ago(node.heartbeat_at, now),
                    each.why,
                ]
            )
        more = ("version", "host") if roomy else ()
        titles = ("node", "state", "kind", "pid", "turns", "up", *more, "heartbeat", "why")
        table(
            [
                Column(title, right=title in ("pid", "turns"), whole=title in ("node", "pid", "heartbeat"))
                for title in titles
            ],
            rows,
        )


async def _judged(opened: Opened, gone: bool) -> list[NodeReport]:
    """Nodes, living ones first, each with its liveness and the reason; includes those reaped just now."""

    reaped = opened.swept.reaped.nodes
    return [
        replace(each, why=f"{each.why} (just now)") if each.node.id in reaped else each
        for each in await opened.hf.judged_nodes(gone=gone or bool(reaped))
        if gone or not each.node.gone or each.node.id in reaped
    ]
