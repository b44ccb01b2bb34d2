"""`holdfast doctor|backup|restore`: maintenance of a store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..domain.connectors import ConnectorHealth, ConnectorState
from ..domain.figures import FlushFigures, OwnerUsage
from ..domain.maintenance import Diagnosis
from ..errors import BadInput, StoreError
from ..os_support import expanded
from ..server.objects import connector, owner_usage
from ..settings import Settings, is_postgres
from .context import AsJson, CommandContext, command
from .format import Styled, count, note, one_line, print_json, say, size
from .groups import app
from .signals import bar

MOST_OWNERS = 10


@command(app, "doctor")
async def doctor(
    invocation: CommandContext,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired safely, then check again.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check every invariant and the store's health.

    Exits 1 if one is broken.

    \b
    Examples:
      holdfast doctor
      holdfast doctor --repair
    """

    async with invocation.reading(quiet=as_json) as opened:
        if opened is None:
            if as_json:
                print_json({"object": "diagnosis", "ok": True, "store": None, "repaired": [], "data": []})
            else:
                note(f"there is no store to check yet at {invocation.location}")
            return 0
        kept = "Repairs that were made are kept." if repair else "Nothing was changed."
        with bar(kept, at_once=True) as shows:
            found, repaired = await opened.hf.examine(
                repair=repair, progress=lambda done, whole: shows("checking the store", done, whole)
            )
        usage = await opened.hf.usage(None, limit=MOST_OWNERS)
        connectors = await opened.hf.connector_states()
        figures = await opened.hf.figures()
        well = all(each.ok for each in found)
        if as_json:
            print_json(
                {
                    "object": "diagnosis",
                    "ok": well,
                    "store": opened.hf.location,
                    "repaired": repaired,
                    "flushes": _flushes(await opened.hf.flush_figures()),
                    "free_bytes": figures.free_bytes,
                    "usage": [owner_usage(each) for each in usage],
                    "connectors": [connector(each) for each in connectors],
                    "data": [_diagnosis(each) for each in found],
                }
            )
            return 0 if well else 1
        say(Styled(opened.hf.location, "bold"))
        for sentence in repaired:
            say(Styled("  + ", "cyan"), sentence)
        for each in found:
            say(Styled("  ✓ ", "green") if each.ok else Styled("  ✗ ", "bold red"), each.invariant)
            _explain(each)
        if waiting := _what_waits(await opened.hf.flush_figures(), invocation.settings):
            say(Styled("  · ", "dim"), waiting)
        if figures.disk_nearly_full:
            free = size(figures.free_bytes or 0)
            say(
                Styled("  ! ", "yellow"),
                f"the store's disk has {free} free. When it is full, writes are refused",
            )
        _how_connectors_are(connectors)
        _who_holds_how_much(usage)
        broken = sum(not each.ok for each in found)
        verdict = f"{broken} of {len(found)} broken."
        say(Styled("No problems found.", "green") if well else Styled(verdict, "bold red"))
        return 0 if well else 1


def _how_connectors_are(states: Sequence[ConnectorState]) -> None:
    """Print the state of each connector, one per line."""

    for each in states:
        told = f"connector {each.name}: {each.health.value}"
        if each.problem:
            told += f" ({one_line(each.problem)})"
        if each.pending:
            told += f"; {count(each.pending, 'message')} to be sent"
        if each.dead:
            told += f"; {count(each.dead, 'dead letter')}: `GET /api/deliveries?state=dead`"
        bad = each.health is ConnectorHealth.DOWN or each.dead
        say(Styled("  ! ", "yellow") if bad else Styled("  · ", "dim"), told)


def _who_holds_how_much(usage: Sequence[OwnerUsage]) -> None:
    """Print the owners with the most bytes, one per line."""

    for each in usage:
        held = f"{one_line(each.owner)}: {size(each.bytes)} in {count(each.conversations, 'conversation')}"
        say(Styled("  · ", "dim"), held)
    if len(usage) == MOST_OWNERS:
        say(Styled(f"  · (only the {MOST_OWNERS} largest owners)", "dim"))


def _flushes(figures: FlushFigures) -> dict[str, int]:
    return {
        "pending": figures.pending,
        "running": figures.running,
        "dead": figures.dead,
        "coming": figures.coming,
    }


def _what_waits(figures: FlushFigures, settings: Settings) -> str:
    """Progress of the flushes of ended sessions; empty if none is pending and none failed."""

    told = []
    if waiting := figures.pending + figures.running:
        minutes = -(-waiting // settings.memory.per_minute)
        told.append(f"{count(waiting, 'session')} to be flushed, which takes about {minutes} min")
    if figures.dead:
        told.append(f"{count(figures.dead, 'session')} could not be flushed: `holdfast memories --failed`")
    return "; ".join(told)


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
    """Print what violates an invariant, and what to do."""

    finding = each.finding
    if finding is None:
        return
    examples = ", ".join(finding.examples)
    times = f"{finding.count:,} times" if finding.count > 1 else "once"
    say(f"      broken {times}: {examples}")
    what_to_do = (
        "`holdfast doctor --repair` fixes this."
        if finding.repairable
        else "This cannot be repaired automatically: make a copy with `holdfast backup FILE`, stop what "
        "writes to the store, and report it with the examples above."
    )
    say(Styled(f"      {what_to_do}", "yellow"))


@command(app, "backup")
async def backup(
    invocation: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; it must not exist yet.")],
) -> None:
    """Copy the store to a file while it is in use.

    \b
    Example:
      holdfast backup ~/holdfast-2026-03-01.db
    """

    async with invocation.existing() as opened:
        with bar("No file was left.") as shows:
            await opened.hf.backup(file, lambda done, whole: shows("copying the store", done, whole))
        say(f"{opened.hf.location} is backed up to {file} ({size(file.stat().st_size)}).")
        say(f"Inspect it with: holdfast sessions --store sqlite:///{file}")


@command(app, "restore")
async def restore(
    invocation: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `holdfast backup` wrote.")],
) -> None:
    """Replace the store by a backup.

    Stop every process that uses the store first. The store that was there is moved aside, not deleted. The
    backup itself stays as it is.

    \b
    Example:
      holdfast restore ~/holdfast-2026-03-01.db
    """
    from ..app import restore_store

    source = expanded(file)
    if not is_postgres(invocation.settings.store.url):
        _require_there(source)
        await _require_unused(invocation)
    with bar("The store is unchanged.") as shows:
        aside = await asyncio.to_thread(
            restore_store,
            invocation.settings,
            source,
            lambda done, whole: shows("copying the backup", done, whole),
        )
    async with invocation.existing(quiet=True) as opened:
        found = await opened.hf.statistics(None)
    held = f"{count(found.conversations, 'conversation')}, {count(found.messages, 'message')}"
    say(f"{invocation.location} is restored from {file}: {held}.")
    if aside is not None:
        say(f"The store that was there is in {aside}; delete it when you do not need it.")
    say("Check it with: holdfast doctor")


def _require_there(source: Path) -> None:
    if not os.path.isfile(source):
        raise BadInput(f"there is no file {source}")


async def _require_unused(invocation: CommandContext) -> None:
    """Raises BadInput if a process has the store open. A store that cannot be opened is reported."""
    try:
        async with invocation.reading(quiet=True) as opened:
            nodes = await opened.hf.nodes() if opened is not None else []
    except StoreError as error:
        note(f"the store that is there cannot be opened, and is moved aside: {error}")
        return
    if nodes:
        raise BadInput(
            f"{count(len(nodes), 'process')} still {'uses' if len(nodes) == 1 else 'use'} this store; stop "
            "them first: `holdfast nodes` lists them"
        )
