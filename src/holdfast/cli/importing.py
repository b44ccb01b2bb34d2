"""`holdfast import hermes|codex|claude-code|file`: import conversations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

import typer

from ..domain.ids import DEFAULT_OWNER
from ..os_support import expanded, timezone
from ..server.objects import time
from ..settings import home
from .context import AsJson, CommandContext, command
from .format import Cell, Column, Styled, count, facts, one_line, percent, print_json, say, table
from .groups import imports
from .signals import bar

if TYPE_CHECKING:
    from ..importers.hermes.doctor import Examination
    from ..importers.hermes.importer import HermesTaken
    from ..importers.transcripts import Overview
    from ..importers.writing import Taken

FEW = 5

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Dry run: print what would be imported; change nothing.")
]


@command(imports, "hermes")
async def hermes(
    invocation: CommandContext,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The home, usually ~/.hermes.")],
    dry_run: DryRun = False,
    timezone: Annotated[
        str,
        typer.Option(
            metavar="ZONE", help="Of times that Hermes wrote without a zone; default: this machine's."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Import a Hermes home.

    Every conversation, under the ids and keys that it had there. The home is only read, also while Hermes
    runs. A repeated import adds only what is new.

    \b
    Examples:
      holdfast import hermes ~/.hermes --dry-run
      holdfast import hermes ~/.hermes
    """
    from ..importers.hermes.snapshot import read_home

    if invocation.of_everybody:
        invocation.wrong_usage("name one owner for what is imported, not '*'")
    zone = _zone(invocation, timezone)
    with bar("What was imported is kept; run it again to continue.") as shows:
        with read_home(expanded(path), zone, [home()], shows) as seen:
            if dry_run:
                from datetime import UTC, datetime

                from ..importers.hermes.doctor import examine

                found = examine(seen, datetime.now(UTC))
            else:
                async with invocation.making(quiet=as_json) as opened:
                    owner = opened.owner or DEFAULT_OWNER
                    taken = await opened.hf.import_hermes(owner, seen, shows)
    if dry_run:
        print_json(_examination(found)) if as_json else _tell(found)
    elif as_json:
        print_json(_taken(taken, owner))
    else:
        _tell_taken(taken, invocation)


@command(imports, "codex")
async def codex(
    invocation: CommandContext,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Usually ~/.codex, or one rollout file.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Import the sessions of Codex.

    Every thread becomes a conversation under its id. The files are only read. A repeated
    import adds only what is new.

    \b
    Examples:
      holdfast import codex ~/.codex --dry-run
      holdfast import codex ~/.codex
    """
    from ..importers.codex import reading

    await _import_transcripts(invocation, path, reading, dry_run=dry_run, as_json=as_json)


@command(imports, "claude-code")
async def claude_code(
    invocation: CommandContext,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Usually ~/.claude, or one transcript.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Import the sessions of Claude Code.

    Every session becomes a conversation under its id, each sub-agent one of its own. The files are only read.
    A repeated import adds only what is new.

    \b
    Examples:
      holdfast import claude-code ~/.claude --dry-run
      holdfast import claude-code ~/.claude
    """
    from ..importers.claude_code import reading

    await _import_transcripts(invocation, path, reading, dry_run=dry_run, as_json=as_json)


async def _import_transcripts(
    invocation: CommandContext, path: Path, reading: Any, *, dry_run: bool, as_json: bool
) -> None:
    from ..importers.transcripts import overview, read_all

    if invocation.of_everybody:
        invocation.wrong_usage("name one owner for what is imported, not '*'")
    paths = reading.paths_in(path)
    transcripts = read_all(paths, reading.read)
    if dry_run:
        found = overview(reading.ORIGIN, transcripts)
        print_json(_overview(found)) if as_json else _tell_overview(found)
        return
    with bar("What was imported is kept; run it again to continue.") as shows:
        async with invocation.making(quiet=as_json) as opened:
            owner = opened.owner or DEFAULT_OWNER
            taken = await opened.hf.import_transcripts(owner, reading.ORIGIN, transcripts, len(paths), shows)
    if as_json:
        print_json({"object": "import", "origin": reading.ORIGIN, "owner": owner, **_counts(taken)})
    else:
        _tell_transcripts(taken, invocation)


@command(imports, "file")
async def file(
    invocation: CommandContext,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What `holdfast sessions export` wrote.")],
    as_json: AsJson = False,
) -> None:
    """Import a file of `holdfast sessions export`.

    Ids are kept. A file that is damaged, or conflicts with the store, is refused as a whole. Owners are
    kept, unless --owner names another.

    \b
    Examples:
      holdfast import conversations.jsonl
      holdfast import file conversations.jsonl
    """

    async with invocation.making(quiet=as_json) as opened:
        owner = None if invocation.owner_name is None else opened.owner
        with bar("What was imported is kept; run it again to continue.") as shows:
            carried = await opened.hf.import_file(
                expanded(path), owner, lambda done, whole: shows("importing", done, whole)
            )
    if as_json:
        print_json(
            {
                "object": "import",
                "origin": "holdfast",
                "conversations": carried.conversations,
                "unchanged": carried.there,
                "sessions": carried.sessions,
                "messages": carried.messages,
            }
        )
        return
    say(
        f"{count(carried.conversations, 'conversation')} imported: {count(carried.sessions, 'session')}, "
        f"{count(carried.messages, 'message')}."
    )
    if carried.there:
        say(f"{count(carried.there, 'conversation')} there already.")


def _zone(invocation: CommandContext, name: str) -> Any:

    try:
        return ZoneInfo(name or timezone())
    except (ValueError, OSError, LookupError):
        invocation.wrong_usage(f"{name!r} is not a time zone; use one such as Europe/Berlin")


# --- report on a home ----------------------------------------------------------------------------------


def _examination(found: Examination) -> dict[str, Any]:

    whole = found.sessions
    return {
        "object": "hermes.home",
        "path": found.path,
        "schema": found.schema,
        "timezone": found.zone,
        "sessions": whole,
        "messages": found.messages,
        "undone_messages": found.undone,
        "never_ended": {
            "count": found.never_ended,
            "percent": round(100 * found.never_ended / whole, 1) if whole else 0.0,
        },
        "end_reasons": dict(found.end_reasons),
        "sources": dict(found.sources),
        "conversations": found.conversations,
        "edges": dict(found.edges),
        "keys": found.keys,
        "held_open": [
            {
                "key": each.key,
                "session_id": each.session_id,
                "command": each.command,
                "pid": each.pid,
                "since": time(each.since),
                "state": each.state,
                "running": each.state == "runs",
            }
            for each in found.held_open
        ],
        "stale_ids": {"count": len(found.stale), "ids": list(found.stale), "keys": list(found.stale_keys)},
        "flushes_to_repeat": {"count": len(found.repeats), "keys": list(found.repeats)},
        "reset": {
            "mode": found.rule.mode,
            "idle_minutes": found.rule.idle_minutes,
            "at_hour": found.rule.at_hour,
        },
        "orphan_tool_calls": found.orphan_calls,
        "wrong_counts": found.wrong_counts,
        "duplicate_rows": found.repeated_rows,
        "messages_without_session": found.strays,
        "messages_without_mark": found.unmarked,
        "lineage": {
            "cycles": list(found.cycles),
            "dangling_parents": list(found.dangling),
            "several_continuations": list(found.several),
        },
        "problems": list(found.problems),
        "changed": False,
    }


def _tell(found: Examination) -> None:

    say(Styled(found.path, "bold"))
    reasons = {**found.end_reasons}
    rows = [(name, number, "") for name, number in reasons.items()]
    if found.never_ended:
        rows.append(("(never ended)", found.never_ended, "red"))
    rows.sort(key=lambda row: -row[1])
    table(
        [Column("ended as", whole=True), Column("sessions", right=True), Column("share", right=True)],
        [
            (Styled(name, style), f"{number:,}", percent(number, found.sessions))
            for name, number, style in rows
        ],
    )
    say()
    facts(_facts(found))
    for each in found.held_open:
        say(Styled("  ! ", "yellow"), _held_open(each))
    for problem in found.problems:
        say(Styled("  ! ", "yellow"), problem)
    say("Nothing was changed.")


def _facts(found: Examination) -> list[tuple[str, Cell]]:

    def trouble(number: int, words: str = "") -> Cell:
        text = f"{number:,}{f' ({words})' if words and number else ''}"
        return Styled(text, "yellow") if number else text

    edges = ", ".join(f"{number:,} {edge}" for edge, number in found.edges.items()) or "no edges"
    running = sum(each.state == "runs" for each in found.held_open)
    rule = found.rule
    when = {"idle": f"{rule.idle_minutes:g} min", "daily": f"{rule.at_hour}:00"}
    policy = f"session_reset {rule.mode}" + "".join(
        f", {when[mode]}" for mode in ("idle", "daily") if rule.mode in (mode, "both")
    )
    sources = ", ".join(f"{number:,} {name}" for name, number in list(found.sources.items())[:FEW])
    return [
        ("sessions", f"{found.sessions:,} in {count(found.conversations, 'conversation')} ({edges})"),
        ("never ended", trouble(found.never_ended, percent(found.never_ended, found.sessions))),
        ("messages", f"{found.messages:,}, and {found.undone:,} undone"),
        ("sources", sources or "none"),
        ("keys of chats", f"{found.keys:,}"),
        ("held open by a process", trouble(len(found.held_open), f"{running:,} of them still running")),
        (
            "ids that point at stale parents",
            trouble(len(found.stale), f"{count(len(found.stale_keys), 'chat')} goes to one"),
        ),
        ("flushes the next restart repeats", trouble(len(found.repeats), policy)),
        ("orphan tool calls", trouble(found.orphan_calls)),
        ("wrong message counts", trouble(found.wrong_counts)),
        ("duplicate rows", trouble(found.repeated_rows)),
        ("messages without a session", trouble(found.strays)),
        ("messages without a mark", trouble(found.unmarked, "active is NULL; counted as active")),
        ("missing parents", trouble(len(found.dangling), _some(found.dangling))),
        ("sessions continued twice", trouble(len(found.several), _some(found.several))),
        ("sessions in a cycle", trouble(len(found.cycles), _some(found.cycles))),
        ("times without a zone", f"read as {found.zone}"),
    ]


def _held_open(each: Any) -> str:

    words = {
        "runs": "still runs",
        "gone": "has exited; Hermes has not noticed",
        "reused": "has exited, and another program has its pid",
        "unknown": "is not visible from here",
    }
    since = f" since {each.since.astimezone():%Y-%m-%d %H:%M}" if each.since else ""
    what = f"{one_line(each.command)[:80]} (pid {each.pid})"
    return f"{each.key or '(no chat)'}: {what}{since} {words[each.state]}"


def _some(names: Any) -> str:
    return ", ".join([*names[:FEW], *(["…"] if len(names) > FEW else [])])


# --- transcripts ---------------------------------------------------------------------------------------


def _overview(found: Overview) -> dict[str, Any]:

    return {
        "object": "import.overview",
        "origin": found.origin,
        "files": found.files,
        "empty_files": found.empty,
        "conversations": found.conversations,
        "subagents": found.subagents,
        "messages": found.messages,
        "compactions": found.compactions,
        "left_out_messages": found.left_out,
        "unread_lines": found.unread_lines,
        "unread_files": found.unread_files,
        "first_at": time(found.first_at),
        "last_at": time(found.last_at),
        "models": dict(found.models),
    }


def _tell_overview(found: Overview) -> None:

    say(f"{found.conversations:,} conversations in {found.files:,} files. Nothing was changed.")
    span = ""
    if found.first_at and found.last_at:
        span = f"{found.first_at.astimezone():%Y-%m-%d} to {found.last_at.astimezone():%Y-%m-%d}"
    facts(
        [
            ("messages", f"{found.messages:,}; {found.left_out:,} of abandoned branches are left out"),
            ("sub-agents", f"{found.subagents:,}"),
            ("compactions", f"{found.compactions:,}"),
            ("models", ", ".join(f"{name} {count:,}" for name, count in found.models.most_common(FEW))),
            ("time", span),
            ("files without messages", f"{found.empty:,}"),
            ("lines that cannot be read", f"{found.unread_lines:,}"),
            ("files that cannot be read", f"{found.unread_files:,}"),
        ]
    )


def _tell_transcripts(taken: Taken, invocation: CommandContext) -> None:

    if not taken.anything:
        say("Nothing new: everything was imported before." if taken.unchanged else "Nothing to import.")
    else:
        say(
            f"{count(taken.conversations, 'conversation')} imported"
            + (f", {taken.grown:,} continued" if taken.grown else "")
            + (f", {taken.unchanged:,} unchanged" if taken.unchanged else "")
            + "."
        )
        facts(
            [
                ("messages", f"{taken.messages:,}"),
                ("edges", ", ".join(f"{number:,} {edge}" for edge, number in taken.edges.items()) or "none"),
                ("old ids", f"{taken.names:,} lead to their conversations"),
            ]
        )
    _tell_left(taken)
    if taken.anything:
        say(Styled(f"Show it with: {invocation.command('sessions')}", "dim"))


def _counts(taken: Taken) -> dict[str, Any]:
    return {
        "conversations": taken.conversations,
        "grown": taken.grown,
        "unchanged": taken.unchanged,
        "sessions": taken.sessions,
        "messages": taken.messages,
        "edges": dict(taken.edges),
        "mended_messages": taken.mended,
        "aliases": taken.names,
        "gone_on": taken.gone_on,
        "deleted": taken.deleted,
        "problems": taken.problems,
    }


# --- result of an import -------------------------------------------------------------------------------


def _taken(taken: HermesTaken, owner: str) -> dict[str, Any]:
    return {
        "object": "import",
        "origin": "hermes",
        "owner": owner,
        "conversations": taken.conversations,
        "grown": taken.grown,
        "unchanged": taken.unchanged,
        "sessions": taken.sessions,
        "messages": taken.messages,
        "edges": dict(taken.edges),
        "closed": taken.unclosed,
        "undone_messages": taken.undone,
        "mended_messages": taken.mended,
        "aliases": taken.names,
        "keys": taken.keys,
        "memories": taken.memories,
        "gone_on": taken.gone_on,
        "deleted": taken.deleted,
        "problems": taken.problems,
    }


def _tell_taken(taken: HermesTaken, invocation: CommandContext) -> None:

    if not taken.anything:
        say("Nothing new: everything was imported before." if taken.unchanged else "Nothing to import.")
    else:
        edges = ", ".join(f"{number:,} {edge}" for edge, number in taken.edges.items()) or "none"
        say(
            f"{count(taken.conversations, 'conversation')} imported"
            + (f", {taken.grown:,} continued" if taken.grown else "")
            + (f", {taken.unchanged:,} unchanged" if taken.unchanged else "")
            + "."
        )
        facts(
            [
                (
                    "sessions",
                    f"{taken.sessions:,}; {taken.unclosed:,} had no end, and ended at their last message",
                ),
                (
                    "messages",
                    f"{taken.messages:,}; {taken.undone:,} undone ones left out, {taken.mended:,} mended",
                ),
                ("edges", edges),
                ("old ids", f"{taken.names:,} lead to their conversations"),
                ("keys of chats", f"{taken.keys:,}"),
                ("memories", f"{taken.memories:,}"),
            ]
        )
    _tell_left(taken)
    if taken.anything:
        say(Styled(f"Show it with: {invocation.command('sessions')}", "dim"))


def _tell_left(taken: Taken) -> None:

    if taken.gone_on:
        say(
            Styled("  ! ", "yellow"),
            f"{count(len(taken.gone_on), 'session')} changed both there and here; kept as they are here: "
            f"{_some(taken.gone_on)}",
        )
    if taken.deleted:
        say(
            Styled("  ! ", "yellow"),
            f"{count(len(taken.deleted), 'session')} deleted here since; not brought back: "
            f"{_some(taken.deleted)}",
        )
    for problem in taken.problems:
        say(Styled("  ! ", "yellow"), problem)
