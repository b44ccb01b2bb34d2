"""`holdfast sweep|nodes|doctor|backup`: looking after a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .invocation import AsJson, Invocation, Opened, command
from .tree import app

if TYPE_CHECKING:
    from ...domain.nodes import Liveness, Node
    from ...runtime.doctor import Diagnosis
    from .output import Cell

A_FEW = 5


@command(app, "sweep")
async def sweep(invocation: Invocation, as_json: AsJson = False) -> int:
    """Settle what is due, and say what was done.

    That is what dead processes left behind: their turns are interrupted, their sessions ended. Every command
    and every running server does this by itself.

    \b
    Example:
      holdfast sweep
    """
    from .output import print_json, say
    from .words import count

    async with invocation.reading(quiet=True) as opened:
        if as_json:
            print_json(_swept(opened))
            return 1 if opened and opened.swept.troubles else 0
        if opened is None or not opened.swept.anything:
            say("Nothing was due.")
            return 0
        done = opened.swept
        known = {node.id: node for node in await opened.store.nodes(gone=True)}
        for node_id, why in done.nodes.items():
            who = known[node_id]
            process = f"{who.kind.value}, process {who.identity.pid} on {who.identity.host}"
            say(f"{node_id} ({process}) is dead: {why}.")
        if done.conversations:
            turns = count(len(done.conversations), "turn")
            say(f"Interrupted {turns}, keeping what was said: {_few(done.conversations)}.")
        if done.sessions:
            say(f"Ended {count(len(done.sessions), 'session')} as reaped: {_few(done.sessions)}.")
        for trouble in done.troubles:
            say(f"Could not settle {trouble}. It will be tried again.")
        return 1 if done.troubles else 0


def _few(ids: list[str]) -> str:
    rest = f" and {len(ids) - A_FEW:,} more" if len(ids) > A_FEW else ""
    return ", ".join(ids[:A_FEW]) + rest


def _swept(opened: Opened | None) -> dict[str, object]:
    from ...runtime.reaper import Reaped

    done = opened.swept if opened else Reaped()
    return {
        "object": "sweep",
        "anything": done.anything,
        "nodes": [{"id": node_id, "why": why} for node_id, why in done.nodes.items()],
        "conversations": done.conversations,
        "sessions": done.sessions,
        "troubles": done.troubles,
    }


@command(app, "nodes")
async def nodes(
    invocation: Invocation,
    gone: Annotated[bool, typer.Option("--all", help="Also those that have left or were reaped.")] = False,
    as_json: AsJson = False,
) -> None:
    """List who is alive: the holdfast processes of this store.

    \b
    Examples:
      holdfast nodes
      holdfast nodes --all --json
    """
    from .. import objects
    from .output import Column, note, print_json, state, table
    from .words import ago

    async with invocation.reading(quiet=True) as opened:
        found = await _judged(opened, gone) if opened else []
        if as_json:
            print_json(objects.listed([objects.node(*each) for each in found]))
            return
        if not found:
            note("nobody is there" if opened else f"there is nothing yet: no store at {invocation.location}")
            return
        assert opened is not None
        now = opened.store.now()
        titles = ("node", "state", "why", "kind", "host", "pid", "started", "last beat")
        whole = {"node", "state", "pid", "kind"}
        rows: list[list[Cell]] = [
            [
                node.id,
                state(liveness.value),
                why,
                node.kind.value,
                node.identity.host,
                str(node.identity.pid),
                ago(node.started_at, now),
                ago(node.heartbeat_at, now),
            ]
            for node, liveness, why in found
        ]
        table([Column(title, right=title == "pid", whole=title in whole) for title in titles], rows)


async def _judged(opened: Opened, gone: bool) -> list[tuple[Node, Liveness, str]]:
    """Nodes, the living first, each with whether it lives and why; also those that were reaped just now."""
    from ...domain.nodes import Liveness

    reaped = opened.swept.nodes
    everyone = await opened.store.nodes(gone=gone or bool(reaped))
    present = [node for node in everyone if not node.gone]
    proofs = await opened.store.probe(present)
    judged = [(node, *proofs[node.id]) for node in present]
    for node in everyone:
        if node.id in reaped:
            judged.append((node, Liveness.DEAD, f"{reaped[node.id]}; reaped just now"))
        elif gone and node.gone:
            why = "it left in good order" if node.left_at else "it was found dead or hung, and reaped"
            judged.append((node, Liveness.DEAD, why))
    return judged


@command(app, "doctor")
async def doctor(
    invocation: Invocation,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what can be mended safely, then look again.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check every invariant and the store's health; exit 1 if one is broken.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --repair
    """
    from ...runtime.doctor import Doctor
    from ...runtime.reaper import Reaper
    from .output import Styled, note, print_json, say
    from .progress import busy

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            if as_json:
                print_json({"object": "diagnosis", "ok": True, "store": None, "repaired": [], "data": []})
            else:
                note(f"there is nothing to check yet: no store at {invocation.location}")
            return 0
        examiner = Doctor(opened.store, Reaper(opened.store, own_node=lambda: None))
        with busy("examining the store"):
            repaired = await examiner.repair() if repair else []
            found = await examiner.examine()
        well = all(each.ok for each in found)
        if as_json:
            print_json(
                {
                    "object": "diagnosis",
                    "ok": well,
                    "store": opened.store.location,
                    "repaired": repaired,
                    "data": [_diagnosis(each) for each in found],
                }
            )
            return 0 if well else 1
        say(Styled(opened.store.location, "bold"))
        for sentence in repaired:
            say(Styled("  + ", "cyan"), sentence)
        for each in found:
            say(Styled("  ✓ ", "green") if each.ok else Styled("  ✗ ", "bold red"), each.invariant)
            _explain(each)
        broken = sum(not each.ok for each in found)
        verdict = f"{broken} of {len(found)} broken."
        say(Styled("All is well.", "green") if well else Styled(verdict, "bold red"))
        return 0 if well else 1


def _diagnosis(each: Diagnosis) -> dict[str, object]:
    finding = each.finding
    return {
        "invariant": each.invariant,
        "ok": each.ok,
        "count": finding.count if finding else 0,
        "examples": list(finding.examples) if finding else [],
        "repairable": finding.repairable if finding else False,
    }


def _explain(each: Diagnosis) -> None:
    """What breaks an invariant, and what to do."""
    from .output import Styled, say

    finding = each.finding
    if finding is None:
        return
    examples = ", ".join(finding.examples)
    times = f"{finding.count:,} times" if finding.count > 1 else "once"
    say(f"      broken {times}: {examples}")
    what_to_do = (
        "`holdfast doctor --repair` mends this."
        if finding.repairable
        else "This cannot be mended safely by itself: make a copy with `holdfast backup FILE`, stop what "
        "writes to the store, and report it with the examples above."
    )
    say(Styled(f"      {what_to_do}", "yellow"))


@command(app, "backup")
async def backup(
    invocation: Invocation,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not exist yet.")],
) -> None:
    """Copy the store to a file while everything goes on.

    \b
    Example:
      holdfast backup ~/holdfast-2026-03-01.db
    """
    from .output import say
    from .progress import busy
    from .words import size

    async with invocation.existing() as opened:
        with busy("copying the store"):
            await opened.store.backup(file)
        say(f"{opened.store.location} is backed up to {file} ({size(file.stat().st_size)}).")
        say(f"Look into it with: holdfast sessions --store sqlite:///{file}")
